"""Images from files, decoded by Pillow."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..extras import need
from .index import File, StoredFile, UnreadableError, refuse_endless

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are read, whatever the file name says. Not AVIF: its frames may be larger than the header says."""
MAX_PIXELS = 89_478_485
"""Larger images are refused by their header; the limit at which Pillow warns. WebP gets half, because its decoder keeps
four copies and 34 bytes are enough to ask for them."""
BAND = 2**22
"""Pixels converted at a time, so that copies of a large image take little memory."""

logging.getLogger("PIL").addHandler(logging.NullHandler())  # problems with a file are reported once, by us


def read_image(path: File, annotated: tuple[int, int] | None = None) -> Tensor:
    """Read the first image of a file as RGB, uint8 [3, H, W], rotated by its EXIF orientation.

    Transparent pixels become white, 16-bit grey keeps its upper 8 bits. In a TIFF, 32-bit floats up to 1 are shares of
    white, and floats and whole numbers up to 255 are read as they are; larger floats are refused.
    A file without a complete image raises ``UnreadableError``.

    Args:
        path: the file.
        annotated: height and width that it was annotated at. If it has them only as it is stored, it is not rotated.
    """
    pillow = need("PIL.Image", "data")
    refuse_endless(path)
    try:
        source = path.open() if isinstance(path, StoredFile) else path
        with pillow.open(source, formats=FORMATS) as image:
            check_size(path, image.width, image.height, copies=2 if image.format == "WEBP" else 1)
            image.load()
            return _to_tensor(_turn_upright(image, annotated))
    except (UnreadableError, MemoryError):
        raise
    except pillow.DecompressionBombError:
        raise UnreadableError(path, f"its pixels are too many: at most {MAX_PIXELS:,} are read") from None
    except pillow.UnidentifiedImageError:
        other = f"it is not an image of a kind that is read: {', '.join(FORMATS)}"
        raise UnreadableError(path, "it is empty" if is_empty(path) else other) from None
    except Exception as error:  # Pillow's decoders raise anything on a damaged file
        raise UnreadableError(path, error) from error


def read_size(path: Path) -> tuple[int, int]:
    """Height and width of an image by its header, as ``read_image`` returns it."""
    refuse_endless(path)
    try:
        with need("PIL.Image", "data").open(path, formats=FORMATS) as image:
            return _shown_size(image)
    except Exception as error:  # Pillow raises anything on a damaged file
        raise UnreadableError(path, error) from error


def turns_in_place(path: Path) -> bool:
    """Whether the EXIF orientation turns or mirrors an image but leaves its height and width as they are stored."""
    try:
        with need("PIL.Image", "data").open(path, formats=FORMATS) as image:
            return _orientation(image) != 1 and _shown_size(image) == (image.height, image.width)
    except Exception:  # a broken EXIF block turns nothing
        return False


def _orientation(image: Any) -> int:
    """EXIF's number, from 1 (upright) to 8."""
    number = image.getexif().get(0x0112, 1)
    return number if number in range(1, 9) else 1


def _shown_size(image: Any) -> tuple[int, int]:
    """Height and width after the rotation by EXIF."""
    swaps = _orientation(image) >= 5
    return (image.width, image.height) if swaps else (image.height, image.width)


def check_size(path: File, width: int, height: int, copies: int = 1) -> None:
    """Refuse an image or frame that would not fit into memory together with its copies."""
    if width * height * copies > MAX_PIXELS:
        most = MAX_PIXELS // copies
        raise UnreadableError(path, f"{width} x {height} pixels are too many: at most {most:,} are read")


def to_image(pixels: Tensor) -> Any:
    """Convert uint8 [3, H, W] to a Pillow image."""
    return need("PIL.Image", "data").fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


def to_pixels(image: Any) -> Tensor:
    """Convert an image or a clip to uint8 [.., 3, H, W].

    Args:
        image: a Pillow image, which its EXIF orientation rotates, or bytes: [H, W] in grey, [H, W, C], of clips
            [T, H, W, 3], or as a tensor [C, H, W] and [T, 3, H, W]; C is 3, 1 (grey) or 4 (with transparency).
    """
    numpy, pillow = need("numpy", "data"), need("PIL.Image", "data")
    if isinstance(image, pillow.Image):
        return _to_tensor(_turn_upright(image))
    tensor = image.cpu() if isinstance(image, Tensor) else torch.from_numpy(numpy.array(image))
    if tensor.dtype != torch.uint8:
        raise ValueError(f"an image must hold bytes, from 0 to 255 (uint8), not {tensor.dtype}")
    if not tensor.numel():
        raise ValueError(f"an image must have pixels, and {list(tensor.shape)} has none")
    if tensor.ndim == 2:
        return tensor.expand(3, -1, -1)
    axis = -3 if isinstance(image, Tensor) else -1
    if tensor.ndim not in (3, 4) or tensor.shape[axis] not in ((3, 1, 4) if tensor.ndim == 3 else (3,)):
        shape = "[{}, H, W]" if isinstance(image, Tensor) else "[H, W, {}]"
        forms = ", ".join(shape.format(channels) for channels in (3, 1, 4))
        clip = shape.format(3).replace("[", "[T, ")
        raise ValueError(f"an image must be {forms} or [H, W], a clip {clip}, not {list(tensor.shape)}")
    tensor = tensor.movedim(axis, -3)
    if len(tensor) == 4 and tensor.ndim == 3:
        return _to_tensor(pillow.fromarray(tensor.permute(1, 2, 0).contiguous().numpy()))
    return tensor.expand(3, -1, -1) if tensor.ndim == 3 else tensor


def resize_by_area(pixels: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 [3, H, W] by averaging over areas."""
    numpy, box = need("numpy", "data"), need("PIL.Image", "data").Resampling.BOX
    image = to_image(pixels).resize((width, height), box)
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)


def is_empty(path: File) -> bool:
    """Whether a file has no bytes."""
    return not path.read_bytes() if isinstance(path, StoredFile) else path.stat().st_size == 0


def _turn_upright(image: Any, annotated: tuple[int, int] | None = None) -> Any:
    """Rotate a Pillow image by its EXIF orientation, unless it fits its annotations only as it is stored."""
    with contextlib.suppress(Exception):  # a broken EXIF block says nothing about the pixels
        as_stored = annotated == (image.height, image.width) != _shown_size(image)
        if not as_stored and _orientation(image) != 1:
            return need("PIL.ImageOps", "data").exif_transpose(image)
    return image


def _to_tensor(image: Any) -> Tensor:
    """Convert a Pillow image of any mode to RGB, band by band."""
    numpy, (width, height) = need("numpy", "data"), image.size
    pixels = torch.empty(3, height, width, dtype=torch.uint8)
    rows = max(1, BAND // max(1, width))
    factor = _find_factor(image)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height))) if rows < height else image
        band = band.point(lambda value: value * factor + 0) if factor != 1 else band
        pixels[:, top : top + rows] = torch.from_numpy(numpy.array(_to_rgb(band))).permute(2, 0, 1)
    return pixels  # [3, H, W]


def _find_factor(image: Any) -> int:
    """What brings the values of an image to the range of its mode: floats to 255, whole numbers to 16 bits."""
    if image.mode != "F" and (image.mode != "I" or image.format in ("PNG", "PPM")):  # whose 16 bits Pillow widens
        return 1
    most = image.getextrema()[1]
    if most >= (256 if image.mode == "F" else 65536):
        raise ValueError(f"its values reach {most:g}: floats up to 255 and whole numbers up to 65535 are read")
    if image.mode == "F":
        return 255 if most <= 1 else 1
    return 256 if most <= 255 else 1


def _to_rgb(image: Any) -> Any:
    """Convert any mode of Pillow to RGB."""
    pillow, numpy = need("PIL.Image", "data"), need("numpy", "data")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return pillow.fromarray((numpy.asarray(image).clip(0, 65535) >> 8).astype("uint8")).convert("RGB")
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
