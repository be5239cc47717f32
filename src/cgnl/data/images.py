"""One picture from a file, by Pillow."""

from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from ..extras import need
from .index import UnreadableError

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 178_956_970
"""A header that promises more than this is refused before anything is decoded."""


def is_image_file(path: Path | str) -> bool:
    """Whether the name is that of an image. Hidden files, such as ``._cat.jpg``, are none."""
    name = PurePath(path)
    return name.suffix.lower() in IMAGE_SUFFIXES and not name.name.startswith(".")


def read_image(path: Path | str) -> Tensor:
    """The first picture of a file as RGB, upright by its EXIF orientation.

    Transparent pixels are laid on white, 16-bit grey keeps its upper 8 bits.
    A file that holds no whole picture raises ``UnreadableError``.
    """
    pillow, numpy = need("PIL.Image", "data"), need("numpy", "data")
    try:
        with pillow.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UnreadableError(path, f"{image.width} x {image.height} pixels are too many")
            image.load()
            pixels = numpy.array(_rgb(_upright(image)))  # [H, W, 3]
    except (UnreadableError, MemoryError):
        raise
    except pillow.DecompressionBombError:
        raise UnreadableError(path, "its pixels are too many") from None
    except pillow.UnidentifiedImageError:
        raise UnreadableError(path, "it is empty" if is_empty(path) else "it is not an image") from None
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise UnreadableError(path, reason(error)) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()  # [3, H, W]


def to_image(pixels: Tensor) -> Any:
    """uint8 [3, H, W] as a picture of Pillow."""
    return need("PIL.Image", "data").fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


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


def _rgb(image: Any) -> Any:
    """Any mode of Pillow to RGB."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    pillow = need("PIL.Image", "data")
    if image.mode == "I" or image.mode.startswith("I;16"):
        numpy = need("numpy", "data")
        return pillow.fromarray((numpy.asarray(image).clip(0, 65535) >> 8).astype("uint8")).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
