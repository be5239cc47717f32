"""Networks for serving: batch norms folded into convolutions, half precision, CUDA graphs."""

import copy
from collections import Counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..cuda_graph import capture
from ..heads import second_order_pools
from ..ops.block import has_hooks

Model = TypeVar("Model", bound=nn.Module)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MAX_GRAPHS = 16
"""CUDA graphs kept at a time; each holds the memory of a whole forward pass."""


def fold(model: Model) -> Model:
    """A copy of a network, for inference only, with batch norms folded into the convolutions before them.

    Blocks keep their norms, because the attention stands between W_z and the norm; so do compact heads, where a square
    root does. Layers with hooks stay as they are: a block may be called by one.
    """
    folded = copy.deepcopy(model).eval()
    try:
        nodes = torch.fx.symbolic_trace(folded).graph.nodes
    except Exception as error:  # torch.fx and the network may raise anything
        raise ValueError(f"the order of the layers cannot be followed: {error}") from None
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    for node in nodes:
        before = node.args[0] if node.op == "call_module" else None
        if not isinstance(before, torch.fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        conv: Any = folded.get_submodule(str(before.target))
        norm: Any = folded.get_submodule(str(node.target))
        once = calls[before.target] == calls[node.target] == 1
        if once and _are_foldable(conv, norm):
            folded.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
            folded.set_submodule(str(node.target), nn.Identity())
    for head in second_order_pools(folded).values():  # each is one layer to torch.fx
        reduce: Any = getattr(head, "reduce", None)
        if reduce is not None and _are_foldable(reduce, head.norm):
            head.reduce, head.norm = fuse_conv_bn_eval(reduce, head.norm), nn.Identity()
    return folded


def _are_foldable(conv: Any, norm: Any) -> bool:
    if has_hooks(conv) or has_hooks(norm):  # torch.fx does not see what they do
        return False
    return type(conv) in _CONVOLUTIONS and type(norm) in _NORMS and norm.running_mean is not None


def for_inference(
    model: nn.Module, device: torch.device | str | None = None, dtype: torch.dtype | None = None, graphs: bool = True
) -> nn.Module:
    """A copy of a network for serving: the same outputs as in eval mode, faster.

    Batch norms are folded into the convolutions before them, blocks run as fused kernels where those apply, images are
    channels_last, and on a GPU each input shape becomes a CUDA graph.

    Args:
        model: [B, 3, H, W] or [B, 3, T, H, W] -> Tensor.
        device: of the copy; None means the network's own.
        dtype: of the copy and its input; None means bfloat16 on a GPU and float32 on a CPU.
        graphs: whether to make CUDA graphs (True). A graph serves one request at a time.

    Returns:
        A module that takes input of any dtype, layout and device, and returns a tensor of ``dtype`` on ``device``.
    """
    place = torch.device(device) if device is not None else next(model.parameters()).device
    on_gpu = place.type == "cuda"
    dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
    network = fold(model).to(place, dtype).requires_grad_(False)
    return Ready(Graphed(network) if on_gpu and graphs else network, place, dtype).eval()


class Ready(nn.Module):
    """A network that takes input of any dtype, layout and device."""

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


class Graphed(nn.Module):
    """A network that is captured as a CUDA graph for each input shape, and replayed from then on."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        key = (x.shape, x.stride(), x.dtype, x.device)
        if key not in self._graphs:
            if len(self._graphs) == MAX_GRAPHS:
                return self.network(x)
            static = x.clone()
            self._graphs[key] = *capture(lambda: self.network(static)), static
        graph, output, static = self._graphs[key]
        static.copy_(x)
        graph.replay()
        return output.clone()
