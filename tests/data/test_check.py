"""What ``cgnl data check`` counts, names and refuses."""

import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from cgnl.cli import main
from cgnl.commands.data import data
from cgnl.data.check import Report, check, count_labels
from cgnl.data.index import DatasetIndex
from cgnl.data.readers import clips, folder
from cgnl.data.video import probe


def image(path: Path, size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def truncated(path: Path) -> Path:
    whole = image(path, size=64).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def video(path: Path, frames: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for i in range(frames):
            picture = np.full((32, 32, 3), i, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def pictures(root: Path) -> Path:
    for name in ("train/a/1.jpg", "train/a/2.jpg", "train/b/3.jpg", "test/b/4.jpg"):
        image(root / name)
    return root


def test_good_images(tmp_path):
    index = folder(pictures(tmp_path))
    assert check(index) == Report({}, {}, ())
    assert count_labels(index) == {"train": {"a": 2, "b": 1}, "test": {"a": 0, "b": 1}}


def test_min_frames_is_not_for_images(tmp_path):
    assert check(folder(pictures(tmp_path)), min_frames=64) == Report({}, {}, ())


@pytest.mark.parametrize("workers", [1, 4])
def test_truncated_image_is_named_and_skipped(tmp_path, workers):
    bad = truncated(pictures(tmp_path) / "train" / "a" / "0.jpg")
    index = folder(tmp_path)
    report = check(index, workers=workers)
    assert list(report.unreadable) == [bad]
    assert report.unreadable[bad].startswith(f"{bad} cannot be read: ")
    assert "\n" not in report.unreadable[bad]
    assert count_labels(index)["train"] == {"a": 3, "b": 1}
    assert count_labels(index, report.unreadable)["train"] == {"a": 2, "b": 1}
    assert report.faults == ()


def test_file_that_went_away_is_named(tmp_path):
    index = folder(pictures(tmp_path))
    gone = tmp_path / "train" / "a" / "1.jpg"
    gone.unlink()
    assert list(check(index).unreadable) == [gone]


def test_class_with_bad_training_samples_only_is_not_usable(tmp_path):
    truncated(pictures(tmp_path) / "train" / "b" / "3.jpg")
    assert check(folder(tmp_path)).faults == ("no readable training sample for class b",)


def test_split_with_bad_samples_only_is_not_usable(tmp_path):
    truncated(pictures(tmp_path) / "test" / "b" / "4.jpg")
    assert check(folder(tmp_path)).faults == ("split test has no readable sample",)


def test_class_folder_without_files_is_not_usable(tmp_path):
    (pictures(tmp_path) / "train" / "c").mkdir()
    index = folder(tmp_path)
    assert index.problems == (f"{tmp_path / 'train' / 'c'} holds no images, video files or folders of frames",)
    assert check(index).faults == ("no readable training sample for class c",)


def test_many_empty_classes_are_counted(tmp_path):
    for name in "cdefg":
        (pictures(tmp_path) / "train" / name).mkdir()
    assert check(folder(tmp_path)).faults == ("no readable training sample for classes c, d, e and 2 more",)


def test_one_class_is_not_usable(tmp_path):
    image(tmp_path / "a" / "1.jpg")
    assert check(folder(tmp_path)).faults == ("there are fewer than two classes",)


def test_videos_unreadable_or_short(tmp_path):
    for name in "ab":
        video(tmp_path / name / "long.mp4", frames=8)
    short = video(tmp_path / "a" / "short.mp4", frames=3)
    empty = tmp_path / "b" / "empty.mp4"
    empty.touch()
    for i in range(2):
        image(tmp_path / "b" / "a few frames" / f"{i}.png", size=32)
    index = folder(tmp_path)
    report = check(index, min_frames=8)
    assert count_labels(index) == {"train": {"a": 2, "b": 3}}
    assert list(report.unreadable) == [empty]
    assert str(empty) in report.unreadable[empty]
    assert report.short == {short: 3, tmp_path / "b" / "a few frames": 2}
    assert report.faults == ()


def test_damage_within_a_clip_is_found(tmp_path):
    video(tmp_path / "b" / "whole.mp4", frames=30)
    content = video(tmp_path / "a" / "whole.mp4", frames=30).read_bytes()
    start, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
    third = (end - start) // 3
    damaged = tmp_path / "a" / "damaged.mp4"
    damaged.write_bytes(content[: start + third] + bytes(third) + content[start + 2 * third :])
    empty, uneven = tmp_path / "a" / "empty" / "1.png", tmp_path / "b" / "uneven" / "2.png"
    for n in range(3):
        image(empty.parent / f"{n}.png")
        image(uneven.parent / f"{n}.png", size=8 + n // 2)
    empty.write_bytes(b"")
    assert probe(damaged).frames == 30
    report = check(clips(tmp_path))
    assert set(report.unreadable) == {damaged, empty.parent, uneven.parent}
    assert str(empty) in report.unreadable[empty.parent]
    assert str(uneven) in report.unreadable[uneven.parent]


def test_unreadable_videos_only_are_not_usable(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "empty.mp4").touch()
    assert check(folder(tmp_path)).faults == ("split train has no readable sample",)


@pytest.mark.parametrize("options", [{"min_frames": 0}, {"workers": 0}])
def test_check_refuses_numbers_below_one(options):
    with pytest.raises(ValueError, match="must be at least 1"):
        check(DatasetIndex((), {}, "images"), **options)


def test_command_prints_a_table_and_every_problem(tmp_path, capsys):
    bad = truncated(pictures(tmp_path) / "train" / "a" / "0.jpg")
    with pytest.raises(ValueError, match=r"is usable, but 1 of 5 files cannot be read"):
        data("check", str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 classes of images"
    assert lines[3].split() == ["train", "4", "3", "1", "(b),", "3", "(a)"]
    assert lines[4].split() == ["test", "1", "1", "0", "(a),", "1", "(b)"]
    assert lines[5] == ""
    assert lines[6].startswith(f"{bad} cannot be read: ")
    assert len(lines) == 7


def test_command_says_in_one_line_how_many_clips_are_short(tmp_path, capsys):
    for name, frames in (("a", 4), ("b", 3)):
        shortest = video(tmp_path / name / "clip.mp4", frames)
    said = f"clips too short and played in a loop: {shortest} has 3 of"
    data("check", str(tmp_path))
    assert capsys.readouterr().out.splitlines()[4:] == ["", f"2 {said} 64 frames"]
    data("check", str(tmp_path), min_frames=4)
    assert capsys.readouterr().out.splitlines()[4:] == ["", f"1 {said.replace('clips', 'clip')} 4 frames"]


def test_command_refuses_what_is_not_usable(tmp_path, capsys):
    (pictures(tmp_path) / "train" / "c").mkdir()
    with pytest.raises(ValueError, match=r"is not usable: no readable training sample for class c$"):
        data("check", str(tmp_path))
    assert "c holds no images" in capsys.readouterr().out


def test_command_refuses_an_unknown_action_or_dataset(tmp_path, capsys):
    assert main(["data", "mend", str(tmp_path)]) == 2
    assert "action = mend must be one of check, show, draw, shrink, pack, convert" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"there is no dataset 'birds' to check; there is folder, images, clips, cub"):
        data("check", str(tmp_path), dataset="birds")


@pytest.mark.parametrize(
    "words", [("check",), ("draw",), ("check", "a", "b"), ("shrink", "a"), ("shrink", "a", "b", "c")]
)
def test_command_says_how_an_action_is_used(words):
    with pytest.raises(ValueError, match=f"cgnl data {words[0]} [A-Z]"):
        data(*words)


def test_data_check_takes_an_annotation_file_by_its_name(tmp_path, capsys):
    pytest.importorskip("faster_coco_eval")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "1.png")
    objects = [
        {"id": 7, "image_id": 1, "category_id": 3, "bbox": [2, 2, 9, 9], "area": 81, "iscrowd": 0},
        {"id": 8, "image_id": 1, "category_id": 4, "bbox": [2, 2, 9, 9], "area": 81, "iscrowd": 0},
    ]
    objects = [o | {"segmentation": [[2, 2, 11, 2, 11, 11, 2, 11]]} for o in objects]
    pictures = [{"id": 1, "file_name": "1.png", "width": 40, "height": 30}]
    content = {"images": pictures, "annotations": objects, "categories": [{"id": 3, "name": "cat"}]}
    (tmp_path / "mine.json").write_text(json.dumps(content))
    data("check", str(tmp_path), annotations="mine.json", images="photos")
    said = capsys.readouterr().out
    assert "1 class of objects" in said
    assert "annotation 8" in said
    with pytest.raises(ValueError, match="images is for dataset=coco, not for cub"):
        data("check", str(tmp_path), dataset="cub", images="photos")
