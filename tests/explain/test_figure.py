"""What is drawn is where the map says."""

import itertools
from dataclasses import replace

import av
import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
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
    draw_alone,
    draw_frames,
    outline,
    shrink,
)
from cgnl.explain.inputs import FileInput, whole_input
from cgnl.explain.verdict import Verdict

PLACES = [(1, 1), (1, 9), (5, 3), (6, 10)]
"""Pixels that lie in the middle of no patch's edge."""


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


def test_draw_alone_keeps_to_the_file():
    (row,) = map(cropped, rows(2, cgnl.CGNL(8, 8, groups=2)))
    plain = draw_alone(row, None, 0.5, heat=False, frame=None, height=200, width=600)
    assert plain.shape == (3, 200, 600)
    green = (plain == torch.tensor([0, 224, 0])[:, None, None]).all(0).nonzero().float()
    assert (green.mean(0) - torch.tensor([80.0, 400.0])).abs().max() < 1  # 4 x 4 pixels from (38, 6) on, times ten
    border = plain[0, 19:21, 300:540]  # dashed: black and white
    assert (border.amin() < 50, border.amax() > 200) == (True, True)
    painted = draw_alone(row, row.maps[0], 0.5, heat=False, frame=None, height=200, width=600)
    assert (painted[:, :15] == int(255 - FADED * 155)).all()
    related = row.maps[0].related(0.5)  # [4, 6]
    centres = painted[0, 40:180:40, 320:540:40]
    assert torch.equal(centres, torch.where(related, 100, 40).byte())


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
    draw([replace(row, title="a$\\frac$/b", prediction="$_{^$ (90%). ")]).draw_without_rendering()


def test_draw_with_heat_and_grad_cam():
    (row,) = rows(2, cgnl.CGNL(8, 8, groups=2))
    heated = draw([row], heat=True).axes[1].images[0].get_array().astype(float).sum(-1)
    y, x = divmod(int(row.maps[0].scaled.argmax()), 6)  # inferno's brightness rises with the value
    assert heated[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].max() == heated.max() > heated.min()
    beside = replace(row, maps=row.maps[:1], grad_cam=Map("Grad-CAM", torch.rand(4, 6)))
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


def test_frames_say_that_a_block_is_not_used():
    (row,) = rows(3, cgnl.CGNL(8, 4, ndim=3, groups=2))
    red = torch.tensor([192, 57, 43])[:, None, None]
    used, unused = (draw_frames([replace(row, verdict=Verdict({"1": share}, 0, 90))]) for share in (5.0, 0.1))
    assert [bool((found == red).all(1).any()) for found in (used, unused)] == [False, True]


def test_frames_are_all_frames_with_every_map(tmp_path):
    (row,) = rows(3, cgnl.CGNL(8, 4, ndim=3, groups=2))
    pictures = draw_frames([row])
    assert (pictures.shape[:2], pictures.dtype) == ((4, 3), torch.uint8)
    green = (pictures == torch.tensor([0, 224, 0])[:, None, None]).all(1)
    assert green.flatten(1).any(1).tolist() == [False, False, True, False]
    strip = draw([row])  # in which the first map has the second line
    for frame in range(4):
        panel = strip.axes[4 + frame].images[0].get_array()
        assert all((pictures[frame].permute(1, 2, 0) == torch.from_numpy(panel[y, x])).all(2).any() for y, x in PLACES)
    write_video(pictures[:, :, :-1, :-1], RATE, tmp_path / "a.mp4")
    with av.open(str(tmp_path / "a.mp4")) as container:
        back = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    height, width = pictures.shape[-2:]
    assert (len(back), back[0].shape) == (4, (height // 2 * 2, width // 2 * 2, 3))
    truth = pictures[1, :, : height // 2 * 2, : width // 2 * 2].permute(1, 2, 0).float()
    assert (torch.from_numpy(back[1]).float() - truth).abs().mean() < 5
