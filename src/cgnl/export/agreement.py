"""Check that an export computes what the network does, on inputs of several shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..spelling import first_line

BAR = 1e-4
"""The largest difference allowed between an export and its network, relative to the largest output."""

IMAGES = ((1, 64, 64), (3, 65, 97), (2, 96, 33), (1, 32, 32), (1, 127, 80))
CLIPS = ((1, 8, 64, 64), (3, 9, 65, 49), (2, 16, 33, 48), (1, 8, 32, 32), (1, 13, 80, 64))
"""Batch, frames, height and width to try: one sample and three, odd sizes, and the smallest input of a ResNet."""

Function = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Agreement:
    """How closely an export follows its network."""

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs."""
    differences: tuple[float, ...]
    """The largest difference for each input, relative to the largest output."""

    @property
    def largest(self) -> float:
        """The largest of all differences."""
        return max(self.differences)


def agree(model: nn.Module, exported: Function, inputs: Sequence[Tensor]) -> Agreement:
    """Compare an export with its network; ``ValueError`` if they differ."""
    differences = []
    for x in inputs:
        expected = run_network(model, x)
        if not all(y.isfinite().all() for y in expected):
            raise ValueError(f"the network's own output is not finite for an input of {words(x.shape)}")
        try:
            actual = exported(x)
        except Exception as error:  # every runtime has errors of its own
            raise ValueError(
                f"the export does not take an input of {words(x.shape)}: {explain_error(error)}"
            ) from error
        differences.append(max(difference(a, e) for a, e in zip(actual, expected, strict=True)))
        if not differences[-1] <= BAR:
            raise ValueError(
                f"the export differs from the network by {differences[-1]:.1e} of its largest output, more than "
                f"{BAR:.0e}, for an input of {words(x.shape)}"
            )
    return Agreement(tuple(tuple(x.shape) for x in inputs), tuple(differences))


def example_inputs(model: nn.Module, size: Sequence[int] = ()) -> list[Tensor]:
    """Random inputs of several shapes; ``size`` adds the one that the network was made for."""
    shapes = CLIPS if takes_clips(model) else IMAGES
    if size and (1, *size) not in shapes:
        shapes = (*shapes[:-1], (1, *size))
    source = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 3, *rest, generator=source) for batch, *rest in shapes]


def takes_clips(model: nn.Module) -> bool:
    """Whether a network is for [B, 3, T, H, W] and not for [B, 3, H, W]."""
    return isinstance(next(m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)), nn.Conv3d)


def run_network(model: Callable, x: Tensor) -> list[Tensor]:
    """The outputs for x as a list: backbones of detectors return dictionaries."""
    with torch.no_grad():
        y = model(x)
    return list(y.values()) if isinstance(y, dict) else [y]


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest element; infinite where the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    largest = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float((actual - expected).abs().max() / largest)


def words(shape: Sequence[int]) -> str:
    """``1 x 3 x 64 x 64``."""
    return " x ".join(map(str, shape))


def explain_error(error: Exception) -> str:
    """What went wrong, in one line."""
    return first_line(error.__cause__ or error)
