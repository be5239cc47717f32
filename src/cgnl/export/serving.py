"""A network made ready to answer: norms folded, half precision, kernels that are started all at once."""

from typing import Any

import torch
from torch import Tensor, nn

from ..cuda_graph import capture
from .folding import fold


def for_inference(
    model: nn.Module, device: torch.device | str | None = None, dtype: torch.dtype | None = None, graphs: bool = True
) -> nn.Module:
    """A copy of a network for a service: it answers as the network does in eval mode, sooner.

    Its batch norms are folded into the convolutions before them, blocks run as fused kernels where there are any for
    them, images are channels_last, and on a GPU each shape that it meets becomes a CUDA graph.

    Args:
        model: [B, 3, H, W] or [B, 3, T, H, W] -> Tensor.
        device: where the copy is; where the network is unless given.
        dtype: of the copy and its input; unless given, bfloat16 on a GPU and float32 on a CPU.
        graphs: whether to make CUDA graphs (True). A graph answers one request at a time.

    Returns:
        A module that takes input of any dtype, layout and device, and returns a tensor of ``dtype`` on ``device``.
    """
    place = torch.device(device) if device is not None else next(model.parameters()).device
    on_gpu = place.type == "cuda"
    dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
    network = fold(model).to(place, dtype).requires_grad_(False)
    return Ready(Graphed(network) if on_gpu and graphs else network, place, dtype).eval()


class Ready(nn.Module):
    """A network that takes its input as it comes."""

    def __init__(self, network: nn.Module, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.network, self.device, self.dtype = network, device, dtype
        for weight in network.parameters():
            weight.data = _channels_last(weight.data)

    @torch.no_grad()  # torch 2.11 cannot compile what enters inference_mode
    def forward(self, x: Tensor) -> Tensor:
        return self.network(_channels_last(x.to(self.device, self.dtype, non_blocking=True)))


def _channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.ndim, torch.contiguous_format))


MOST = 16
"""Shapes that are kept as graphs; a graph holds the memory of a whole pass."""


class Graphed(nn.Module):
    """A network that is captured once for each shape of its input, and replayed from then on."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        key = (x.shape, x.stride(), x.dtype, x.device)
        if key not in self._graphs:
            if len(self._graphs) == MOST:
                return self.network(x)
            seen = x.clone()
            self._graphs[key] = *capture(lambda: self.network(seen)), seen
        graph, answer, seen = self._graphs[key]
        seen.copy_(x)
        graph.replay()
        return answer.clone()
