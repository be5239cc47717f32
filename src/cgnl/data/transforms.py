"""The paper's crops, for images [3, H, W] and clips [T, 3, H, W] alike: a clip is cropped and flipped as one.

Training: a crop of random area and aspect ratio, resized to the network's size, flipped half the time. Testing: short
side to 512 and the centre 448 (or 256 and 224); for clips, short side to 256 and three crops of 256 along the longer
side. Every random number comes from a generator seeded with (seed, epoch, sample).
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..extras import need

Colour = tuple[float, ...]
"""Red, green, blue."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's."""
AREA = 0.08, 1.25
"""The paper's smallest and largest area of a random crop, as a share of the image."""
ASPECT = 3 / 4, 4 / 3
"""Smallest and largest width / height of a random crop."""


class Box(NamedTuple):
    """A rectangle in pixels."""

    top: int
    left: int
    height: int
    width: int


def generator(seed: int, *where: int) -> torch.Generator:
    """A generator for one place, such as (epoch, sample): the same numbers in any worker and at any time."""
    digest = hashlib.blake2b(repr((seed, *where)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def uniform(low: float, high: float, rng: torch.Generator) -> float:
    """Draw a number between low and high."""
    return low + (high - low) * float(torch.rand((), generator=rng, dtype=torch.float64))


def integer(low: int, high: int, rng: torch.Generator) -> int:
    """Draw an integer, at least low and below high."""
    return int(torch.randint(low, high, (), generator=rng))


def random_box(height: int, width: int, rng: torch.Generator, area: tuple[float, float] = AREA) -> Box:
    """Draw a box of random area, aspect ratio and position.

    A box that does not fit, as areas above 1 never do, is drawn again, up to ten times; after that it is the largest
    centred box within the limits of the aspect ratio.
    """
    for _ in range(10):
        target = height * width * uniform(*area, rng)
        ratio = math.exp(uniform(math.log(ASPECT[0]), math.log(ASPECT[1]), rng))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < h <= height and 0 < w <= width:
            return Box(integer(0, height - h + 1, rng), integer(0, width - w + 1, rng), h, w)
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    return Box((height - h) // 2, (width - w) // 2, h, w)


def random_crop(
    pixels: Tensor, rng: torch.Generator, area: tuple[float, float] = AREA, flip: bool = True
) -> tuple[Tensor, bool]:
    """Crop a random box, not yet resized, and say whether to flip it. [.., 3, H, W] -> [.., 3, h, w]."""
    part = crop(pixels, random_box(pixels.shape[-2], pixels.shape[-1], rng, area))
    return part, flip and bool(integer(0, 2, rng))


def spread_crops(pixels: Tensor, size: int, short_side: int, count: int = 3) -> Tensor:
    """Resize the short side and take ``count`` crops along the longer one, or the centre.

    [.., 3, H, W] -> [count, .., 3, size, size], uint8.
    """
    height, width, boxes = spread_boxes(pixels.shape[-2], pixels.shape[-1], size, short_side, count)
    pixels = resize(pixels, height, width)
    return torch.stack([crop(pixels, box) for box in boxes])


def spread_boxes(height: int, width: int, size: int, short_side: int, count: int = 3) -> tuple[int, int, list[Box]]:
    """The height and width that ``spread_crops`` resizes to, and the boxes it then crops."""
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
    if width == 1:  # torch misplaces the bytes of images this narrow
        return resize(pixels.float(), [height, width], antialias=True).round().to(pixels.dtype)
    return resize(pixels, [height, width], antialias=True)


def resize_all(crops: Sequence[Tensor], flips: Sequence[bool], size: int) -> Tensor:
    """Resize crops of any sizes to squares and flip some. B x [.., h, w] -> [B, .., size, size], uint8."""
    if crops[0].is_cuda:
        return resize_together(crops, flips, size)
    squares = (resize(part, size, size) for part in crops)
    return torch.stack([s.flip(-1) if flip else s for s, flip in zip(squares, flips, strict=True)])


def resize_together(crops: Sequence[Tensor], flips: Sequence[bool], size: int) -> Tensor:
    """``resize_all`` as two matrix products: one by one, launching the kernels would take longer than a step."""
    heights, widths = ([part.shape[axis] for part in crops] for axis in (-2, -1))
    lead = crops[0].shape[:-2]
    dtype = torch.float16 if crops[0].is_cuda else torch.float32  # float16 holds a pixel exactly, a weight to 1 / 2048
    padded = crops[0].new_zeros((len(crops), *lead, max(heights), max(widths)), dtype=dtype)
    for slot, part in zip(padded, crops, strict=True):
        slot[..., : part.shape[-2], : part.shape[-1]] = part
    down = bilinear_weights(heights, [False] * len(crops), size, padded.device).to(dtype)
    across = bilinear_weights(widths, flips, size, padded.device).to(dtype)
    padded = padded.flatten(1, -3)  # [B, 3, H, W]
    squares = down[:, None] @ (padded @ across.mT[:, None])  # [B, 3, size, size]
    return squares.round_().clamp_(0, 255).byte().unflatten(1, lead)


def bilinear_weights(
    lengths: Sequence[int], flips: Sequence[bool], size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """The weights of an antialiased resize of rows of these lengths to ``size`` pixels. [B, size, longest]."""
    numbers = torch.tensor([lengths, flips], dtype=torch.float32)[..., None, None]  # [2, B, 1, 1]
    if torch.device(device).type == "cuda":  # a copy from pageable memory would wait for the previous step
        numbers = numbers.pin_memory().to(device, non_blocking=True)
    length, flip = numbers
    scale = length / size
    centre = (torch.arange(size, device=device)[:, None] + 0.5) * scale  # [B, size, 1]
    centre = torch.where(flip > 0, length - centre, centre)
    place = torch.arange(max(lengths), device=device) + 0.5  # [longest]
    weights = (1 - (place - centre).abs() / scale.clamp_min(1)).clamp_min(0) * (place < length)
    return weights / weights.sum(-1, keepdim=True)


def network_input(pixels: Tensor, channels_last: bool = False, mean: Colour = MEAN, std: Colour = STD) -> Tensor:
    """Normalize [B, 3, H, W], from 0 to 255, or [B, T, 3, H, W] -> [B, 3, T, H, W]."""
    x = normalize(pixels, mean, std)
    x = x.movedim(1, 2) if x.ndim == 5 else x  # [B, 3, T, H, W]
    if not channels_last:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last_3d if x.ndim == 5 else torch.channels_last)


def normalize(pixels: Tensor, mean: Colour = MEAN, std: Colour = STD) -> Tensor:
    """Convert [.., 3, H, W], from 0 to 255, to float32, less the mean and by the standard deviation of each colour."""
    return (pixels / 255 - _on_device(mean, pixels.device)) / _on_device(std, pixels.device)


@functools.cache
def _on_device(colour: Colour, device: torch.device) -> Tensor:
    """Filled in on the device, once: a copy from the host would wait for the previous step. -> [3, 1, 1]."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in colour])
