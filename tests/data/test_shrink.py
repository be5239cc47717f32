"""Small copies of clips: which frames, how large, what is skipped, named and refused."""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from cgnl.commands.data import data
from cgnl.data import shrink as module
from cgnl.data.readers import folder
from cgnl.data.shrink import Size, shrink
from cgnl.data.video import probe, read_frames, write_video


def picture(number: int, height: int, width: int) -> np.ndarray:
    """A frame that tells its number by its brightness."""
    return np.full((height, width, 3), 8 * number, dtype=np.uint8)


def numbers(path: Path) -> list[int]:
    """The numbers that the frames of a clip tell."""
    count = probe(path).frames
    return [round(float(frame.float().mean()) / 8) for frame in read_frames(path, range(count))]


def video(path: Path, frames: int, height: int = 48, width: int = 64, rate: int = 30, codec: Any = "mpeg4") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.options = {"qmin": "1", "qmax": "1"}
        for i in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(i, height, width), format="rgb24")))
        container.mux(stream.encode())
    return path


def frame_folder(path: Path, frames: int, height: int = 48, width: int = 64) -> Path:
    path.mkdir(parents=True)
    for i in range(frames):
        Image.fromarray(picture(i, height, width)).save(path / f"{i}.png")
    return path


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("count", "frames", "expected"),
    [
        (32, 32, list(range(32))),
        (3, 32, [0, 1, 2]),
        (9, 3, [1, 4, 7]),
        (10, 1, [5]),
        (1, 1, [0]),
        (40, 4, [5, 15, 25, 35]),
    ],
)
def test_indices_are_spread_evenly(count, frames, expected):
    assert Size(128, frames).indices(count) == expected


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (1080, 1920, (128, 228)),
        (1920, 1080, (228, 128)),
        (128, 128, (128, 128)),
        (240, 320, (128, 170)),
        (100, 300, (100, 300)),
        (101, 301, (100, 300)),
        (1, 9, (2, 8)),
    ],
)
def test_resize_is_even_and_never_larger(height, width, expected):
    assert Size(128, 32).resize(height, width) == expected


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
@pytest.mark.parametrize("encoder", ["mpeg4", "libx264"])
def test_shrink_keeps_the_frames_that_indices_names(tmp_path, monkeypatch, encoder, codec):
    if not {codec, encoder} <= av.codecs_available:
        pytest.skip("there is no libx264")
    monkeypatch.setattr("cgnl.data.video.encoder", lambda: encoder)
    source = video(tmp_path / "in" / "run" / "1.mp4", 30, codec=codec)
    done = shrink(tmp_path / "in", tmp_path / "out", short_side=24, frames=6, workers=1)
    copy = tmp_path / "out" / "run" / "1.mp4"
    assert (done.written, done.skipped, done.copied, done.failed) == (1, 0, 0, {})
    assert numbers(source) == list(range(30))
    assert numbers(copy) == [2, 7, 12, 17, 22, 27]
    info = probe(copy)
    assert (info.frames, info.height, info.width) == (6, 24, 32)
    assert info.rate == 6  # as long as before
    with av.open(str(copy)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == ("h264" if encoder == "libx264" else "mpeg4")
        assert stream.codec_context.pix_fmt == "yuv420p"
        assert "mp4" in container.format.name


def test_shrink_keeps_where_things_are_in_a_frame(tmp_path):
    frame = np.zeros((64, 96, 3), dtype=np.uint8)
    frame[:32, :48] = 200
    path = tmp_path / "in" / "1.mp4"
    path.parent.mkdir()
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    shrink(tmp_path / "in", tmp_path / "out", short_side=16, workers=1)
    small = read_frames(tmp_path / "out" / "1.mp4", [0])[0].float().mean(0)
    assert small.shape == (16, 24)
    expected = Image.fromarray(frame).resize((24, 16), Image.Resampling.BOX).convert("L")
    assert np.abs(small.numpy() - np.asarray(expected, dtype=float)).mean() < 6


def test_shrink_keeps_names_and_copies_the_rest(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    video(root / "v 1.avi", 5)
    video(root / "a" / "b" / "2.mkv", 5)
    (root / "list.txt").write_text("v 1.avi 0\n")
    (root / "a" / "table.csv").write_text("x\n")
    Image.new("RGB", (9, 9)).save(root / "a" / "cover.png")
    (root / ".hidden").write_text("x")
    done = shrink(root, out, workers=1)
    assert (done.written, done.copied) == (2, 3)
    assert files(out) == [".cgnl-shrink.json", "a/b/2.mkv", "a/cover.png", "a/table.csv", "list.txt", "v 1.avi"]
    assert (out / "list.txt").read_text() == "v 1.avi 0\n"
    assert numbers(out / "v 1.avi") == numbers(out / "a" / "b" / "2.mkv") == [0, 1, 2, 3, 4]
    assert probe(out / "v 1.avi").height == 48  # not enlarged


def test_shrink_goes_on_where_it_was_stopped(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    for i in range(3):
        video(root / f"{i}.mp4", 5)
    shrink(root, out, frames=2, workers=1)
    whole = (out / "0.mp4").read_bytes()
    os.utime(out / "0.mp4", (1, 1))
    (out / "1.mp4").unlink()
    left = out / ".1.mp4.0a1b.part"
    left.write_bytes(whole[:100])  # a process was killed while it wrote this, hours ago
    os.utime(left, (1, 1))
    done = shrink(root, out, frames=2, workers=1)
    assert (done.written, done.skipped) == (1, 2)
    assert (out / "0.mp4").stat().st_mtime == 1
    assert numbers(out / "1.mp4") == [1, 3]
    assert files(out) == [".cgnl-shrink.json", "0.mp4", "1.mp4", "2.mp4"]


def test_shrink_with_several_processes_makes_the_same_files(tmp_path):
    root = tmp_path / "in"
    for i in range(4):
        video(root / f"{i}.mp4", 6 + i)
    (root / "bad.mp4").write_bytes(b"no video")
    one = shrink(root, tmp_path / "one", frames=4, workers=1)
    two = shrink(root, tmp_path / "two", frames=4, workers=2)
    assert one == two
    assert list(two.failed) == [root / "bad.mp4"]
    assert files(tmp_path / "one") == files(tmp_path / "two")
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


M_PERTURB = -6
"""The option of glibc that fills new memory with the complement of a byte."""


def test_shrunk_clip_does_not_depend_on_what_was_in_memory(tmp_path):
    allocator = ctypes.CDLL(None)
    if not hasattr(allocator, "mallopt"):
        pytest.skip("this is not glibc")
    noise = torch.randint(0, 255, (4, 4, 3, 128, 170), dtype=torch.uint8)
    clips = []
    try:
        for byte in (1, 85, 170):
            allocator.mallopt(M_PERTURB, byte)
            for i, pixels in enumerate(noise):
                write_video(pixels, Fraction(25, 3), tmp_path / f"{i}.mp4")
            clips.append([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    finally:
        allocator.mallopt(M_PERTURB, 0)
    assert clips[0] == clips[1] == clips[2]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds children in /proc")
def test_no_process_is_left_when_the_first_is_killed(tmp_path):
    first = video(tmp_path / "in" / "0.mp4", 30)
    for i in range(1, 400):
        os.link(first, first.with_name(f"{i}.mp4"))
    words = ["data", "shrink", str(tmp_path / "in"), str(tmp_path / "out"), "workers=2"]
    parent = subprocess.Popen([sys.executable, "-m", "cgnl", *words], stdout=subprocess.DEVNULL)
    try:
        assert soon(lambda: (tmp_path / "out" / "0.mp4").exists())
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    finally:
        parent.kill()
        parent.wait()
    assert len(children) >= 2
    assert soon(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))


def soon(happens: Callable[[], bool]) -> bool:
    """Whether something happens within a minute."""
    end = time.monotonic() + 60
    while not happens() and time.monotonic() < end:
        time.sleep(0.05)
    return happens()


def test_shrink_names_and_counts_what_cannot_be_read(tmp_path, capsys):
    root = tmp_path / "in"
    whole = video(root / "a" / "1.mp4", 30).read_bytes()
    (root / "a" / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    (root / "a" / "empty.mp4").touch()
    with pytest.raises(ValueError, match=r"2 of 3 clips"):
        data("shrink", str(root), str(tmp_path / "out"), workers=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if str(root / "a" / "cut.mp4") in line]
    assert [line for line in lines if str(root / "a" / "empty.mp4") in line]
    assert "3 of 3 clips, 2 failed" in lines[-2]
    assert lines[-1].startswith("1 clip written")
    assert files(tmp_path / "out") == [".cgnl-shrink.json", "a/1.mp4"]


def test_shrink_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.0)
    for i in range(3):
        video(tmp_path / "in" / f"{i}.mp4", 2)
    lines = []
    shrink(tmp_path / "in", tmp_path / "out", workers=1, say=lines.append)
    assert [line.partition(" clips")[0] for line in lines] == ["1 of 3", "2 of 3", "3 of 3"]


def test_shrink_folders_of_frames(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    frame_folder(root / "wave" / "clip 1", 12)
    (root / "wave" / "clip 1" / "times.txt").write_text("0\n")
    video(root / "wave" / "2.mp4", 12)
    done = shrink(root, out, short_side=16, frames=4, workers=1, frame_folders=True)
    assert (done.written, done.copied) == (2, 0)
    assert files(out / "wave" / "clip 1") == ["00000.jpg", "00001.jpg", "00002.jpg", "00003.jpg", "times.txt"]
    assert numbers(out / "wave" / "clip 1") == numbers(out / "wave" / "2.mp4") == [1, 4, 7, 10]
    assert (probe(out / "wave" / "clip 1").height, probe(out / "wave" / "clip 1").width) == (16, 22)
    assert len(folder(out).splits["train"]) == 2
    assert shrink(root, out, short_side=16, frames=4, workers=1, frame_folders=True).skipped == 2


def test_shrink_names_a_bad_frame(tmp_path):
    clip = frame_folder(tmp_path / "in" / "clip", 4)
    (clip / "2.png").write_bytes(b"")
    done = shrink(tmp_path / "in", tmp_path / "out", workers=1, frame_folders=True)
    assert str(clip / "2.png") in done.failed[clip]
    assert files(tmp_path / "out") == [".cgnl-shrink.json"]


def test_shrink_takes_pictures_for_clips_only_when_told(tmp_path):
    clip = frame_folder(tmp_path / "in" / "clip", 4)
    video(tmp_path / "in" / "1.mp4", 2)
    with pytest.raises(ValueError, match="frame_folders") as raised:
        shrink(tmp_path / "in", tmp_path / "out")
    assert str(clip) in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_shrink_follows_links_but_not_in_a_circle(tmp_path):
    video(tmp_path / "elsewhere" / "1.mp4", 2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "in")
    shrink(tmp_path / "in", tmp_path / "out", workers=1)
    assert files(tmp_path / "out") == [".cgnl-shrink.json", "a/1.mp4"]


@pytest.mark.parametrize("options", [{"frames": 0}, {"short_side": 15}, {"workers": 0}])
def test_shrink_refuses_numbers_that_are_too_small(tmp_path, options):
    (name, value) = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        shrink(tmp_path, tmp_path / "out", **options)


@pytest.mark.parametrize("out", ["in", "in/out", "in/a/../out"])
def test_shrink_refuses_a_copy_within_the_dataset(tmp_path, out):
    video(tmp_path / "in" / "1.mp4", 2)
    (tmp_path / "in" / "a").mkdir()
    with pytest.raises(ValueError, match="outside"):
        shrink(tmp_path / "in", tmp_path / out)
    assert files(tmp_path / "in") == ["1.mp4"]


def test_shrink_refuses_a_folder_without_videos(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").touch()
    with pytest.raises(ValueError, match=f"{tmp_path / 'in'} holds no videos"):
        shrink(tmp_path / "in", tmp_path / "out")
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        shrink(tmp_path / "nowhere", tmp_path / "out")


def test_shrink_does_not_mix_copies(tmp_path):
    video(tmp_path / "in" / "1.mp4", 8)
    shrink(tmp_path / "in", tmp_path / "out", frames=4, workers=1)
    assert json.loads((tmp_path / "out" / ".cgnl-shrink.json").read_text()) == {"short_side": 128, "frames": 4}
    with pytest.raises(ValueError, match=r'"frames": 4.*"frames": 8'):
        shrink(tmp_path / "in", tmp_path / "out", frames=8)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.mp4").touch()
    with pytest.raises(ValueError, match="there already"):
        shrink(tmp_path / "in", tmp_path / "other")
