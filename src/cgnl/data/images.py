"""One picture from a file, by Pillow."""

import logging
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from ..extras import need
from .index import UnreadableError

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What is read, whatever a file is called. AVIF is not: a frame may be larger than its header says, and is decoded."""
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
OTHER_SUFFIXES = frozenset({".avif", ".heic", ".heif", ".jp2", ".jxl"})
"""Of pictures that are not read."""
MAX_PIXELS = 89_478_485
"""A header that promises more than this, which Pillow warns of, is refused before anything is decoded. Of WebP half
as many are taken: its decoder keeps four copies, and 34 bytes are enough to ask for them."""
BAND = 2**22
"""Pixels that are converted at a time, so that copies of a large picture take little memory."""

logging.getLogger("PIL").addHandler(logging.NullHandler())  # what is wrong with a file is said once, by us


def is_image_file(path: Path | str) -> bool:
    """Whether the name is that of an image. Hidden files, such as ``._cat.jpg``, are none."""
    name = PurePath(path)
    return name.suffix.lower() in IMAGE_SUFFIXES and not name.name.startswith(".")


def read_image(path: Path | str) -> Tensor:
    """The first picture of a file as RGB, upright by its EXIF orientation.

    Transparent pixels are laid on white, 16-bit grey keeps its upper 8 bits.
    A file that holds no whole picture raises ``UnreadableError``.
    """
    pillow = need("PIL.Image", "data")
    try:
        with pillow.open(path, formats=FORMATS) as image:
            check_size(path, image.width, image.height, share=2 if image.format == "WEBP" else 1)
            image.load()
            return _pixels(_upright(image))
    except (UnreadableError, MemoryError):
        raise
    except pillow.DecompressionBombError:
        raise UnreadableError(path, "its pixels are too many") from None
    except pillow.UnidentifiedImageError:
        other = f"it is not an image of a kind that is read: {', '.join(FORMATS)}"
        raise UnreadableError(path, "it is empty" if is_empty(path) else other) from None
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise UnreadableError(path, reason(error)) from error


def check_size(path: Path | str, width: int, height: int, share: int = 1) -> None:
    """Refuse a picture, or a frame, that would not fit into memory with the copies that are made of it."""
    if width * height * share > MAX_PIXELS:
        raise UnreadableError(path, f"{width} x {height} pixels are too many")


def to_image(pixels: Tensor) -> Any:
    """uint8 [3, H, W] as a picture of Pillow."""
    return need("PIL.Image", "data").fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


def resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """uint8 [3, H, W] at another size, by averaging over areas."""
    numpy, box = need("numpy", "data"), need("PIL.Image", "data").Resampling.BOX
    image = to_image(pixels).resize((width, height), box)
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


def is_empty(path: Path | str) -> bool:
    """Whether a file has no bytes."""
    return Path(path).stat().st_size == 0


def reason(error: Exception) -> object:
    """What went wrong, without the error number and the name of the file."""
    return getattr(error, "strerror", None) or error


def _upright(image: Any) -> Any:
    """Turned by the EXIF orientation; a broken EXIF block says nothing about the pixels and turns nothing."""
    try:
        need("PIL.ImageOps", "data").exif_transpose(image, in_place=True)
    except Exception:
        return image
    return image


def _pixels(image: Any) -> Tensor:
    """Any picture of Pillow as RGB, band by band."""
    numpy, (width, height) = need("numpy", "data"), image.size
    pixels = torch.empty(3, height, width, dtype=torch.uint8)
    rows = max(1, BAND // max(1, width))
    shares = image.mode == "F" and image.getextrema()[1] <= 1  # of white, which is 255 otherwise
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height))) if rows < height else image
        band = band.point(lambda value: value * 255 + 0) if shares else band
        pixels[:, top : top + rows] = torch.from_numpy(numpy.array(_rgb(band))).permute(2, 0, 1)
    return pixels  # [3, H, W]


def _rgb(image: Any) -> Any:
    """Any mode of Pillow to RGB."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    pillow = need("PIL.Image", "data")
    if image.mode == "I" or image.mode.startswith("I;16"):
        numpy = need("numpy", "data")
        return pillow.fromarray((numpy.asarray(image).clip(0, 65535) >> 8).astype("uint8")).convert("RGB")
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
