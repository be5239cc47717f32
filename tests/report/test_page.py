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
from cgnl.explain.figure import DIMMED
from cgnl.explain.inputs import read_input
from cgnl.explain.verdict import Verdict, fingerprint, save_verdict
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
    assert looked.zoom == 11  # 48 pixels become about 512
    assert looked.at == (8 + 16, 16)
    assert looked.place(0, 0) == (0, 0)
    assert looked.place(11 * 5, 11 * 7) == (5, 7)
    assert looked.place(10_000, 10_000) == (47, 31)
    assert looked.place(-3, 22) == (0, 2)


def test_look_again_moves_the_reference(looked):
    again = looked.move(looked.place(11 * 38, 11 * 2))
    assert again.attention.position == (0, 3)
    assert again.at == (38, 2)
    assert again.seen is looked.seen
    assert looked.attention.position == (2, 2)


def test_look_again_moves_the_view_where_a_test_sees_nothing(looked, picture):
    again = looked.move((3, 9))
    assert torch.equal(again.seen.pixels, read_picture(picture)[:, :, :32])
    assert again.at == (3, 9)
    direct = explain.attention(looked.network.trained.network, network_input(again.seen.pixels[None]), (3, 9))
    assert torch.equal(again.attention.maps, direct.maps)
    assert "The view was moved" in again.describe("all", "strongest")
    assert again.move((3, 9)).seen is again.seen
    back = again.move((12, 9))  # which the usual view has
    assert torch.equal(back.seen.pixels, looked.seen.pixels)
    assert "The view was moved" not in back.describe("all", "strongest")


@pytest.mark.parametrize("style", page.STYLES)
def test_shown_is_enlarged_and_marked(looked, style):
    found = page.draw_look(looked, style=style)
    assert (found.dtype, found.shape) == (torch.uint8, (3, 11 * 32, 11 * 48))
    assert found[:, 11 * 16, 11 * 24].tolist() == [0, 224, 0]  # the corner of the patch that has the middle
    assert not torch.equal(found, page.draw_look(looked.move((9, 1)), style=style))


def test_shown_picture_is_the_picture(looked, picture):
    found = page.draw_look(looked, style="image")
    assert torch.equal(found[:, 5 : 11 * 15 : 11, 5::11], read_picture(picture)[:, :15])


def test_shown_dims_what_is_not_related(looked):
    found = page.draw_look(looked, "0", page.SUM, threshold=0.9)
    related = looked.map("0", page.SUM).scaled >= 0.9  # [4, 4]
    for row in range(4):
        for column in range(4):
            if (row, column) == looked.attention.position:
                continue
            pixel = looked.seen.pixels[:, 8 * row + 4, 8 * column + 4].float()
            expected = pixel if related[row, column] else (DIMMED * pixel).floor()
            y, x = 11 * (8 * row + 4) + 5, 11 * (8 + 8 * column + 4) + 5
            assert (found[:, y, x] - expected).abs().max() <= 1


def test_large_pictures_are_kept_small(checkpoint, tmp_path):
    (network,) = page.open_networks([str(checkpoint())], "cpu")
    (file,) = write_pictures(tmp_path / "large", classes="a", count=1, size=(100, 2 * page.LARGEST))
    (looked,) = page.look_at([network], file)
    assert looked.seen.original.shape == (3, 50, page.LARGEST)
    assert looked.zoom == 1
    assert looked.place(10, 20) == (20, 40)


def test_describe_says_whether_the_block_is_used(looked, checkpoint):
    assert looked.verdict.sentence() in looked.describe("all", "strongest")
    path = checkpoint()
    verdict = Verdict({"conv1_cgnl": 0.01}, 0, 300)
    save_verdict(verdict, path, fingerprint(looked.network.trained.network))
    (network,) = page.open_networks([str(path)], "cpu")
    text = page.look(network, looked.seen).describe("all", "strongest")
    assert text.startswith(f"**{verdict.sentence()}** {verdict.advice()}")


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
    assert looked.row().seen.frames == (1, 2, 3, 4)
    pictures = [page.draw_look(looked, style="image", frame=t) for t in range(4)]
    assert [bool((p == torch.tensor([0, 224, 0])[:, None, None]).all(0).any()) for p in pictures] == [True] + [
        False
    ] * 3
    moved = looked.move(looked.place(0, 0, frame=2))
    assert moved.attention.at == (0, 0, 2)
    assert moved.seen.box.left == 0


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
    monkeypatch.setattr(page, "MAX_UNCROPPED_SIDE", 31)
    with pytest.raises(ValueError, match="32 x 32 pixels are more than the page takes, 31 x 31"):
        page.look(looked.network, looked.seen)


def test_write_examples_only_of_embedded_data(looked, tmp_path):
    assert page.write_examples(looked.network, tmp_path) == []


@pytest.mark.parametrize("name", ["a/b", "../up", "nul\0", "x" * 300, "\udcff", "$a$"])
def test_write_examples_whatever_a_checkpoint_calls_its_classes(name, tmp_path):
    classes = [f"{name}{i}" for i in range(len(SYNTHETIC["parts"][0]))]
    trained = Trained(nn.Identity(), tuple(classes), "images", load("parts", {"data.dataset": "parts"}))
    paths = page.write_examples(page.Network("", trained), tmp_path, count=2)
    assert [path.parent for path in paths] == [tmp_path, tmp_path]
    assert all(path.exists() for path in paths)


@pytest.mark.parametrize("dataset", SYNTHETIC)
def test_write_examples_are_test_samples_and_can_be_looked_at(dataset, tmp_path):
    classes, draw = SYNTHETIC[dataset]
    kind = "videos" if dataset == "actions" else "images"
    trained = Trained(nn.Identity(), classes, kind, load(dataset, {"data.dataset": dataset}))
    paths = page.write_examples(page.Network("", trained), tmp_path, count=2)
    assert len(paths) == 2
    for index, path in enumerate(paths):
        expected, found = draw(1, index), read_input(trained, path).pixels
        assert path.stem == f"{index}-{classes[expected.label].replace(' ', '-')}"
        assert found.shape == expected.pixels.shape
        assert (found.float() - expected.pixels.float()).abs().mean() < (1e-6 if kind == "images" else 30)
