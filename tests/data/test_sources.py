"""Samples from files, from a seed and from memory."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cgnl.data.index import Sample, UnreadableError
from cgnl.data.sources import CachedSource, FileSource, Source, SyntheticSource
from cgnl.data.synthetic import SYNTHETIC


def picture(path: Path, value: int = 0, height: int = 6, width: int = 8) -> Tensor:
    """A picture on disk, and its pixels [3, H, W]."""
    pixels = torch.full((3, height, width), value, dtype=torch.uint8)
    pixels[1] = torch.arange(height * width).view(height, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())).save(path)
    return pixels


def folder_of_frames(path: Path, frames: int) -> Tensor:
    """A video as a folder of frames, and its pixels [T, 3, H, W]."""
    return torch.stack([picture(path / f"{number}.png", value=number) for number in range(frames)])


def same_source(one: Source, other: Source, frames: list[int]) -> bool:
    """Whether two sources have the same samples."""
    return len(one) == len(other) and all(
        (one.label(i), one.name(i)) == (other.label(i), other.name(i))
        and torch.equal(one.read(i, lambda _: frames), other.read(i, lambda _: frames))
        for i in range(len(one))
    )


def test_files_reads_pictures(tmp_path):
    truth = [picture(tmp_path / f"{value}.png", value) for value in (5, 200)]
    source = FileSource([Sample(tmp_path / "5.png", 3), Sample(tmp_path / "200.png", 1)], "images")
    assert len(source) == 2
    assert [source.label(i) for i in range(2)] == [3, 1]
    assert source.name(1) == str(tmp_path / "200.png")
    assert all(torch.equal(source.read(i, range), truth[i]) for i in range(2))


def test_files_reads_the_frames_that_are_picked(tmp_path):
    truth = folder_of_frames(tmp_path / "clip", 5)
    source = FileSource([Sample(tmp_path / "clip", 0)], "videos")
    counted = []

    def pick(count: int) -> list[int]:
        counted.append(count)
        return [4, 0, 4]

    assert torch.equal(source.read(0, pick), truth[[4, 0, 4]])
    assert counted == [5]


@pytest.mark.parametrize("kind", ["images", "videos"])
@pytest.mark.parametrize("name", ["gone.png", "gone.mp4", "gone"])
def test_files_names_a_missing_file(tmp_path, kind, name):
    source = FileSource([Sample(tmp_path / name, 0)], kind)
    with pytest.raises(UnreadableError) as raised:
        source.read(0, range)
    assert str(raised.value) == f"{tmp_path / name} cannot be read: No such file or directory"
    assert raised.value.path == tmp_path / name


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_files_names_a_broken_file(tmp_path, kind):
    path = tmp_path / ("a.png" if kind == "images" else "a.mp4")
    path.write_text("neither a picture nor a video")
    with pytest.raises(UnreadableError, match=f"{path} cannot be read: "):
        FileSource([Sample(path, 0)], kind).read(0, range)


def test_files_tells_a_folder_that_vanishes_while_it_is_read(tmp_path, monkeypatch):
    folder_of_frames(tmp_path / "clip", 2)

    def vanish(_):
        raise FileNotFoundError(2, "No such file or directory", "0.png")

    monkeypatch.setattr("cgnl.data.sources.read_frames", lambda path, _: vanish(path))
    with pytest.raises(UnreadableError, match=r"clip cannot be read: No such file or directory$"):
        FileSource([Sample(tmp_path / "clip", 0)], "videos").read(0, range)


@pytest.mark.parametrize(("name", "kind"), [("parts", "images"), ("relation", "images"), ("actions", "videos")])
def test_synthetic_source_is_the_embedded_dataset(name, kind):
    classes, draw = SYNTHETIC[name]
    source = SyntheticSource(name, 7, 3)
    assert (len(source), source.kind, source.classes) == (3, kind, classes)
    for index in range(3):
        assert source.label(index) == draw(7, index).label
        assert torch.equal(source.read(index, range), draw(7, index).pixels)
    assert source.name(2) == f"{name} 2"


def test_synthetic_source_gives_the_frames_that_are_picked():
    clip = SYNTHETIC["actions"][1](0, 1).pixels
    assert torch.equal(SyntheticSource("actions", 0, 2).read(1, lambda n: [n - 1, 0, 0]), clip[[15, 0, 0]])


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", ["parts", "actions"])
def test_cached_source_has_the_samples_of_its_source(name, workers):
    source = SyntheticSource(name, 0, 5)
    assert same_source(CachedSource(source, "cpu", workers), source, [3, 1, 1])


def test_cached_source_counts_its_bytes(tmp_path):
    picture(tmp_path / "a.png", height=6, width=8)
    picture(tmp_path / "b.png", height=3, width=5)
    (tmp_path / "c.png").touch()
    held = CachedSource(FileSource([Sample(tmp_path / f"{name}.png", 0) for name in "abc"], "images"), "cpu")
    assert held.bytes == 3 * (6 * 8 + 3 * 5)


def test_cached_source_reads_each_sample_once(tmp_path):
    truth = picture(tmp_path / "a.png")
    held = CachedSource(FileSource([Sample(tmp_path / "a.png", 0)], "images"), "cpu")
    (tmp_path / "a.png").unlink()
    assert torch.equal(held.read(0, range), truth)


def test_cached_source_keeps_what_was_unreadable(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").touch()
    held = CachedSource(FileSource([Sample(tmp_path / "a.png", 0), Sample(tmp_path / "b.png", 4)], "images"), "cpu")
    assert (len(held), held.label(1)) == (2, 4)
    for _ in range(2):
        with pytest.raises(UnreadableError, match=r"b.png cannot be read: it is empty"):
            held.read(1, range)


def test_cached_source_remembers_nothing_of_those_who_asked_for_an_unreadable_sample(tmp_path):
    held = CachedSource(FileSource([Sample(tmp_path / "gone.png", 0)], "images"), "cpu")

    def frames() -> int:
        with pytest.raises(UnreadableError) as raised:
            held.read(0, range)
        return len(raised.traceback)

    assert frames() == frames() == frames()


def test_cached_source_holds_the_same_files_until_they_change(tmp_path):
    picture(tmp_path / "a.png")
    files = FileSource([Sample(tmp_path / "a.png", 0)], "images")
    held = CachedSource(files, "cpu")
    assert held.holds(files, "cpu")
    assert not held.holds(files, "meta")
    assert not held.holds(FileSource([Sample(tmp_path / "b.png", 0)], "images"), "cpu")
    picture(tmp_path / "a.png", value=9)
    os.utime(tmp_path / "a.png", (1, 1))
    assert not held.holds(files, "cpu")
    drawn = SyntheticSource("parts", 0, 2)
    assert CachedSource(drawn, "cpu").holds(SyntheticSource("parts", 0, 2), "cpu")
