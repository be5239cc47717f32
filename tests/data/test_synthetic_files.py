"""Embedded datasets written to files."""

import pytest
import torch

from cgnl.commands.data import data
from cgnl.data.images import read_image
from cgnl.data.readers import folder
from cgnl.data.synthetic import PARTS, actions, parts
from cgnl.data.synthetic_files import draw
from cgnl.data.video import read_frames


def test_draw_writes_the_pictures_by_class(tmp_path):
    assert draw("parts", tmp_path / "drawn", 5, seed=3) == PARTS
    for index in range(5):
        drawing = parts(3, index)
        path = tmp_path / "drawn" / PARTS[drawing.label] / f"{index:05}.png"
        assert torch.equal(read_image(path), drawing.pixels)


def test_draw_writes_clips_as_folders_of_frames(tmp_path):
    classes = draw("actions", tmp_path / "drawn", 2)
    drawing = actions(0, 1)
    frames = read_frames(tmp_path / "drawn" / classes[drawing.label] / "00001", range)
    assert torch.equal(frames, drawing.pixels)


def test_draw_gives_a_folder_that_is_read_as_a_dataset(tmp_path):
    draw("relation", tmp_path / "drawn", 8)
    index = folder(tmp_path / "drawn")
    assert (index.kind, index.classes, len(index.splits["train"])) == ("images", ("different", "same"), 8)


def test_draw_writes_nothing_over(tmp_path):
    (tmp_path / "mine.png").write_bytes(b"mine")
    with pytest.raises(ValueError, match="is there already"):
        draw("parts", tmp_path, 1)
    with pytest.raises(ValueError, match="is there already"):
        draw("parts", tmp_path / "mine.png", 1)


def test_draw_refuses_no_samples(tmp_path):
    with pytest.raises(ValueError, match="count = 0 must be at least 1"):
        draw("parts", tmp_path / "drawn", 0)


def test_command_draws_parts_unless_told_otherwise(tmp_path, capsys):
    data("draw", str(tmp_path / "drawn"), count=3)
    assert capsys.readouterr().out == f"3 samples of 12 classes in {tmp_path / 'drawn'}\n"
    with pytest.raises(ValueError, match="there is no dataset 'folder' to draw; there is parts"):
        data("draw", str(tmp_path / "other"), dataset="folder")
