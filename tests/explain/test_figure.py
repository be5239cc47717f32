"""What is drawn is where the map says."""

import errno
import itertools
from dataclasses import replace

import av
import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import nn

import cgnl
from cgnl.data.transforms import Box
from cgnl.data.video import write_video
from cgnl.explain import Map, attention
from cgnl.explain.figure import (
    FADED,
    LARGEST,
    RATE,
    Row,
    draw,
    fit,
    frames,
    mark_border,
    outline,
    paint,
    save,
    shrink,
)
from cgnl.explain.inputs import FileInput, whole_input
from cgnl.explain.verdict import Verdict


def rows(ndim: int, *blocks) -> list[Row]:
    """One sample through networks whose grid is half as fine."""
    convolution = nn.Conv2d if ndim == 2 else nn.Conv3d
    size = (8, 12) if ndim == 2 else (4, 8, 12)
    made = []
    for number, block in enumerate(blocks):
        torch.manual_seed(number)
        model = nn.Sequential(convolution(3, 8, 2, stride=2), block)
        result = attention(model, torch.randn(1, 3, *size), (5, 3, 2)[:ndim])
        pixels = torch.full((3, *size) if ndim == 2 else (size[0], 3, *size[1:]), 100, dtype=torch.uint8)
        seen = whole_input(pixels, () if ndim == 2 else range(size[0]))
        made.append(Row(f"net{number}", result, seen, result.strongest(), "owl (90.0%). "))
    return made


def cropped(row: Row) -> Row:
    """The same row where the network saw 16 x 24 of 20 x 60 pixels, from (30, 2) on, at half their size."""
    original = torch.full((3, 20, 60), 100, dtype=torch.uint8)
    resized = torch.zeros(3, 10, 30, dtype=torch.uint8)
    return replace(row, seen=FileInput(original, resized, Box(1, 15, 8, 12), 20, 60))


def test_outline_is_the_edges_of_the_mask():
    mask = torch.tensor([[False, True, True], [False, False, True]])
    edges = {frozenset(map(tuple, pair)) for pair in outline(mask, 20, 30).tolist()}
    points = [(10, 0), (20, 0), (30, 0), (30, 10), (30, 20), (20, 20), (20, 10), (10, 10), (10, 0)]
    assert edges == {frozenset(pair) for pair in itertools.pairwise(points)}
    assert len(outline(torch.zeros(2, 3, dtype=torch.bool), 20, 30)) == 0


def test_draw_has_the_columns_of_the_paper():
    two = rows(2, cgnl.CGNL(8, 8, groups=2), cgnl.NonLocal(8, 4))
    figure = draw(two, parts={"beak": (3.0, 4.0), "tail": (99.0, 4.0)})
    titles = [axis.get_title() for axis in figure.axes]
    chosen = [m.name.replace(", ", "\n") for m in two[0].maps]
    assert titles == ["reference", *chosen, "true parts", "reference", "all channels", "", "", "", "", "true parts"]
    (offsets,) = [c.get_offsets() for c in figure.axes[6].collections]
    assert offsets.tolist() == [[3.0, 4.0]]  # the tail is not in the picture
    caption = figure._supxlabel.get_text().replace("\n", " ")
    assert "net0: owl (90.0%). 1: CGNL, Dot(), 2 groups, rank 1" in caption
    assert "net1: owl (90.0%). 1: non-local, softmax" in caption
    assert "at 0.7 or above" in caption


def test_titles_have_room_above_them():
    figure = draw(rows(2, cgnl.CGNL(8, 8, groups=2), cgnl.NonLocal(8, 4)))
    figure.draw_without_rendering()
    top = max(axis.title.get_window_extent().y1 for axis in figure.axes)
    assert (figure.bbox.y1 - top) / figure.dpi > 0.06  # inches


def test_draw_marks_reference_and_related_patches():
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    panel = draw([row], threshold=0.5).axes[1]
    (green,) = [p for p in panel.patches if isinstance(p, Rectangle)]
    assert (green.get_xy(), green.get_width(), green.get_height()) == ((4, 2), 2, 2)
    related = row.maps[0].related(0.5)
    drawn = [c for c in panel.collections if isinstance(c, LineCollection)][-1].get_segments()
    assert np.array_equal(np.array(drawn), outline(related, 8, 12).numpy())
    picture = panel.images[0].get_array()
    bright = related.repeat_interleave(2, 0).repeat_interleave(2, 1).numpy()
    assert (picture[bright] == 100).all()
    assert (picture[~bright] == 40).all()


def test_draw_is_on_the_file_where_the_network_saw_it():
    (row,) = map(cropped, rows(2, cgnl.CGNL(8, 8, groups=2)))
    assert row.seen.box == Box(2, 30, 16, 24)
    panel = draw([row], threshold=0.5).axes[1]
    assert panel.images[0].get_array().shape == (20, 60, 3)
    assert panel.images[0].get_extent() == [0, 60, 20, 0]
    *borders, green = [p for p in panel.patches if isinstance(p, Rectangle)]
    assert {(p.get_xy(), p.get_width(), p.get_height()) for p in borders} == {((30, 2), 24, 16)}
    assert (green.get_xy(), green.get_width(), green.get_height()) == ((30 + 8, 2 + 4), 4, 4)
    related = row.maps[0].related(0.5)
    drawn = [c for c in panel.collections if isinstance(c, LineCollection)][-1].get_segments()
    assert np.array_equal(np.array(drawn), (outline(related, 16, 24) + torch.tensor([30, 2])).numpy())
    picture = panel.images[0].get_array()[..., 0]
    faded = int(255 - FADED * 155)
    bright = related.repeat_interleave(4, 0).repeat_interleave(4, 1).numpy()
    assert np.array_equal(picture[2:18, 30:54], np.where(bright, 100, 40))
    assert (picture[:, :30] == faded).all()
    assert (picture[18:] == faded).all()


def test_paint_border_and_fit_keep_to_the_view():
    (row,) = map(cropped, rows(2, cgnl.CGNL(8, 8, groups=2)))
    picture = fit(row.seen.original, 40, 80)
    assert picture.shape == (3, 40, 120)
    painted = paint(picture, row.seen, torch.zeros_like)
    assert (painted == 0).nonzero().aminmax(dim=0).min.tolist() == [0, 4, 60]
    assert (painted == 0).nonzero().aminmax(dim=0).max.tolist() == [2, 35, 107]
    changed = (mark_border(picture, row.seen) != picture).any(0)
    assert (changed.sum(), changed[4].sum(), changed[5].sum()) == (2 * 48 + 2 * 30, 48, 2)
    assert fit(row.seen.original, 1, 10).shape == (3, 10, 30)
    whole = whole_input(picture)
    assert torch.equal(mark_border(picture, whole), picture)


def test_large_pictures_are_drawn_on_a_smaller_copy():
    seen = whole_input(torch.zeros(3, 8, 2 * LARGEST, dtype=torch.uint8))
    assert shrink(seen).original.shape == (3, 4, LARGEST)
    assert (shrink(seen).box, shrink(seen, 4 * LARGEST)) == (seen.box, seen)


def test_long_pictures_make_no_endless_figure():
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    long = replace(row, seen=whole_input(torch.zeros(3, 8, 1200, dtype=torch.uint8)))
    assert draw([long]).get_figwidth() < 30


@pytest.mark.parametrize(
    ("verdict", "unused"), [(Verdict({"1": 0.01}, 0, 300), True), (Verdict({"1": 30.0}, 90, 300), False)]
)
def test_caption_says_whether_the_block_is_used(verdict, unused):
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    figure = draw([replace(row, verdict=verdict)])
    caption = figure._supxlabel.get_text().replace("\n", " ")
    assert verdict.words("1") in caption
    assert ("not used" in caption, "not used" in figure.axes[0].get_xlabel()) == (unused, unused)


def test_caption_takes_any_name():
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    draw([replace(row, title="a$\\frac$/b", words="$_{^$ (90%). ")]).draw_without_rendering()


def test_draw_with_heat_and_grad_cam():
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    heated = draw([row], heat=True).axes[1].images[0].get_array().astype(float).sum(-1)
    y, x = divmod(int(row.maps[0].scaled.argmax()), 6)  # inferno's brightness rises with the value
    assert heated[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].max() == heated.max() > heated.min()
    beside = replace(row, maps=row.maps[:1], grad_cam=torch.rand(4, 6))
    axes = draw([beside]).axes
    assert [a.get_title() for a in axes[2:]] == ["Grad-CAM"]
    assert not axes[2].collections  # it relates nothing


def test_constant_map_says_so():
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    flat = replace(row, maps=[Map("group 0", torch.ones(4, 6))])
    assert draw([flat]).axes[1].get_title() == "group 0 (constant)"


def test_draw_of_a_clip_is_a_strip_of_frames():
    two = rows(3, cgnl.CGNL(8, 4, ndim=3, groups=2), cgnl.NonLocal(8, 4, ndim=3))
    figure = draw(two)
    assert len(figure.axes) == (1 + 4 + 1 + 1) * 4
    assert [a.get_title() for a in figure.axes[:4]] == [f"frame {t}" for t in range(4)]
    numbered = draw([replace(row, seen=replace(row.seen, frames=(3, 6, 9, 12))) for row in two])
    assert [a.get_title() for a in numbered.axes[:4]] == ["frame 3", "frame 6", "frame 9", "frame 12"]
    greens = [i for i, a in enumerate(figure.axes) if any(isinstance(p, Rectangle) for p in a.patches)]
    assert greens == [4 * line + 2 for line in range(7)]  # in the reference's frame alone
    first = two[0].maps[0].related()
    for t in range(4):
        drawn = figure.axes[4 + t].collections[-1].get_segments()
        assert np.array_equal(np.array(drawn).reshape(-1, 2, 2), outline(first[t // 2], 8, 12).numpy())


def test_frames_are_all_frames_with_every_map(tmp_path):
    (row,) = rows(3, cgnl.CGNL(8, 4, ndim=3, groups=2))
    pictures = frames([row])
    height, width = 24 * 8, 24 * 12  # 8 pixels become at least 192
    assert pictures.shape == (4, 3, 18 + height, 5 * width)
    green = (pictures == torch.tensor([0, 224, 0], dtype=torch.uint8)[:, None, None]).all(1)
    assert green.flatten(1).any(1).tolist() == [False, False, True, False]
    y, x = green[2].nonzero().amin(0).tolist(), green[2].nonzero().amax(0).tolist()
    assert (y, x) == ([18 + 48, 96], [18 + 95, 143])
    write_video(pictures[:, :, :-1, :-1], RATE, tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        back = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert (len(back), back[0].shape) == (4, (18 + height, 5 * width, 3))
    inside = torch.from_numpy(back[1])[40:200, 20:260].float()
    assert inside.mean() == pytest.approx(100, abs=4)


@pytest.mark.parametrize("name", ["a.png", "a.pdf", "a.svg", "a.JPG"])
def test_save_leaves_nothing_on_a_full_disk(tmp_path, monkeypatch, name):
    figure = Figure(figsize=(1, 1))
    save(figure, tmp_path / name)
    before = (tmp_path / name).read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=rf"{name} cannot be written: No space left"):
        save(figure, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before
