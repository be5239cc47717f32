"""Datasets generated from a seed, for trying things without a download.

* ``parts``: the class is which two colours stand on the left and on the right.
* ``relation``: the class is whether two parts have the same colour, out of eight. One part says nothing, and a linear
  classifier on both colours gives one half to every image; they are further apart than a ResNet-18 sees at its block.
* ``actions``: the class is who passes the ball to whom. The ball's tail tells a single frame which way it flies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..atomic_io import naming_if_full
from .images import to_image
from .index import require_new_folder
from .transforms import Box, generator, integer, uniform

COLOURS = {
    "red": (230, 60, 50),
    "green": (50, 180, 70),
    "blue": (60, 90, 230),
    "yellow": (235, 200, 40),
    "cyan": (60, 220, 220),
    "magenta": (220, 60, 220),
    "orange": (240, 130, 20),
    "white": (250, 250, 250),
}
PARTS = tuple(f"{a}-{b}" for a in list(COLOURS)[:4] for b in list(COLOURS)[:4] if a != b)
RELATION = ("different", "same")
PLAYERS = ("red", "green", "blue")
ACTIONS = tuple(f"{a} passes to {b}" for a in PLAYERS for b in PLAYERS if a != b)


@dataclass(frozen=True)
class Drawing:
    """An image [3, H, W] or a clip [T, 3, H, W] in uint8, its class, and the boxes of its two parts."""

    pixels: Tensor
    label: int
    parts: tuple[Box, Box]


def parts(seed: int, index: int, size: int = 64) -> Drawing:
    """Sample ``index``: a disc in the left third, one of another colour in the right third, grey ones anywhere."""
    rng = generator(seed, index)
    label = integer(0, len(PARTS), rng)
    canvas = _noise((3, size, size), rng)
    for _ in range(3):
        _disc(canvas, *_place(size, (0, size), size / 12, rng), size / 12, (128, 128, 128))
    first, second = PARTS[label].split("-")
    left = _part(canvas, first, (0, size / 3), size / 10, rng)
    right = _part(canvas, second, (2 * size / 3, size), size / 10, rng)
    return Drawing(canvas.clamp(0, 255).byte(), label, (left, right))


def relation(seed: int, index: int, height: int = 64, width: int = 256) -> Drawing:
    """Sample ``index``: two discs at the ends, of one colour half of the time."""
    rng = generator(seed, index)
    label, first = integer(0, 2, rng), integer(0, len(COLOURS), rng)
    second = first if label else (first + integer(1, len(COLOURS), rng)) % len(COLOURS)
    canvas = _noise((3, height, width), rng)
    left = _part(canvas, list(COLOURS)[first], (0, width / 8), height / 10, rng)
    right = _part(canvas, list(COLOURS)[second], (width - width / 8, width), height / 10, rng)
    return Drawing(canvas.clamp(0, 255).byte(), label, (left, right))


def actions(seed: int, index: int, frames: int = 16, size: int = 64) -> Drawing:
    """Sample ``index``: three players drift about, and a ball with a fading tail flies from one to another."""
    rng = generator(seed, index)
    label = integer(0, len(ACTIONS), rng)
    giver, taker = (PLAYERS.index(name) for name in ACTIONS[label].split(" passes to "))
    rows = torch.randperm(3, generator=rng)
    starts = [_place(size, (0, size), size / 8, rng) for _ in PLAYERS]
    starts = [((int(row) + 0.5) * size / 3, x) for row, (_, x) in zip(rows, starts, strict=True)]  # a third each
    drifts = [(uniform(-0.2, 0.2, rng), uniform(-0.5, 0.5, rng)) for _ in PLAYERS]
    begin, end = uniform(0, 0.3, rng), uniform(0.7, 1, rng)
    clip = _noise((frames, 3, size, size), rng)
    for t in range(frames):
        where = [(y + t * dy, x + t * dx) for (y, x), (dy, dx) in zip(starts, drifts, strict=True)]
        for name, (y, x) in zip(PLAYERS, where, strict=True):
            _disc(clip[t], y, x, size / 12, COLOURS[name])
        for age in (3, 2, 1, 0):  # the tail first, the ball on top
            flown = min(max(((t - 1.5 * age) / (frames - 1) - begin) / (end - begin), 0), 1)
            y, x = (a + flown * (b - a) for a, b in zip(where[giver], where[taker], strict=True))
            _disc(clip[t], y, x, size / 24, (255 - 45 * age,) * 3)
    first, second = (_box(*starts[i], size / 12, size, size) for i in (giver, taker))
    return Drawing(clip.clamp(0, 255).byte(), label, (first, second))


SYNTHETIC: dict[str, tuple[tuple[str, ...], Callable[..., Drawing]]] = {
    "parts": (PARTS, parts),
    "relation": (RELATION, relation),
    "actions": (ACTIONS, actions),
}
"""Name -> (classes, function of seed and index, and of the size in tests)."""


def draw(dataset: str, root: Path | str, count: int, seed: int = 0) -> tuple[str, ...]:
    """Write samples to class folders of a new folder, as PNG files or folders of them, and return the classes."""
    if count < 1:
        raise ValueError(f"count = {count} must be at least 1")
    root = require_new_folder(root)
    classes, sample = SYNTHETIC[dataset]
    with naming_if_full(root):
        for index in range(count):
            drawing = sample(seed, index)
            path = root / classes[drawing.label] / f"{index:05}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if drawing.pixels.ndim == 3:
                to_image(drawing.pixels).save(path.with_suffix(".png"))
                continue
            path.mkdir()
            for number, frame in enumerate(drawing.pixels):
                to_image(frame).save(path / f"{number:03}.png")
    return classes


def _noise(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return 60 + 30 * torch.randn(shape, generator=rng)


def _place(height: int, columns: tuple[float, float], margin: float, rng: torch.Generator) -> tuple[float, float]:
    """(y, x) of a centre, so that a disc of radius ``margin`` is inside."""
    y = uniform(margin, height - margin, rng)
    return y, uniform(columns[0] + margin, columns[1] - margin, rng)


def _part(canvas: Tensor, colour: str, columns: tuple[float, float], radius: float, rng: torch.Generator) -> Box:
    """Paint a disc somewhere in these columns and return its box."""
    y, x = _place(canvas.shape[-2], columns, radius, rng)
    _disc(canvas, y, x, radius, COLOURS[colour])
    return _box(y, x, radius, canvas.shape[-2], canvas.shape[-1])


def _disc(canvas: Tensor, y: float, x: float, radius: float, colour: tuple[int, ...]) -> None:
    """Paint a disc, in place, on [3, H, W]."""
    rows, columns = (torch.arange(n) for n in canvas.shape[-2:])
    inside = (rows - y).square()[:, None] + (columns - x).square() <= radius**2  # [H, W]
    canvas[:, inside] = torch.tensor(colour, dtype=canvas.dtype)[:, None]


def _box(y: float, x: float, radius: float, height: int, width: int) -> Box:
    top, left = max(0, round(y - radius)), max(0, round(x - radius))
    return Box(top, left, min(height, round(y + radius)) - top, min(width, round(x + radius)) - left)
