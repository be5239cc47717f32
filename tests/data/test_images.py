"""Pictures of every mode, and files that are none."""

import logging
import os
import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.fuzz_bombs import bombs
from cgnl.data import images
from cgnl.data.images import read_image
from cgnl.data.index import IMAGE_SUFFIXES, UnreadableError, is_image_file
from cgnl.data.video import probe

Image = pytest.importorskip("PIL.Image")

BOMBS = {name: content for name, content in bombs().items() if name != "still.png"}
RGB = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def save(path, image, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("read", [read_image, images.read_size, lambda path: probe(path).frames])
def test_pipes_are_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UnreadableError, match=r"a\.png cannot be read: it is a pipe"):
        read(tmp_path / "a.png")


def test_rgb_is_read_as_stored(tmp_path):
    image = read_image(save(tmp_path / "a.png", Image.fromarray(RGB)))
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert torch.equal(image, torch.from_numpy(RGB).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "F"])
def test_every_mode_becomes_rgb(tmp_path, mode):
    source = Image.fromarray(RGB)
    image = Image.new("I;16", (9, 6), 40000) if mode == "I;16" else source.convert("L" if mode == "F" else mode)
    packed = {"compression": "jpeg"} if mode == "YCbCr" else {}  # unpacked, Pillow 12 cannot read what it writes
    read = read_image(save(tmp_path / "a.tif", image.convert("F") if mode == "F" else image, **packed))
    assert read.shape == (3, 6, 9)
    assert read.float().std() > 0 or mode == "I;16"


@pytest.mark.parametrize("rows", [6, 2])
def test_floats_up_to_one_are_shares_of_white(tmp_path, monkeypatch, rows):
    monkeypatch.setattr("cgnl.data.images.BAND", 9 * rows)
    values = np.linspace(0, 1, 54, dtype=np.float32).reshape(6, 9)
    for name, image in {"shares.tif": values, "bytes.tif": values * 255}.items():
        read = read_image(save(tmp_path / name, Image.fromarray(image)))
        assert (read.float() - torch.from_numpy(values) * 255).abs().max() <= 1


def test_whole_numbers_of_32_bits_are_bytes_or_16_bits(tmp_path):
    values = np.arange(54, dtype=np.int32).reshape(6, 9)
    for name, image, expected in (("a.tif", values, values), ("b.tif", values * 1200, values * 1200 // 256)):
        read = read_image(save(tmp_path / name, Image.fromarray(image)))
        assert torch.equal(read[0], torch.from_numpy(expected.astype(np.uint8)))


@pytest.mark.parametrize("image", [np.full((6, 9), 1000, np.float32), np.full((6, 9), 70_000, np.int32)])
def test_values_of_an_unknown_range_are_refused(tmp_path, image):
    assert "its values reach" in refused(save(tmp_path / "a.tif", Image.fromarray(image)))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_16_bit_grey_keeps_its_upper_bits(tmp_path, suffix):
    values = np.arange(54, dtype=np.uint16).reshape(6, 9) * 1200
    image = read_image(save(tmp_path / f"a{suffix}", Image.fromarray(values)))
    assert torch.equal(image, torch.from_numpy((values >> 8).astype(np.uint8)).expand(3, -1, -1))


def test_transparent_pixels_are_white(tmp_path):
    pixels = np.dstack([RGB, np.full((6, 9), 255, np.uint8)])
    pixels[0, 0, 3] = 0
    image = read_image(save(tmp_path / "a.png", Image.fromarray(pixels)))
    assert image[:, 0, 0].tolist() == [255, 255, 255]
    assert torch.equal(image[:, 1:], torch.from_numpy(RGB).permute(2, 0, 1)[:, 1:])

    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    image = read_image(save(tmp_path / "p.png", palette, transparency=0))
    assert image[:, 0].T.tolist() == [[255, 255, 255], [40, 50, 60]]


def test_cmyk_jpeg(tmp_path):
    image = read_image(save(tmp_path / "a.jpg", Image.new("CMYK", (16, 8), (0, 255, 255, 0)), quality=95))
    assert (image.float().mean((1, 2)) - torch.tensor([255.0, 0.0, 0.0])).abs().max() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read_image(save(tmp_path / "a.png", Image.fromarray(RGB), exif=exif))
    upright = torch.from_numpy(RGB).permute(2, 0, 1)
    turned = {
        1: upright,
        2: upright.flip(2),
        3: upright.flip(1, 2),
        4: upright.flip(1),
        5: upright.transpose(1, 2),
        6: upright.rot90(-1, (1, 2)),
        7: upright.flip(1, 2).transpose(1, 2),
        8: upright.rot90(1, (1, 2)),
    }
    assert torch.equal(image, turned[orientation])
    assert torch.equal(images.to_pixels(Image.open(tmp_path / "a.png")), turned[orientation])


@pytest.mark.parametrize("shape", [(6, 9), (6, 9, 1), (6, 9, 3), (6, 9, 4)])
def test_arrays_and_tensors_are_what_pillow_makes_of_them(shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    expected = images.to_pixels(Image.fromarray(array.squeeze()))
    tensor = torch.from_numpy(array if array.ndim == 2 else array.transpose(2, 0, 1).copy())
    assert torch.equal(images.to_pixels(array), expected)
    assert torch.equal(images.to_pixels(tensor), expected)


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0), (0, 4, 4, 3)])
def test_arrays_without_pixels_are_refused(shape):
    with pytest.raises(ValueError, match=rf"{re.escape(str(list(shape)))} has none"):
        images.to_pixels(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(6, 9, 2), (2, 6, 9, 4), (9,)])
def test_arrays_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=rf"\[H, W, 3\], .* \[H, W\], .* not {re.escape(str(list(shape)))}"):
        images.to_pixels(np.zeros(shape, np.uint8))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_broken_exif_block_does_not_matter(tmp_path):
    path = save(tmp_path / "a.jpg", Image.fromarray(RGB), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_image(path).shape == (3, 6, 9)


def make_png(width, height):
    """A PNG whose header promises this size and whose data holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def refused(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(UnreadableError) as caught:
            read_image(path)
    message = str(caught.value)
    assert message.startswith(f"{path} cannot be read: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".bmp", ".tif", ".webp"])
def test_truncated_files_are_refused(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = save(tmp_path / f"a{suffix}", Image.fromarray(noise))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(path)


def test_what_is_no_image_is_refused(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    assert refused(path).endswith("it is empty")
    path.write_text("not a picture")
    assert refused(path).endswith("it is not an image of a kind that is read: BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP")
    path.write_bytes(make_png(8, 8))
    refused(path)
    assert refused(tmp_path / "none.jpg").endswith("No such file or directory")
    refused(tmp_path)


def test_too_many_pixels_are_refused_by_the_header(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    path.write_bytes(make_png(60000, 60000))
    assert "too many: at most 89,478,485 are read" in refused(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert "60000 x 60000 pixels are too many: at most 89,478,485 are read" in refused(path)


def peak() -> int:
    """Highest use of memory since the mark was set, in MiB."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) // 1024


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system does not say how much was used")
@pytest.mark.parametrize("name", BOMBS)
def test_small_files_take_little_memory_whatever_they_claim(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BOMBS[name])
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    if name in ("frames.gif", "bomb.tif"):  # only the first frame is read; of two sizes in a TIFF, the last one counts
        assert read_image(path).shape == (3, 16, 16)
    else:
        refused(path)
    assert peak() - before < 100


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "CMYK", "I;16"])
def test_bands_make_the_whole(tmp_path, monkeypatch, mode):
    source = Image.fromarray(RGB)
    image = Image.fromarray(RGB[..., 0].astype(np.uint16) * 256) if mode == "I;16" else source.convert(mode)
    path = save(tmp_path / "a.tif", image)
    whole = read_image(path)
    monkeypatch.setattr(images, "BAND", 20)
    assert torch.equal(read_image(path), whole)


def test_names_of_images():
    assert all(map(is_image_file, ["a.jpg", "b/A.JPEG", "c.d.png"]))
    assert not any(map(is_image_file, ["a.mp4", "jpg", "a", "._a.jpg", ".jpg", "a.jpg.txt"]))


@pytest.mark.parametrize("name", ["a.avif", "a.tga", "a.eps"])
def test_files_of_other_kinds_are_no_images_by_any_name(tmp_path, name):
    """Pillow's reader of AVIF decodes frames of any size, that of EPS runs Ghostscript."""
    try:
        other = save(tmp_path / name, Image.fromarray(RGB))
    except (KeyError, OSError):
        pytest.skip("this Pillow does not write it")
    assert not is_image_file(other)
    assert "not an image of a kind that is read" in refused(other)
    assert "not an image of a kind that is read" in refused(other.rename(tmp_path / "a.jpg"))


def test_every_suffix_is_of_a_kind_that_is_read(tmp_path):
    for suffix in IMAGE_SUFFIXES:
        assert read_image(save(tmp_path / f"a{suffix}", Image.fromarray(RGB))).shape == (3, 6, 9)
    pair = save(tmp_path / "pair.jpg", Image.fromarray(RGB), format="MPO", save_all=True)  # as telephones write it
    assert read_image(pair).shape == (3, 6, 9)


def test_pillow_says_nothing_by_itself(tmp_path, monkeypatch, capsys):
    """Where nobody listens to its log, it would be printed."""
    path = save(tmp_path / "a.tif", Image.fromarray(RGB))
    three, many = (struct.pack("<HHIHH", 277, 3, 1, samples, 0) for samples in (3, 134))
    assert three in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(three, many))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    refused(path)
    assert capsys.readouterr() == ("", "")
