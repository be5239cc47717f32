"""A sheet shows the pixels as they are, and the classes with their shares."""

import numpy as np
import torch
from PIL import ImageFont
from torch import Tensor

from cgnl.data.loading import Batch
from cgnl.data.sheet import BETWEEN, FRAMES, GAP, LINE, caption, draw_batch, fit, tile

CLASSES = ("cat", "dog", "bird")


def batch(pixels: Tensor, labels: Tensor) -> Batch:
    return Batch(pixels, labels, torch.arange(len(pixels)), ())


def get_pixels(sheet) -> Tensor:
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1)


def test_draw_batch_shows_every_pixel_of_the_first_samples():
    pixels = torch.randint(256, (20, 3, 160, 160), dtype=torch.uint8)
    sheet = get_pixels(draw_batch(batch(pixels, torch.arange(20) % 3), CLASSES))
    assert sheet.shape == (3, 4 * (160 + LINE + GAP) + GAP, 4 * (160 + GAP) + GAP)
    for number in range(16):
        top, left = GAP + number // 4 * (160 + LINE + GAP), GAP + number % 4 * (160 + GAP)
        assert torch.equal(sheet[:, top : top + 160, left : left + 160], pixels[number])
        below = sheet[:, top + 160 : top + 160 + LINE, left : left + 160]
        assert below.min() < 100  # letters


def test_draw_batch_rounds_mixed_pixels_and_has_a_line_for_each_class():
    pixels = torch.full((2, 3, 160, 160), 99.6)
    shares = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]])
    sheet = get_pixels(draw_batch(batch(pixels, shares), CLASSES))
    assert sheet.shape == (3, 160 + 2 * LINE + 2 * GAP, 2 * (160 + GAP) + GAP)
    assert (sheet[:, GAP : GAP + 160, GAP : GAP + 160] == 100).all()


def test_tile_enlarges_by_a_whole_number():
    pixels = torch.randint(256, (3, 60, 60), dtype=torch.uint8)
    large = tile(pixels)
    assert large.shape == (180, 180, 3)
    assert torch.equal(large[1::3, 1::3].permute(2, 0, 1), pixels)


def test_tile_of_a_clip_shows_frames_from_its_first_to_its_last():
    clip = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 3, 160, 160)
    row = tile(clip)
    assert row.shape == (160, FRAMES * (160 + BETWEEN) - BETWEEN, 3)
    assert row[0, :: 160 + BETWEEN, 0].tolist() == [0, 3, 6, 9]
    assert (row[:, 160 : 160 + BETWEEN] == 255).all()
    assert tile(clip[:2]).shape == (160, 2 * 160 + BETWEEN, 3)


def test_caption_names_classes_by_their_shares():
    assert caption(torch.tensor(1), CLASSES) == ["dog"]
    assert caption(torch.tensor([0.25, 0.0, 0.75]), CLASSES) == ["0.75 bird", "0.25 cat"]
    assert caption(torch.tensor(0), ("a\x1b[2J\nb",)) == ["a\\x1b[2J\\nb"]


def test_fit_cuts_what_is_too_long():
    font = ImageFont.load_default(14)
    assert fit("cat", 100, font) == "cat"
    cut = fit("a very long name of a class", 80, font)
    assert cut.endswith("...")
    assert 60 < font.getlength(cut) <= 80
