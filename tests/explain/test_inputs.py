"""A file as an input: which pixels are seen, and where they are in the file."""

from dataclasses import replace

import pytest
import torch

from cgnl.data.transforms import Box
from cgnl.explain.inputs import FileInput, whole_input


@pytest.fixture
def seen() -> FileInput:
    """The middle 20 x 20 of 30 x 60, which is a file of 90 x 180 at a third of its size."""
    original = torch.arange(90 * 180).view(1, 90, 180).expand(3, -1, -1)
    return FileInput(original, original[:, ::3, ::3], Box(5, 20, 20, 20), 90, 180)


def test_box_is_the_view_in_the_file(seen):
    assert seen.box == Box(15, 60, 60, 60)
    assert seen.box_in(45, 90) == Box(8, 30, 30, 30)
    assert seen.pixels.shape == (3, 20, 20)
    assert seen.inside(60, 15) == (0, 0)
    assert seen.in_file(*seen.inside(77, 33)) == pytest.approx((77, 33))
    assert (seen.whole, whole_input(seen.original).whole) == (False, True)


@pytest.mark.parametrize(("height", "width"), [(1, 400), (400, 1), (2, 3000), (1, 1)])
def test_files_of_few_rows_or_columns_have_a_view(height, width):
    """The view of a file that is much longer than wide may be less than one of its pixels across."""
    ratio = 70 / min(height, width)
    resized = torch.zeros(3, round(height * ratio), round(width * ratio))
    box = Box((resized.shape[1] - 64) // 2, (resized.shape[2] - 64) // 2, 64, 64)
    seen = FileInput(torch.zeros(3, height, width), resized, box, height, width)
    assert min(seen.box[2:]) >= 1
    assert seen.box.top + seen.box.height <= height
    assert seen.box.left + seen.box.width <= width
    moved = seen.containing((width - 1, height - 1))
    assert all(0 <= n < 64 for n in moved.place((width - 1, height - 1)))


@pytest.mark.parametrize("x", [0, 0.4, 59, 60, 100, 119, 120, 179, 179.9])
@pytest.mark.parametrize("y", [0, 14, 15, 74, 75, 89.9])
def test_every_position_of_a_file_can_be_seen(seen, x, y):
    moved = seen.containing((x, y))
    box = moved.box
    assert box.left <= x < box.left + box.width
    assert box.top <= y < box.top + box.height
    assert box.left + box.width <= 180
    assert box.top + box.height <= 90
    assert moved.pixels.shape == (3, 20, 20)
    usual = 60 <= x < 120 and 15 <= y < 75
    assert (moved is seen) is (moved.usual is None) is usual
    column, row = moved.place((x, y))
    assert int(moved.pixels[0, int(row), int(column)]) == int(y / 3) * 3 * 180 + int(x / 3) * 3


def test_view_moves_back_and_stays(seen):
    moved = seen.containing((5, 5))
    assert moved.containing((5, 5)) is moved
    assert moved.containing((61, 20)).crop == seen.crop  # although the moved view may have it, too
    assert moved.containing(None) is moved


@pytest.mark.parametrize("at", [(180, 5), (-1, 5), (5, 90), (5, -0.1)])
def test_positions_outside_the_file_are_refused(seen, at):
    with pytest.raises(ValueError, match="is outside the file, which has 180 x 90 pixels"):
        seen.containing(at)


def test_place_names_frames(seen):
    clip = replace(seen, frames=(4, 6, 8))
    assert clip.place((60, 15, 7.1)) == (0, 0, 2)
    assert clip.place(None) == (10, 10, 0)
    with pytest.raises(ValueError, match="frame 9, and the network sees frames 4 to 8"):
        clip.place((60, 15, 9))
    with pytest.raises(ValueError, match="has 3 numbers"):
        seen.place((1, 2, 3))
