"""From settings to samples, and how they are seen."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from cgnl.data.augment import Augmentation
from cgnl.data.loading import EpochSample, EvalSet, TrainSet
from cgnl.data.synthetic import SYNTHETIC
from cgnl.engine.config import build, to_dict
from cgnl.engine.datasets import (
    augmentation_in_training,
    dataset_name,
    open_dataset,
    short_side_in_test,
    view_in_training,
    with_defaults,
)
from cgnl.engine.settings import Config, Data
from cgnl.engine.tasks import TASKS


def image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), "red").save(path)
    return path


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def names(source, root: Path) -> list[tuple[str, int]]:
    return [(Path(source.name(i)).relative_to(root).as_posix(), source.label(i)) for i in range(len(source))]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (Data(), "parts"),
        (Data(root="birds"), "folder"),
        (Data(dataset="actions"), "actions"),
        (Data(dataset="cub", root="birds"), "cub"),
        (Data(dataset="parts", root="birds"), "parts"),
    ],
    ids=["nothing", "root", "dataset", "both", "embedded with a root"],
)
def test_dataset_name_is_the_one_meant(data, name):
    assert dataset_name(data) == name


@pytest.mark.parametrize("name", SYNTHETIC)
def test_open_dataset_draws_the_embedded_ones(name):
    dataset = open_dataset(Data(dataset=name, samples=10))
    assert (dataset.name, dataset.classes) == (name, SYNTHETIC[name][0])
    assert dataset.kind == ("videos" if name == "actions" else "images")
    assert (len(dataset.train), len(dataset.test), dataset.problems) == (10, 2, ())


def test_open_dataset_tests_on_other_drawings_than_it_trains_on():
    dataset = open_dataset(Data(samples=8))
    train = [dataset.train.read(i, range) for i in range(8)]
    assert not any(torch.equal(dataset.test.read(i, range), pixels) for i in range(2) for pixels in train)


def test_open_dataset_has_a_test_sample_however_few_are_drawn():
    assert len(open_dataset(Data(samples=1)).test) == 1


def test_open_dataset_reads_a_folder_with_a_test_split(tmp_path):
    for file in ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "val/dog/3.png"):
        image(tmp_path / file)
    dataset = open_dataset(Data(root=str(tmp_path)))
    assert (dataset.name, dataset.classes, dataset.kind) == ("folder", ("cat", "dog"), "images")
    assert names(dataset.train, tmp_path) == [("train/cat/1.png", 0), ("train/cat/2.png", 0), ("train/dog/1.png", 1)]
    assert names(dataset.test, tmp_path) == [("val/dog/3.png", 1)]
    assert dataset.problems == ()
    assert dataset.test.read(0, range).shape == (3, 10, 12)


def test_open_dataset_keeps_a_part_of_a_folder_without_a_test_split(tmp_path):
    files = [image(tmp_path / name / f"{n}.png") for name in ("cat", "dog") for n in range(4)]
    dataset = open_dataset(Data(root=str(tmp_path), holdout=0.25))
    train, test = names(dataset.train, tmp_path), names(dataset.test, tmp_path)
    assert sorted(name for name, _ in train + test) == sorted(f.relative_to(tmp_path).as_posix() for f in files)
    assert sorted(label for _, label in test) == [0, 1]
    assert dataset.problems == (f"{tmp_path} has no test split: 25% of each class are kept for testing",)


def test_open_dataset_keeps_the_same_part_each_time(tmp_path):
    for n in range(20):
        image(tmp_path / "cat" / f"{n}.png")
    first, second = (names(open_dataset(Data(root=str(tmp_path))).test, tmp_path) for _ in range(2))
    assert first == second


def test_open_dataset_needs_a_test_sample(tmp_path):
    image(tmp_path / "cat" / "1.png")
    sentence = f"^{re.escape(str(tmp_path))} has no samples to test on"
    with pytest.raises(
        ValueError, match=f"{sentence}: too few to keep some from the training; put .*, or say data.test_on=train$"
    ):
        open_dataset(Data(root=str(tmp_path)))
    with pytest.raises(ValueError, match=f"{sentence}$"):
        open_dataset(Data(root=str(tmp_path), holdout=0))


def test_open_dataset_says_which_classes_cannot_be_learnt(tmp_path):
    for file in ("train/cat/1.png", "test/cat/1.png", "test/dog/1.png", "test/eel/1.png"):
        image(tmp_path / file)
    dataset = open_dataset(Data(root=str(tmp_path)))
    assert dataset.classes == ("cat", "dog", "eel")
    assert dataset.problems[-1] == "2 of 3 classes have no training sample: dog, eel"


@pytest.fixture
def birds(tmp_path):
    """Two classes of CUB-200-2011."""
    home = tmp_path / "CUB_200_2011"
    files = ["001.Auk/a.jpg", "001.Auk/b.jpg", "002.Owl/c.jpg", "002.Owl/d.jpg"]
    for file in files:
        image(home / "images" / file)
    write(home / "classes.txt", "1 001.Auk", "2 002.Owl")
    write(home / "images.txt", *(f"{n} {file}" for n, file in enumerate(files, 1)))
    write(home / "image_class_labels.txt", "1 1", "2 1", "3 2", "4 2")
    write(home / "train_test_split.txt", "1 1", "2 0", "3 0", "4 1")
    return tmp_path


def test_open_dataset_reads_cub(birds):
    dataset = open_dataset(Data(dataset="cub", root=str(birds)))
    assert (dataset.name, dataset.classes, dataset.kind) == ("cub", ("001.Auk", "002.Owl"), "images")
    home = birds / "CUB_200_2011" / "images"
    assert names(dataset.train, home) == [("001.Auk/a.jpg", 0), ("002.Owl/d.jpg", 1)]
    assert names(dataset.test, home) == [("001.Auk/b.jpg", 0), ("002.Owl/c.jpg", 1)]
    assert dataset.problems == ()


def test_open_dataset_names_files_that_are_missing(birds):
    (birds / "CUB_200_2011" / "images" / "002.Owl" / "c.jpg").unlink()
    dataset = open_dataset(Data(dataset="cub", root=str(birds)))
    assert len(dataset.test) == 1
    assert any("c.jpg" in problem for problem in dataset.problems)


@pytest.mark.parametrize("split", [1, 2, 3])
def test_open_dataset_reads_the_split_of_ucf101_that_is_asked_for(tmp_path, split):
    write(tmp_path / "ucfTrainTestlist" / "classInd.txt", "1 Archery")
    for number in (1, 2, 3):
        write(tmp_path / "ucfTrainTestlist" / f"trainlist0{number}.txt", f"Archery/v{number}.avi 1")
        write(tmp_path / "ucfTrainTestlist" / f"testlist0{number}.txt", f"Archery/v{number % 3 + 1}.avi")
        write(tmp_path / "UCF-101" / "Archery" / f"v{number}.avi")
    dataset = open_dataset(Data(dataset="ucf101", root=str(tmp_path), split=split))
    assert dataset.kind == "videos"
    assert names(dataset.train, tmp_path / "UCF-101") == [(f"Archery/v{split}.avi", 0)]
    assert names(dataset.test, tmp_path / "UCF-101") == [(f"Archery/v{split % 3 + 1}.avi", 0)]


def test_open_dataset_finds_the_lists_of_mini_kinetics_elsewhere(tmp_path):
    root, lists = tmp_path / "kinetics", tmp_path / "lists"
    for split, folder in (("train", "train"), ("val", "val")):
        write(root / f"{split}.csv", "label,youtube_id,time_start,time_end,split", f"run,{split}-id,1,11,{split}")
        write(root / folder / "run" / f"{split}-id_000001_000011.mp4")
        write(lists / f"{split}_ytid_list.txt", f"{split}-id")
    dataset = open_dataset(Data(dataset="mini_kinetics200", root=str(root), lists=str(lists)))
    assert names(dataset.train, root) == [("train/run/train-id_000001_000011.mp4", 0)]
    assert names(dataset.test, root) == [("val/run/val-id_000001_000011.mp4", 0)]


@pytest.mark.parametrize(("name", "hint"), [("cubs", "cub"), ("part", "parts"), ("ucf", "ucf101")])
def test_open_dataset_names_the_nearest(name, hint):
    with pytest.raises(ValueError, match=rf"^there is no dataset '{name}'; did you mean {hint}\?$"):
        open_dataset(Data(dataset=name, root="."))


def test_open_dataset_needs_to_know_where():
    with pytest.raises(ValueError, match=r"^data\.root must say where cub is$"):
        open_dataset(Data(dataset="cub"))


@pytest.mark.parametrize("given", [True, False], ids=["named", "by default"])
def test_views_of_embedded_pictures_are_as_drawn(given):
    data = Data(dataset="parts" if given else None, samples=8)
    dataset = open_dataset(data)
    truth = SYNTHETIC["parts"][1]
    batch = TrainSet(dataset.train, view_in_training(data), seed=3, bad_limit=0).__getitems__([EpochSample(2, 5)])
    assert torch.equal(batch.pixels[0], truth(0, 5).pixels)
    batch = EvalSet(dataset.test, TASKS["images"].view_in_test(data)).__getitems__([1])
    assert torch.equal(batch.pixels[0], truth(1, 1).pixels[None])


@pytest.mark.parametrize("full", [True, False])
def test_views_of_embedded_clips_are_as_drawn(full):
    data = Data(dataset="actions", samples=8)
    dataset = open_dataset(data)
    truth = SYNTHETIC["actions"][1]
    batch = TrainSet(dataset.train, view_in_training(data), seed=3, bad_limit=0).__getitems__([EpochSample(2, 5)])
    assert torch.equal(batch.pixels[0], truth(0, 5).pixels)
    batch = EvalSet(dataset.test, TASKS["videos"].view_in_test(data, full)).__getitems__([1])
    assert torch.equal(batch.pixels[0], truth(1, 1).pixels[None])


def test_augmentation_in_training_takes_the_settings():
    assert augmentation_in_training(Data(), 5) == Augmentation(classes=5)
    data = Data(augment="trivial", jitter=0.1, erase=0.2, mixup=0.3, cutmix=0.4)
    assert augmentation_in_training(data, 5) == Augmentation("trivial", 0.1, 0.2, 0.3, 0.4, 5)


def test_view_in_training_takes_the_settings():
    data = Data(root="x", size=96, area=(0.5, 1.0), flip=False, frames=8, stride=4)
    view = view_in_training(data)
    assert (view.size, view.area, view.flip, view.frames, view.stride) == (96, (0.5, 1.0), False, 8, 4)


@pytest.mark.parametrize(
    ("data", "kind", "full", "expected"),
    [
        (Data(root="x", size=448, test_short_side=448), "images", True, (448, 448, 1, 1)),
        (Data(root="x", size=64), "images", True, (64, 73, 1, 1)),
        (Data(root="x", size=112), "videos", False, (128, 128, 1, 1)),
        (Data(root="x", size=448, test_size=480, test_short_side=512), "images", False, (480, 512, 1, 1)),
        (Data(root="x", test_clips=4), "videos", True, (256, 256, 4, 3)),
        (Data(root="x", test_size=224), "videos", True, (224, 256, 10, 3)),
        (Data(root="x"), "videos", False, (256, 256, 1, 1)),
    ],
    ids=[
        *("pictures", "small pictures", "small videos", "of another size"),
        *("videos", "videos of another size", "one view"),
    ],
)
def test_view_in_test_takes_the_settings(data, kind, full, expected):
    view = TASKS[kind].view_in_test(data, full)
    assert (view.size, view.short_side, view.clips, view.crops) == expected
    assert (view.frames, view.stride) == (32, 2)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (Data(root="x", size=448, test_short_side=256), "images"),
        (Data(root="x", test_size=257), "images"),
        (Data(root="x", test_size=257), "videos"),
    ],
    ids=["pictures", "of another size", "videos of another size"],
)
def test_view_in_test_refuses_a_crop_that_cannot_fit(data, kind):
    with pytest.raises(ValueError, match=r"data\.test_short_side"):
        TASKS[kind].view_in_test(data)


@pytest.mark.parametrize(
    ("data", "side"),
    [
        (Data(), 256),
        (Data(root="x", size=448), 512),
        (Data(root="x", size=64), 73),
        (Data(root="x", size=1), 1),
        (Data(root="x", size=8192), 8192),
        (Data(root="x", size=64, test_short_side=64), 64),
        (Data(root="x", dataset="coco", size=800), 800),
        (Data(annotations="x.json", size=400), 400),
        (Data(dataset="coco", size=400, test_short_side=800), 800),
    ],
    ids=str,
)
def test_short_side_in_test_follows_the_size(data, side):
    config = with_defaults(Config(data=data))
    assert short_side_in_test(data) == config.data.test_short_side == side
    assert build(to_dict(config)).data.test_short_side == side


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_view_in_test_takes_a_crop_as_large_as_the_short_side(kind):
    assert TASKS[kind].view_in_test(Data(root="x", test_size=256)).size == 256


@pytest.mark.parametrize("with_test", [False, True])
def test_open_dataset_validates_on_training_samples_alone(tmp_path, with_test):
    for split, count in {"train": 10, "test": 4}.items():
        for number in range(count):
            image(tmp_path / (split if with_test else "") / "red" / f"{split}{number}.png")
    whole, part = (open_dataset(Data(root=str(tmp_path), test_on=on)) for on in ("test", "validation"))
    trained, validated = ({n for n, _ in names(source, tmp_path)} for source in (part.train, part.test))
    assert trained.isdisjoint(validated)
    assert trained | validated == {n for n, _ in names(whole.train, tmp_path)}
    assert len(validated) == round(0.2 * len(whole.train))


def test_open_dataset_validates_on_drawings_of_their_own():
    tested, validated = (open_dataset(Data(samples=8, test_on=on)).test for on in ("test", "validation"))
    assert not torch.equal(tested.read(0, range), validated.read(0, range))


def test_open_dataset_takes_a_limited_number(tmp_path):
    for name in ("red", "green"):
        for number in range(10):
            image(tmp_path / name / f"{number}.png")
    dataset = open_dataset(Data(root=str(tmp_path), limit=6))
    assert [label for _, label in names(dataset.train, tmp_path)] == [0, 0, 0, 1, 1, 1]
    assert len(dataset.test) == 4
