"""What the page shows, against the attention it is of."""

from pathlib import Path

import pytest
import torch
from torch import nn

from cgnl import explain
from cgnl.data.synthetic import SYNTHETIC
from cgnl.data.transforms import network_input
from cgnl.engine.checkpoint import Trained
from cgnl.engine.config import load
from cgnl.engine.inputs import read_input
from cgnl.explain.figure import DIMMED
from cgnl.report import page
from tests.engine.conftest import read_picture, write_frame_folders, write_pictures


@pytest.fixture
def picture(tmp_path) -> Path:
    return write_pictures(tmp_path / "pictures", count=1, size=(32, 48))[0]


@pytest.fixture
def looked(checkpoint, picture) -> page.Look:
    (network,) = page.open_networks([str(checkpoint())], "cpu")
    return page.look_at([network], picture)[0]


def test_look_at_sees_what_a_test_sees(looked, picture):
    seen = read_picture(picture)[:, :, 8:40]  # the middle of 48
    assert torch.equal(looked.seen.pixels, seen)
    direct = explain.attention(looked.network.trained.network, network_input(seen[None]), (16, 16))
    assert torch.equal(looked.attention.maps, direct.maps)
    scores = direct.output.softmax(1)[0]
    assert looked.top() == {
        name: pytest.approx(float(s)) for name, s in sorted(zip("abc", scores, strict=True), key=lambda p: -p[1])
    }


def test_place_is_where_the_click_was(looked):
    assert looked.times == 16
    assert looked.at == (8 + 16, 16)
    assert looked.place(0, 0) == (8, 0)
    assert looked.place(16 * 5, 16 * 7) == (8 + 5, 7)
    assert looked.place(10_000, 10_000) == (8 + 31, 31)
    assert looked.place(-3, 40) == (8, 2.5)


def test_look_again_moves_the_reference(looked):
    again = page.look(looked.network, looked.seen, looked.place(16 * 30, 16 * 2))
    assert again.attention.position == (0, 3)
    assert again.at == (38, 2)
    assert looked.attention.position == (2, 2)


@pytest.mark.parametrize("style", page.STYLES)
def test_shown_is_enlarged_and_marked(looked, style):
    found = page.shown(looked, style=style)
    assert (found.dtype, found.shape) == (torch.uint8, (3, 512, 512))
    assert found[:, 256, 256].tolist() == [0, 224, 0]  # the corner of the patch that has the middle
    assert not torch.equal(found, page.shown(page.look(looked.network, looked.seen, (9, 1)), style=style))


def test_shown_picture_is_the_picture(looked):
    found = page.shown(looked, style="picture")
    assert torch.equal(found[:, 8:240:16, 8:240:16], looked.seen.pixels[:, :15, :15])


def test_shown_dims_what_is_not_related(looked):
    found = page.shown(looked, "0", page.SUM, threshold=0.9)
    related = looked.map("0", page.SUM).scaled >= 0.9  # [4, 4]
    for row in range(4):
        for column in range(4):
            if (row, column) == looked.attention.position:
                continue
            pixel = looked.seen.pixels[:, 8 * row + 4, 8 * column + 4].float()
            expected = pixel if related[row, column] else (DIMMED * pixel).floor()
            assert (found[:, 128 * row + 72, 128 * column + 72] - expected).abs().max() <= 1


def test_map_is_the_one_that_was_chosen(looked):
    maps = looked.attention.maps  # [2, 2, 4, 4]
    assert looked.groups == ["all", "0", "1"]
    assert looked.channels("all") == ["strongest", "0", "1", "2", "3"]
    assert looked.channels("1") == ["strongest", "sum", "2", "3"]
    assert torch.equal(looked.map("1", "3").values, maps[1, 1])
    assert torch.equal(looked.map("1", "sum").values, maps[1].sum(0))
    ranges = (maps.amax((2, 3)) - maps.amin((2, 3))).flatten()
    assert torch.equal(looked.map().values, maps.flatten(0, 1)[int(ranges.argmax())])


@pytest.mark.parametrize(("group", "channel"), [("2", "strongest"), ("0", "3"), ("all", "sum"), ("x", "0")])
def test_map_refuses_what_there_is_not(looked, group, channel):
    with pytest.raises(ValueError, match="there is no channel"):
        looked.map(group, channel)


def test_non_local_block_has_one_map(checkpoint, picture):
    (network,) = page.open_networks([str(checkpoint(block="nl"))], "cpu")
    looked = page.look_at([network], picture)[0]
    assert (looked.groups, looked.channels("all")) == (["all"], ["strongest"])
    assert torch.equal(looked.map().values, looked.attention.maps[0, 0])


def test_clip_has_frames(checkpoint, tmp_path):
    (network,) = page.open_networks([str(checkpoint("tiny_video"))], "cpu")
    looked = page.look_at([network], write_frame_folders(tmp_path / "videos", count=1)[0])[0]
    assert looked.frames == 4
    assert looked.at == (4 + 8, 8, 1)  # four frames in the middle of six
    assert looked.row().frames == (1, 2, 3, 4)
    pictures = [page.shown(looked, style="picture", frame=t) for t in range(4)]
    assert [bool((p == torch.tensor([0, 224, 0])[:, None, None]).all(0).any()) for p in pictures] == [True] + [
        False
    ] * 3
    moved = page.look(network, looked.seen, looked.place(0, 0, frame=2))
    assert moved.attention.at == (0, 0, 2)


def test_two_networks_look_at_the_same_place(checkpoint, picture):
    paths = [str(checkpoint()), str(checkpoint(block="nl", folder="two"))]
    networks = page.open_networks(paths, "cpu")
    assert [network.title for network in networks] == ["one", "two"]
    assert [looked.at for looked in page.look_at(networks, picture)] == [(24, 16), (24, 16)]


def test_open_networks_refuses(checkpoint):
    with pytest.raises(ValueError, match="has no NL or CGNL block"):
        page.open_networks([str(checkpoint(block=None))], "cpu")
    with pytest.raises(ValueError, match=r"is for images and .* for videos"):
        page.open_networks([str(checkpoint()), str(checkpoint("tiny_video", folder="two"))], "cpu")


def test_look_at_names_a_bad_file_by_its_name_alone(checkpoint, tmp_path):
    (network,) = page.open_networks([str(checkpoint())], "cpu")
    (tmp_path / "no.png").write_text("hello")
    with pytest.raises(ValueError, match=r"^no\.png cannot be read: it is not an image"):
        page.look_at([network], tmp_path / "no.png")


def test_look_refuses_more_pixels_than_it_takes(looked, monkeypatch):
    monkeypatch.setattr(page, "AS_THEY_ARE", 31)
    with pytest.raises(ValueError, match="32 x 32 pixels are more than the page takes, 31 x 31"):
        page.look(looked.network, looked.seen)


def test_write_figure(looked, tmp_path):
    page.write_figure([looked.row()], 0.5, "heat", tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png").shape[1] > 100


def test_write_examples_only_of_embedded_data(looked, tmp_path):
    assert page.write_examples(looked.network, tmp_path) == []


@pytest.mark.parametrize("name", ["a/b", "../up", "nul\0", "x" * 300, "\udcff", "$a$"])
def test_write_examples_whatever_a_checkpoint_calls_its_classes(name, tmp_path):
    classes = [f"{name}{i}" for i in range(len(SYNTHETIC["parts"][0]))]
    trained = Trained(nn.Identity(), tuple(classes), "images", load("parts", {"data.dataset": "parts"}))
    paths = page.write_examples(page.Network("", trained, "cpu"), tmp_path, count=2)
    assert [path.parent for path in paths] == [tmp_path, tmp_path]
    assert all(path.exists() for path in paths)


@pytest.mark.parametrize("dataset", SYNTHETIC)
def test_write_examples_are_test_samples_and_can_be_looked_at(dataset, tmp_path):
    classes, draw = SYNTHETIC[dataset]
    kind = "videos" if dataset == "actions" else "images"
    trained = Trained(nn.Identity(), classes, kind, load(dataset, {"data.dataset": dataset}))
    paths = page.write_examples(page.Network("", trained, "cpu"), tmp_path, count=2)
    assert len(paths) == 2
    for index, path in enumerate(paths):
        expected, found = draw(1, index), read_input(trained, path).pixels
        assert path.stem == f"{index}-{classes[expected.label].replace(' ', '-')}"
        assert found.shape == expected.pixels.shape
        assert (found.float() - expected.pixels.float()).abs().mean() < (1e-6 if kind == "images" else 30)
