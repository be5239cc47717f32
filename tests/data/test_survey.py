"""What is found in a folder that nobody has described."""

import shutil
from pathlib import Path

import pytest

from cgnl.data.readers import folder
from cgnl.data.survey import SAMPLED, describe, survey
from tests.data.test_readers import write
from tests.engine.conftest import write_pictures, write_video
from tests.engine.tasks.test_detection import HEIGHT, WIDTH, write_scenes


def test_class_folders(tmp_path):
    write_pictures(tmp_path, classes="abcd", count=20, size=(40, 32))
    found = survey(tmp_path)
    assert (found.layout, found.given, found.index.kind) == ("folder", {}, "images")
    assert found.counts == dict.fromkeys("abcd", 20)
    assert (found.samples, found.short_side, found.imbalance) == (80, 32, 1)
    assert found.sizes == ((40, 32),) * SAMPLED["images"]
    assert found.unreadable == found.frames == ()


def test_splits_and_uneven_classes(tmp_path):
    write_pictures(tmp_path / "train", classes="ab", count=12)
    write_pictures(tmp_path / "val", classes="ab", count=2)
    for path in sorted((tmp_path / "train" / "b").iterdir())[3:]:
        path.unlink()
    found = survey(tmp_path)
    assert (found.counts, found.imbalance) == ({"a": 12, "b": 3}, 4)
    text = "\n".join(describe(found))
    assert "15 to train, 4 to test; 3 (b) to 12 (a) in a class" in text


def test_some_are_unreadable(tmp_path):
    paths = write_pictures(tmp_path, classes="ab", count=3)
    paths[0].write_bytes(b"")
    paths[4].write_text("no picture")
    found = survey(tmp_path)
    assert len(found.sizes) == 4
    assert [sentence.partition(" cannot")[0] for sentence in found.unreadable] == [str(paths[0]), str(paths[4])]
    assert any(str(paths[0]) in line for line in describe(found))


def test_clips(tmp_path):
    for name, frames in {"a/1.mp4": 10, "a/2.mp4": 20, "b/1.mp4": 12}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / name, frames)
    found = survey(tmp_path)
    assert (found.index.kind, sorted(found.frames)) == ("videos", [10, 12, 20])
    assert any("10 to 20 frames" in line for line in describe(found))
    (tmp_path / "a/2.mp4").unlink()
    (tmp_path / "a/1.mp4").unlink()
    shutil.copy(tmp_path / "b/1.mp4", tmp_path / "a/1.mp4")
    assert any(line.endswith(", 12 frames") for line in describe(survey(tmp_path)))


def test_objects(tmp_path):
    write_scenes(tmp_path, {"train2017": 4, "val2017": 2})
    for split in ("train2017", "val2017"):
        given = tmp_path / "annotations" / f"{split}.json"
        if given.exists():
            given.rename(given.with_name(f"instances_{split}.json"))
    found = survey(tmp_path)
    assert (found.layout, found.index.kind, found.samples) == ("coco", "objects", 4)
    assert set(found.sizes) == {(HEIGHT, WIDTH)}


def test_annotations_beside_the_images_of_a_split(tmp_path):
    write_scenes(tmp_path / "all", {"train2017": 4, "val2017": 2})
    for old, new in {"train2017": "train", "val2017": "valid"}.items():
        shutil.move(tmp_path / "all" / old, tmp_path / new)
        (found,) = (tmp_path / "all" / "annotations").glob(f"*{old}.json")
        shutil.move(found, tmp_path / new / "_annotations.coco.json")
    shutil.rmtree(tmp_path / "all")
    found = survey(tmp_path)
    assert found.given == {
        "annotations": "train/_annotations.coco.json",
        "images": "train",
        "test_annotations": "valid/_annotations.coco.json",
        "test_images": "valid",
    }
    assert {split: len(scenes) for split, scenes in found.index.splits.items()} == {"train": 4, "test": 2}
    with pytest.raises(ValueError, match=r"dataset=coco annotations=train/_annotations\.coco\.json images=train"):
        folder(tmp_path)


def spoil(root: Path, how: str) -> None:
    if how == "file":
        root.touch()
    elif how != "missing":
        root.mkdir()
    if how == "flat":
        write_pictures(root, classes="a", count=2)
        shutil.move(root / "a" / "0.png", root / "0.png")
        shutil.rmtree(root / "a")
    elif how == "text":
        write(root / "notes.txt", "nothing")
    elif how == "empty classes":
        (root / "a").mkdir()
    elif how == "one class":
        write_pictures(root, classes="a")
    elif how == "broken":
        for path in write_pictures(root, classes="ab", count=2):
            path.write_text("broken")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is not a folder"),
        ("file", "is not a folder"),
        ("empty", "is empty"),
        ("flat", "holds 1 file, but no folder for each class"),
        ("text", "holds no images, clips or folders"),
        ("empty classes", "a holds no images"),
        ("one class", "fewer than two classes"),
        ("broken", "holds nothing that can be read"),
    ],
)
def test_refuses(tmp_path, how, message):
    spoil(tmp_path / "data", how)
    with pytest.raises(ValueError, match=message) as caught:
        survey(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)
