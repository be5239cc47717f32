"""The paper's crops, for pictures [3, H, W] and clips [T, 3, H, W] alike: a clip is cropped and flipped as one.

Training: an area of 0.08 to 1.25 of the picture, an aspect of 3/4 to 4/3, resized to the network's size, flipped half
the time. Testing: short side to 512 and the centre 448 (or 256 and 224); for clips, short side to 256 and three crops
of 256 along the longer side.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..extras import need
from .draws import integer, uniform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Box(NamedTuple):
    """Part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


def random_box(
    height: int,
    width: int,
    source: torch.Generator,
    area: tuple[float, float] = (0.08, 1.25),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """A part of random area, aspect and place.

    A draw that does not fit, as areas above 1 never do, is made again, ten times in all; then it is the largest centred
    part within the limits of the aspect.
    """
    for _ in range(10):
        target = height * width * uniform(*area, source)
        ratio = math.exp(uniform(math.log(aspect[0]), math.log(aspect[1]), source))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < h <= height and 0 < w <= width:
            return Box(integer(0, height - h + 1, source), integer(0, width - w + 1, source), h, w)
    return largest_centre_box(height, width, aspect)


def largest_centre_box(height: int, width: int, aspect: tuple[float, float] = (3 / 4, 4 / 3)) -> Box:
    """The largest centred part whose width / height is within the limits."""
    w = min(width, round(height * aspect[1]))
    h = min(height, round(width / aspect[0]))
    return Box((height - h) // 2, (width - w) // 2, h, w)


def train_view(pixels: Tensor, size: int, source: torch.Generator, area=(0.08, 1.25), flip: bool = True) -> Tensor:
    """A random part, resized to size x size and perhaps flipped. [.., 3, H, W] -> [.., 3, size, size], uint8."""
    view = resize(crop(pixels, random_box(pixels.shape[-2], pixels.shape[-1], source, area)), size, size)
    return view.flip(-1) if flip and integer(0, 2, source) else view


def centre_view(pixels: Tensor, size: int, short_side: int) -> Tensor:
    """The centre, after the short side became ``short_side``. [.., 3, H, W] -> [.., 3, size, size], uint8."""
    return spread_crops(pixels, size, short_side, count=1)[0]


def spread_crops(pixels: Tensor, size: int, short_side: int, count: int = 3) -> Tensor:
    """``count`` crops spread along the longer side, centred on the other. Returns [count, .., 3, size, size], uint8."""
    if size > short_side:
        raise ValueError(f"a crop of {size} does not fit into a short side of {short_side}")
    height, width = pixels.shape[-2:]
    ratio = short_side / min(height, width)
    pixels = resize(pixels, max(short_side, round(height * ratio)), max(short_side, round(width * ratio)))
    height, width = pixels.shape[-2:]
    spread = [0.5] if count == 1 else [i / (count - 1) for i in range(count)]
    along = [(s, 0.5) if height > width else (0.5, s) for s in spread]
    boxes = [Box(round((height - size) * y), round((width - size) * x), size, size) for y, x in along]
    return torch.stack([crop(pixels, box) for box in boxes])


def crop(pixels: Tensor, box: Box) -> Tensor:
    """[.., 3, H, W] -> [.., 3, box.height, box.width]."""
    return pixels[..., box.top : box.top + box.height, box.left : box.left + box.width]


def resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Bilinear with antialiasing. [.., 3, H, W] -> [.., 3, height, width]."""
    functional = need("torchvision.transforms.v2.functional", "data")
    return functional.resize(pixels, [height, width], antialias=True)


def network_input(pixels: Tensor, channels_last: bool = False) -> Tensor:
    """uint8 [B, 3, H, W], or [B, T, 3, H, W] with time put behind the channels, normalised."""
    x = normalize(pixels)
    x = x.movedim(1, 2) if x.ndim == 5 else x  # [B, 3, T, H, W]
    if not channels_last:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last_3d if x.ndim == 5 else torch.channels_last)


def normalize(pixels: Tensor) -> Tensor:
    """uint8 to float32 with ImageNet's mean and deviation; any shape whose channels stand third from the end."""
    mean, std = (torch.tensor(v, device=pixels.device).view(3, 1, 1) for v in (MEAN, STD))
    return (pixels / 255 - mean) / std
