"""A moving average of a network's weights."""

import copy

import torch
from torch import Tensor, nn

from .sharding import part


class Average:
    """The exponential moving average of all weights and buffers. No update waits for the device."""

    def __init__(self, network: nn.Module, decay: float):
        self.module, self.decay, self.updates = copy.deepcopy(network), decay, 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network as it is; counts, such as the batches that a norm has seen, are copied."""
        pairs = list(zip(_tensors(self.module), _tensors(network), strict=True))
        averaged = [pair for pair in pairs if self.updates and pair[0].is_floating_point()]
        if averaged:
            mine, theirs = zip(*averaged, strict=True)
            torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
                mine, theirs, 1 - self.decay
            )
        for mine, theirs in pairs:
            if not (self.updates and mine.is_floating_point()):
                mine.copy_(theirs)
        self.updates += 1


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*map(part, network.parameters()), *network.buffers()]
