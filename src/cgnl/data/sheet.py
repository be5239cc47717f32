"""An image of a batch: a tile for each sample, with its classes below."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..extras import need
from ..text import escape
from .loading import Batch

SAMPLES, FRAMES = 16, 4
"""Most samples of a batch that are drawn, and most frames of a clip."""
LEAST_SIDE = 160
"""Pixels of the side of a tile; smaller ones are enlarged by a whole number, so that each pixel stays a square."""
GAP, BETWEEN, LETTERS, LINE = 8, 2, 14, 18
"""Pixels between tiles, between frames, of a letter's height and of a line's."""


def draw_batch(batch: Batch, classes: Sequence[str], most: int = SAMPLES) -> Any:
    """Draw the first samples of a training batch as a PIL image, pixel by pixel."""
    image, font = need("PIL.Image", "data"), need("PIL.ImageFont", "data").load_default(LETTERS)
    tiles = [tile(pixels) for pixels in batch.pixels[:most].cpu()]
    captions = [caption(label, classes) for label in batch.labels[:most].cpu()]
    columns = math.ceil(math.sqrt(len(tiles))) if batch.pixels.ndim == 4 else 2
    height, width = tiles[0].shape[:2]
    height += LINE * max(map(len, captions))
    size = columns * (width + GAP) + GAP, math.ceil(len(tiles) / columns) * (height + GAP) + GAP
    sheet = image.new("RGB", size, "white")
    pen = need("PIL.ImageDraw", "data").Draw(sheet)
    for number, (pixels, lines) in enumerate(zip(tiles, captions, strict=True)):
        left, top = GAP + number % columns * (width + GAP), GAP + number // columns * (height + GAP)
        sheet.paste(image.fromarray(pixels.numpy()), (left, top))
        for row, line in enumerate(lines):
            pen.text((left, top + len(pixels) + row * LINE), fit(line, width, font), "black", font)
    return sheet


def tile(pixels: Tensor) -> Tensor:
    """An image [3, H, W], or some frames of a clip [T, 3, H, W] side by side -> uint8 [h, w, 3]."""
    frames = pixels if pixels.ndim == 4 else pixels[None]
    shown = torch.linspace(0, len(frames) - 1, min(FRAMES, len(frames))).round().long()
    factor = math.ceil(LEAST_SIDE / min(pixels.shape[-2:]))
    large = frames[shown].round().byte().repeat_interleave(factor, -2).repeat_interleave(factor, -1)  # [T, 3, h, w]
    row = torch.cat(list(F.pad(large, (0, BETWEEN), value=255)), -1)[..., :-BETWEEN]
    return row.permute(1, 2, 0).contiguous()


def caption(label: Tensor, classes: Sequence[str]) -> list[str]:
    """The class of a sample, or its classes with their shares, largest first."""
    if label.ndim == 0:
        return [escape(classes[int(label)])]
    shares = [(share, escape(name)) for share, name in zip(label.tolist(), classes, strict=True) if share > 0]
    return [f"{share:.2f} {name}" for share, name in sorted(shares, reverse=True)]


def fit(text: str, width: int, font: Any) -> str:
    """The text, or as much of it as fits into so many pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text}..."
