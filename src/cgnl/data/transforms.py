"""The paper's crops, for pictures [3, H, W] and clips [T, 3, H, W] alike: a clip is cropped and flipped as one.

Training: an area of 0.08 to 1.25 of the picture, an aspect of 3/4 to 4/3, resized to the network's size, flipped half
the time. Testing: short side to 512 and the centre 448 (or 256 and 224); for clips, short side to 256 and three crops
of 256 along the longer side.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..extras import need
from .rng import integer, uniform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ASPECT = 3 / 4, 4 / 3
"""Least and largest width / height of a random part."""


class Box(NamedTuple):
    """Part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


def random_box(height: int, width: int, source: torch.Generator, area: tuple[float, float] = (0.08, 1.25)) -> Box:
    """A part of random area, aspect and place.

    A draw that does not fit, as areas above 1 never do, is made again, ten times in all; then it is the largest centred
    part within the limits of the aspect.
    """
    for _ in range(10):
        target = height * width * uniform(*area, source)
        ratio = math.exp(uniform(math.log(ASPECT[0]), math.log(ASPECT[1]), source))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < h <= height and 0 < w <= width:
            return Box(integer(0, height - h + 1, source), integer(0, width - w + 1, source), h, w)
    return largest_centre_box(height, width)


def largest_centre_box(height: int, width: int) -> Box:
    """The largest centred part whose width / height is within the limits."""
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    return Box((height - h) // 2, (width - w) // 2, h, w)


def random_part(
    pixels: Tensor, source: torch.Generator, area: tuple[float, float] = (0.08, 1.25), flip: bool = True
) -> tuple[Tensor, bool]:
    """A random part, not yet resized, and whether it is to be mirrored. [.., 3, H, W] -> [.., 3, h, w]."""
    part = crop(pixels, random_box(pixels.shape[-2], pixels.shape[-1], source, area))
    return part, flip and bool(integer(0, 2, source))


def centre_view(pixels: Tensor, size: int, short_side: int) -> Tensor:
    """The centre, after the short side became ``short_side``. [.., 3, H, W] -> [.., 3, size, size], uint8."""
    return spread_crops(pixels, size, short_side, count=1)[0]


def spread_crops(pixels: Tensor, size: int, short_side: int, count: int = 3) -> Tensor:
    """``count`` crops spread along the longer side, centred on the other. Returns [count, .., 3, size, size], uint8."""
    height, width, boxes = spread_boxes(pixels.shape[-2], pixels.shape[-1], size, short_side, count)
    pixels = resize(pixels, height, width)
    return torch.stack([crop(pixels, box) for box in boxes])


def spread_boxes(height: int, width: int, size: int, short_side: int, count: int = 3) -> tuple[int, int, list[Box]]:
    """To what height and width a picture is resized, and which parts of that ``spread_crops`` takes."""
    if size > short_side:
        raise ValueError(f"a crop of {size} does not fit into a short side of {short_side}")
    ratio = short_side / min(height, width)
    height, width = max(short_side, round(height * ratio)), max(short_side, round(width * ratio))
    spread = [0.5] if count == 1 else [i / (count - 1) for i in range(count)]
    along = [(s, 0.5) if height > width else (0.5, s) for s in spread]
    return height, width, [Box(round((height - size) * y), round((width - size) * x), size, size) for y, x in along]


def crop(pixels: Tensor, box: Box) -> Tensor:
    """[.., 3, H, W] -> [.., 3, box.height, box.width]."""
    return pixels[..., box.top : box.top + box.height, box.left : box.left + box.width]


def resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Bilinear with antialiasing. [.., 3, H, W] -> [.., 3, height, width]."""
    resize = need("torchvision.transforms.v2.functional", "data").resize
    if width == 1:  # torch puts bytes of so narrow a picture in the wrong places
        return resize(pixels.float(), [height, width], antialias=True).round().to(pixels.dtype)
    return resize(pixels, [height, width], antialias=True)


def resize_all(parts: Sequence[Tensor], flips: Sequence[bool], size: int) -> Tensor:
    """Parts of any sizes to squares, some of them mirrored. B x [.., h, w] -> [B, .., size, size], uint8."""
    if parts[0].is_cuda:
        return resize_together(parts, flips, size)
    squares = (resize(part, size, size) for part in parts)
    return torch.stack([s.flip(-1) if flip else s for s, flip in zip(squares, flips, strict=True)])


def resize_together(parts: Sequence[Tensor], flips: Sequence[bool], size: int) -> Tensor:
    """``resize_all`` as two matrix products: one by one, starting a GPU's kernels would take longer than a step."""
    heights, widths = ([part.shape[axis] for part in parts] for axis in (-2, -1))
    lead = parts[0].shape[:-2]
    dtype = torch.float16 if parts[0].is_cuda else torch.float32  # float16 holds a pixel exactly, a weight to 1 / 2048
    padded = parts[0].new_zeros((len(parts), *lead, max(heights), max(widths)), dtype=dtype)
    for slot, part in zip(padded, parts, strict=True):
        slot[..., : part.shape[-2], : part.shape[-1]] = part
    down = bilinear_weights(heights, [False] * len(parts), size, padded.device).to(dtype)
    across = bilinear_weights(widths, flips, size, padded.device).to(dtype)
    padded = padded.flatten(1, -3)  # [B, 3, H, W]
    squares = down[:, None] @ (padded @ across.mT[:, None])  # [B, 3, size, size]
    return squares.round_().clamp_(0, 255).byte().unflatten(1, lead)


def bilinear_weights(
    lengths: Sequence[int], flips: Sequence[bool], size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """What each of ``size`` pixels takes from a row of a given length, with antialiasing. [B, size, longest]."""
    numbers = torch.tensor([lengths, flips], dtype=torch.float32)[..., None, None]  # [2, B, 1, 1]
    if torch.device(device).type == "cuda":  # from pinned memory, or the copy would wait for the step before
        numbers = numbers.pin_memory().to(device, non_blocking=True)
    length, flip = numbers
    scale = length / size
    centre = (torch.arange(size, device=device)[:, None] + 0.5) * scale  # [B, size, 1]
    centre = torch.where(flip > 0, length - centre, centre)
    place = torch.arange(max(lengths), device=device) + 0.5  # [longest]
    weights = (1 - (place - centre).abs() / scale.clamp_min(1)).clamp_min(0) * (place < length)
    return weights / weights.sum(-1, keepdim=True)


def network_input(pixels: Tensor, channels_last: bool = False) -> Tensor:
    """uint8 [B, 3, H, W], or [B, T, 3, H, W] with time put behind the channels, normalised."""
    x = normalize(pixels)
    x = x.movedim(1, 2) if x.ndim == 5 else x  # [B, 3, T, H, W]
    if not channels_last:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last_3d if x.ndim == 5 else torch.channels_last)


def normalize(pixels: Tensor) -> Tensor:
    """uint8 to float32 with ImageNet's mean and deviation; any shape whose channels stand third from the end."""
    mean, std = _mean_and_std(pixels.device)
    return (pixels / 255 - mean) / std


@functools.cache
def _mean_and_std(device: torch.device) -> tuple[Tensor, Tensor]:
    """Filled in on the device, once: a copy from the host would wait for the step before."""
    mean, std = (torch.stack([torch.full((1, 1), v, device=device) for v in values]) for values in (MEAN, STD))
    return mean, std  # [3, 1, 1]
