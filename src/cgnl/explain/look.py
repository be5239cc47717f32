"""What one trained network sees in one picture or clip, ready to be drawn."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ..data.transforms import network_input
from ..engine.inputs import FileInput
from ..engine.predictions import ranked
from . import figure
from .gradcam import grad_cam
from .maps import COLUMNS, attention
from .pairs import pairs


def look(
    network: nn.Module,
    classes: tuple[str, ...],
    seen: FileInput,
    at: tuple[float, ...] | None = None,
    block: str | None = None,
    group: int | None = None,
    by_group: bool = False,
    columns: int = COLUMNS,
    with_grad_cam: bool = False,
    title: str = "",
) -> figure.Row:
    """What one network attends to, ready to be drawn; ``at`` is in pixels of the file."""
    x = network_input(seen.pixels[None]).to(next(network.parameters()).device)
    result = attention(network, x, seen.place(at), block)
    (probability,), (label,) = ranked(result.output.float().softmax(1)[0], 1)
    maps = result.by_group() if by_group else result.strongest(columns, group)
    heat = grad_cam(network, x, int(label), result.block) if with_grad_cam else None
    words = f"{classes[int(label)]} ({float(probability):.1%}). "
    return figure.Row(title, result, seen.pixels, maps, words, heat, seen.frames)


def look_at_head(
    network: nn.Module,
    classes: tuple[str, ...],
    seen: FileInput,
    columns: int = COLUMNS,
    with_grad_cam: bool = False,
    title: str = "",
) -> figure.Row:
    """What the second-order head of one network sees, ready to be drawn."""
    x = network_input(seen.pixels[None]).to(next(network.parameters()).device)
    result = pairs(network, x, count=columns)
    probability = float(result.output.float().softmax(1)[0, result.target])
    heat = grad_cam(network, x, result.target) if with_grad_cam else None
    words = f"{classes[result.target]} ({probability:.1%}). "
    return figure.Row(title, result, seen.pixels, result.named, words, heat, seen.frames)


def title_of(path: str, paths: Sequence[str]) -> str:
    """The run that a checkpoint is of, and its name where that is not enough."""
    name = Path(path).resolve().parent.name
    same = [other for other in paths if Path(other).resolve().parent.name == name]
    return name if len(same) == 1 and Path(path).name in ("best.ckpt", "last.ckpt") else f"{name}/{Path(path).name}"
