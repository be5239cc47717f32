"""Datasets in their official layouts, and what is said when they are not."""

import contextlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cgnl.data.index import MAX_NAMED, VIDEO_SUFFIXES, DatasetIndex, Sample
from cgnl.data.readers import (
    LSA64_SIGNS,
    READERS,
    cub,
    folder,
    imagenet,
    kinetics400,
    lsa64,
    mini_kinetics200,
    pets,
    ucf101,
)
from cgnl.data.recognise import MARKERS
from cgnl.engine.config import build
from cgnl.engine.datasets import open_dataset
from cgnl.engine.settings import Data

CSV_HEADER = "label,youtube_id,time_start,time_end,split,is_cc"


def image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), "red").save(path)
    return path


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def write(path: Path, *lines: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def names(index: DatasetIndex, root: Path) -> dict[str, list[tuple[str, int]]]:
    """The samples of each split, by path in the dataset."""
    return {
        split: [(path.relative_to(root).as_posix(), label) for path, label in samples]
        for split, samples in index.splits.items()
    }


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_missing_root_is_named(reader, tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is not a folder"):
        reader(tmp_path / "nowhere")


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_empty_root_is_refused_in_one_sentence(reader, tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))) as raised:
        reader(tmp_path)
    assert "\n" not in str(raised.value)


def test_folder_of_images_without_a_test_split(tmp_path):
    image(tmp_path / "dog" / "b.JPG")
    image(tmp_path / "dog" / "a 1.png")
    image(tmp_path / "black cat" / "x.jpeg")
    write(tmp_path / "dog" / "notes.txt", "not media")
    touch(tmp_path / "dog" / ".hidden.jpg")
    image(tmp_path / ".cache" / "x.jpg")
    write(tmp_path / "README.md", "a file beside the classes")
    index = folder(str(tmp_path))
    assert index.classes == ("black cat", "dog")
    assert index.kind == "images"
    assert index.problems == ("ignored: .cache, .hidden.jpg",)
    assert index.splits == {
        "train": (
            Sample(tmp_path / "black cat" / "x.jpeg", 0),
            Sample(tmp_path / "dog" / "a 1.png", 1),
            Sample(tmp_path / "dog" / "b.JPG", 1),
        )
    }


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation", "Test", "VAL", "testing", "eval"])
@pytest.mark.parametrize("train", ["train", "Train", "training"])
def test_folder_with_a_test_split(tmp_path, train, test):
    for name in (f"{train}/a/1.png", f"{train}/b/2.png", f"{test}/b/3.png", f"{test}/a/4.png"):
        image(tmp_path / name)
    assert names(folder(tmp_path), tmp_path) == {
        "train": [(f"{train}/a/1.png", 0), (f"{train}/b/2.png", 1)],
        "test": [(f"{test}/a/4.png", 0), (f"{test}/b/3.png", 1)],
    }


def test_folder_with_both_val_and_test(tmp_path):
    for name in ("train/a/1.png", "val/a/2.png", "test/a/3.png"):
        image(tmp_path / name)
    assert names(folder(tmp_path), tmp_path) == {
        "train": [("train/a/1.png", 0)],
        "test": [("test/a/3.png", 0)],
        "val": [("val/a/2.png", 0)],
    }


def test_folder_names_what_is_beside_its_splits(tmp_path):
    for name in ("train/a/1.png", "test/a/2.png", "Test/a/2.png", "dev/a/3.png"):
        image(tmp_path / name)
    index = folder(tmp_path)
    assert names(index, tmp_path) == {"train": [("train/a/1.png", 0)], "test": [("test/a/2.png", 0)]}
    assert "Test, dev beside train: left out" in index.problems[-1]


def test_folder_with_classes_called_training_and_testing(tmp_path):
    for name in ("training", "testing", "walking"):
        image(tmp_path / name / "clip" / "1.png")
    assert folder(tmp_path).classes == ("testing", "training", "walking")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("train/0.tar",), "dataset=shards, or in training data.dataset=shards"),
        (("dataset_dict.json", "train/state.json"), "dataset=hf, or in training data.dataset=hf"),
        (("my.csv", "1.png"), "dataset=csv labels=my.csv, or in training data.dataset=csv data.labels=my.csv"),
    ],
)
def test_folder_without_classes_says_what_it_looks_like(tmp_path, files, said):
    for name in files:
        write(tmp_path / name, "file,label")
    with pytest.raises(ValueError, match=f"looks like .*: say {said}$"):
        folder(tmp_path)


def test_folder_with_a_class_called_train(tmp_path):
    for name in ("bus/1.png", "train/2.png"):
        image(tmp_path / name)
    assert names(folder(tmp_path), tmp_path) == {"train": [("bus/1.png", 0), ("train/2.png", 1)]}


def test_folder_of_videos_and_of_frames(tmp_path):
    touch(tmp_path / "jump" / "clip.mp4")
    image(tmp_path / "jump" / "a clip" / "0001.jpg")
    image(tmp_path / "walk" / "other" / "0001.jpg")
    (tmp_path / "walk" / "empty").mkdir()
    index = folder(tmp_path)
    assert index.kind == "videos"
    assert names(index, tmp_path) == {"train": [("jump/a clip", 0), ("jump/clip.mp4", 0), ("walk/other", 1)]}


@pytest.mark.parametrize("junk", ["__MACOSX", ".ipynb_checkpoints", ".git", "@eaDir", "lost+found"])
def test_folder_ignores_what_systems_leave_behind(tmp_path, junk):
    for name in ("a/1.png", "b/2.png", f"{junk}/a/3.png", f"a/{junk}/4.png"):
        image(tmp_path / name)
    touch(tmp_path / "a" / ".DS_Store")
    touch(tmp_path / "b" / ".DS_Store")
    index = folder(tmp_path)
    assert names(index, tmp_path) == {"train": [("a/1.png", 0), ("b/2.png", 1)]}
    assert index.problems == (f"ignored: {', '.join(sorted(['.DS_Store', junk]))}",)


def test_folder_ignores_pipes(tmp_path):
    for name in ("a/1.png", "b/2.png"):
        image(tmp_path / name)
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "broken.png").symlink_to("nowhere")
    index = folder(tmp_path)
    assert names(index, tmp_path) == {"train": [("a/1.png", 0), ("b/2.png", 1), ("b/broken.png", 1)]}
    assert index.problems == ("ignored: pipe.png",)


def test_folder_names_few_of_many_ignored_files(tmp_path):
    for number in range(5):
        image(tmp_path / "a" / f"{number}.png")
        touch(tmp_path / "a" / f"._{number}.png")
    assert folder(tmp_path).problems == ("ignored: ._0.png, ._1.png, ._2.png and 2 more",)


def test_folder_reads_nested_images(tmp_path):
    for name in ("a/indoor/rex.png", "a/indoor/old/fido.png", "a/1.png", "b/outdoor/tom.png"):
        image(tmp_path / name)
    index = folder(tmp_path)
    assert index.kind == "images"
    assert names(index, tmp_path)["train"] == [
        ("a/1.png", 0),
        ("a/indoor/old/fido.png", 0),
        ("a/indoor/rex.png", 0),
        ("b/outdoor/tom.png", 1),
    ]
    (decision,) = index.problems
    assert re.search(r"indoor is read as a folder of images, not a clip, because of .*a/1\.png$", decision)


def test_folder_reads_the_images_that_torchvision_reads(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    for name in ("a/x.png", "a/c/d/e/y.jpg", "a/c/z.png", "b/u/1.png", "b/u/7.png", "b/u/8.png"):
        image(tmp_path / name)
    theirs, ours = datasets.ImageFolder(str(tmp_path)), folder(tmp_path)
    assert list(ours.classes) == theirs.classes
    assert sorted((str(path), label) for path, label in ours.splits["train"]) == sorted(theirs.samples)


NUMBERED = ["frame_001.jpg", "frame_002.jpg", "frame_003.jpg"]
STRIDED = ["8.png", "10.png", "12.png"]
PHOTOS = ["IMG_3301.jpg", "IMG_3302.jpg", "IMG_3390.jpg"]


@pytest.mark.parametrize(
    ("folders", "kind"),
    [
        ([NUMBERED, STRIDED], "videos"),
        ([["1.png"], ["v2_007.png"]], "videos"),
        ([NUMBERED, NUMBERED, ["000.jpg", "002.jpg", "003.jpg"]], "videos"),  # a frame was lost
        ([PHOTOS, NUMBERED], "images"),
        ([PHOTOS, PHOTOS], "images"),
        ([["rex.png"], ["a1.png", "b2.png"]], "images"),
        ([["1.png", "2.jpg"], ["1.png", "1.jpg"]], "images"),
    ],
)
def test_folder_tells_frames_from_nested_images_by_their_numbers(tmp_path, folders, kind):
    for number, files in enumerate(folders):
        for file in files:
            image(tmp_path / "ab"[number % 2] / f"inner{number}" / file)
    index = folder(tmp_path)
    assert index.kind == kind
    (decision,) = index.problems
    other = {"videos": "images", "images": "clips"}[kind]
    assert re.search(rf"inner0 is read as .* of {len(folders)} folders .*; dataset={other} ", decision)
    assert READERS[other](tmp_path).kind != kind
    assert READERS[other](tmp_path).problems == ()
    files = sum(map(len, folders))
    assert len(index.splits["train"]) == (files if kind == "images" else len(folders))


def test_folder_reads_clips_at_any_depth(tmp_path):
    touch(tmp_path / "a" / "group" / "clip.mp4")
    image(tmp_path / "a" / "group" / "frames" / "0.png")
    image(tmp_path / "a" / "group" / "frames" / "masks" / "0.png")
    image(tmp_path / "b" / "more" / "x" / "y" / "cover.png")
    index = folder(tmp_path)
    assert index.kind == "videos"
    assert names(index, tmp_path)["train"] == [("a/group/clip.mp4", 0), ("a/group/frames", 0), ("b/more/x/y", 1)]
    assert re.search(r"frames is read as a clip, because of .*clip\.mp4$", index.problems[0])


def test_folder_that_links_to_itself_ends(tmp_path):
    image(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "b").symlink_to(tmp_path / "a", target_is_directory=True)
    assert names(folder(tmp_path), tmp_path)["train"][0] == ("a/1.png", 0)


@pytest.mark.parametrize("splits", [("",), ("train/", "test/")])
def test_folder_mentions_images_in_no_class(tmp_path, splits):
    for split in splits:
        for name in ("a/1.png", "b/2.png", "stray.png"):
            image(tmp_path / f"{split}{name}")
    index = folder(tmp_path)
    assert index.classes == ("a", "b")
    counted = "1 file" if len(splits) == 1 else "2 files"
    assert index.problems == (f"{counted} in no class folder: ignored, such as {tmp_path / splits[0] / 'stray.png'}",)


@pytest.mark.parametrize(("reader", "wrong"), [("images", "clip.mp4"), ("clips", "1.png")])
def test_readers_of_one_kind_mention_the_other(tmp_path, reader, wrong):
    image(tmp_path / "a" / "1.png")
    touch(tmp_path / "a" / "clip.mp4")
    index = READERS[reader](tmp_path)
    assert len(index.splits["train"]) == 1
    assert index.problems == (f"1 file not of {index.kind}: ignored, such as {tmp_path / 'a' / wrong}",)


def test_folder_names_a_class_without_files(tmp_path):
    image(tmp_path / "a" / "1.png")
    write(tmp_path / "b" / "notes.txt", "nothing")
    index = folder(tmp_path)
    assert index.classes == ("a", "b")
    assert index.problems == (f"{tmp_path / 'b'} holds no images, video files or folders of frames",)


@pytest.mark.parametrize(
    ("layout", "sign"), [(name, sign) for name, (_, *markers) in MARKERS.items() for sign in markers]
)
def test_folder_knows_official_layouts(tmp_path, layout, sign):
    image(tmp_path / "images" / "a" / "1.png")
    touch(tmp_path / sign.replace("*", "2017"))
    with pytest.raises(
        ValueError, match=rf"looks like .*: say dataset={layout}, or in training data.dataset={layout}$"
    ):
        folder(tmp_path)


def test_folder_names_pictures_that_are_not_read(tmp_path):
    for name in "ab":
        image(tmp_path / name / "1.png")
        touch(tmp_path / name / "2.AVIF")
    index = folder(tmp_path)
    assert names(index, tmp_path) == {"train": [("a/1.png", 0), ("b/1.png", 1)]}
    assert index.problems == (f"2 images of a kind that is not read, such as {tmp_path / 'a' / '2.AVIF'}",)


def test_folder_names_a_class_that_is_only_tested(tmp_path):
    for name in ("train/b/1.png", "test/a/2.png", "test/b/3.png"):
        image(tmp_path / name)
    index = folder(tmp_path)
    assert index.classes == ("a", "b")
    assert index.problems == (f"class a has no folder in {tmp_path / 'train'}",)


@pytest.mark.parametrize("clip", ["b/clip.avi", "a/clip.avi"])
def test_folder_refuses_a_mix(tmp_path, clip):
    image(tmp_path / "a" / "1.png")
    touch(tmp_path / clip)
    with pytest.raises(ValueError, match=r"mixes images \(.*1\.png\) and videos \(.*clip\.avi\)"):
        folder(tmp_path)


def test_folder_refuses_only_empty_classes(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"none of the images it should: .*a holds no images"):
        folder(tmp_path)


CUB_CLASSES = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
CUB_IMAGES = [f"{name}/{name[4:]}_{i:04}.jpg" for name in CUB_CLASSES for i in (1, 2)]


@pytest.fixture
def cub_root(tmp_path):
    home = tmp_path / "CUB_200_2011"
    write(home / "classes.txt", *(f"{i} {name}" for i, name in enumerate(CUB_CLASSES, 1)))
    write(home / "images.txt", *(f"{i} {name}" for i, name in enumerate(CUB_IMAGES, 1)))
    write(home / "image_class_labels.txt", "1 1", "2 1", "3 2", "4 2")
    write(home / "train_test_split.txt", "1 0", "2 1", "3 1", "4 0")
    for name in CUB_IMAGES:
        image(home / "images" / name)
    return home


@pytest.mark.parametrize("given", ["itself", "parent"])
def test_cub(cub_root, given):
    index = cub(cub_root if given == "itself" else cub_root.parent)
    assert index.classes == CUB_CLASSES
    assert index.kind == "images"
    assert index.problems == ()
    assert names(index, cub_root / "images") == {
        "train": [(CUB_IMAGES[1], 0), (CUB_IMAGES[2], 1)],
        "test": [(CUB_IMAGES[0], 0), (CUB_IMAGES[3], 1)],
    }


def test_cub_label_without_its_file(cub_root):
    path = cub_root / "images" / CUB_IMAGES[2]
    path.unlink()
    index = cub(cub_root)
    assert index.problems == (f"{path} is listed but missing",)
    assert names(index, cub_root / "images")["train"] == [(CUB_IMAGES[1], 0)]


def test_cub_counts_many_missing_files(cub_root):
    count = MAX_NAMED + 5
    for name, line in {"images": "{} x/{}.jpg", "image_class_labels": "{} 1", "train_test_split": "{} 1"}.items():
        with (cub_root / f"{name}.txt").open("a") as file:
            file.writelines(line.format(i, i) + "\n" for i in range(5, 5 + count))
    problems = cub(cub_root).problems
    assert len(problems) == MAX_NAMED + 1
    assert problems[-1] == "5 more listed files are missing"


@pytest.mark.parametrize("name", ["classes", "image_class_labels", "train_test_split"])
def test_cub_names_a_missing_annotation_file(cub_root, name):
    (cub_root / f"{name}.txt").unlink()
    with pytest.raises(ValueError, match=rf"{name}\.txt is missing"):
        cub(cub_root)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("images", "five a.jpg", r"images\.txt, line 5: 'five a\.jpg'"),
        ("images", "4 again.jpg", r"images\.txt, line 5: '4 again\.jpg'"),
        ("images", "5 a.jpg", r"image_class_labels\.txt gives image 5 \(a\.jpg\) no class"),
        ("images", "5 ../../secret.jpg", r"names '\.\./\.\./secret\.jpg', which is outside the dataset"),
        ("images", "5 /etc/secret.jpg", r"names '/etc/secret\.jpg', which is outside"),
        ("images", "5 C:\\secret.jpg", r"names .*secret\.jpg', which is outside"),
        ("train_test_split", "5", r"train_test_split\.txt, line 5"),
    ],
)
def test_cub_refuses_a_bad_line(cub_root, name, line, message):
    with (cub_root / f"{name}.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        cub(cub_root)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("image_class_labels", ("1 1", "2 1", "3 3", "4 2"), "gives image 3 .* no class"),
        ("train_test_split", ("1 0", "2 1", "3 2", "4 0"), "does not say 0 or 1 for image 3"),
    ],
)
def test_cub_refuses_a_bad_value(cub_root, name, lines, message):
    write(cub_root / f"{name}.txt", *lines)
    with pytest.raises(ValueError, match=message):
        cub(cub_root)


def test_binary_annotation_is_named(cub_root):
    (cub_root / "classes.txt").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ValueError, match=r"classes\.txt is not a text file"):
        cub(cub_root)


@pytest.fixture
def pets_root(tmp_path):
    notes = tmp_path / "annotations"
    write(notes / "trainval.txt", "#Image CLASS-ID SPECIES BREED ID", "saint_bernard_9 10 2 7", "Abyssinian_100 1 1 1")
    write(notes / "test.txt", "Abyssinian_2 1 1 1", "", "american_bulldog_203 2 2 1")
    for name in ("saint_bernard_9", "Abyssinian_100", "Abyssinian_2", "american_bulldog_203", "Abyssinian_3"):
        image(tmp_path / "images" / f"{name}.jpg")
    return tmp_path


@pytest.mark.parametrize("pictures", ["images", "original"])
@pytest.mark.parametrize("home", [".", "oxford-iiit-pet"])
def test_pets(pets_root, home, pictures):
    (pets_root / "images").rename(pets_root / pictures)
    if home != ".":
        (pets_root / home).mkdir()
        for name in ("annotations", pictures):
            (pets_root / name).rename(pets_root / home / name)
    index = pets(pets_root)
    assert index.classes == ("Abyssinian", "american_bulldog", "saint_bernard")
    assert index.kind == "images"
    assert index.problems == ()
    assert names(index, pets_root / home / pictures) == {
        "train": [("saint_bernard_9.jpg", 2), ("Abyssinian_100.jpg", 0)],
        "test": [("Abyssinian_2.jpg", 0), ("american_bulldog_203.jpg", 1)],
    }


def test_pets_label_without_its_file(pets_root):
    path = pets_root / "images" / "Abyssinian_2.jpg"
    path.unlink()
    index = pets(pets_root)
    assert index.problems == (f"{path} is listed but missing",)
    assert names(index, pets_root / "images")["test"] == [("american_bulldog_203.jpg", 1)]


def test_pets_without_pictures_is_refused(pets_root):
    (pets_root / "images").rename(pets_root / "pictures")
    with pytest.raises(ValueError, match=r"images.saint_bernard_9\.jpg is listed but missing"):
        pets(pets_root)


def test_pets_names_a_missing_annotation_file(pets_root):
    (pets_root / "annotations" / "test.txt").unlink()
    with pytest.raises(ValueError, match=r"test\.txt is missing"):
        pets(pets_root)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Abyssinian_4 1 1", r"test\.txt, line 4: 'Abyssinian_4 1 1'"),
        ("Abyssinian_4 1 1 1 1", r"line 4: 'Abyssinian_4 1 1 1 1'"),
        ("Abyssinian_4 0 1 1", "line 4: 'Abyssinian_4 0 1 1'"),
        ("Abyssinian_4 one 1 1", "line 4: 'Abyssinian_4 one 1 1'"),
        ("Abyssinian_4 1 -1 1", "line 4: 'Abyssinian_4 1 -1 1'"),
        ("Abyssinian 1 1 1", "line 4: 'Abyssinian 1 1 1'"),
        ("Abyssinian_x 1 1 1", "line 4: 'Abyssinian_x 1 1 1'"),
        ("_4 1 1 1", "line 4: '_4 1 1 1'"),
        ("../Abyssinian_4 1 1 1", r"names '\.\./Abyssinian_4', which is outside"),
        ("Birman_4 2 1 1", "line 4: class 2 is both american_bulldog and Birman"),
        ("Abyssinian_4 3 1 1", "gives Abyssinian more than one class"),
    ],
)
def test_pets_refuses_a_bad_line(pets_root, line, message):
    with (pets_root / "annotations" / "test.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        pets(pets_root)


@pytest.fixture
def imagenet_train(tmp_path):
    for wnid in ("n01751748", "n01440764"):
        touch(tmp_path / "train" / wnid / f"{wnid}_10.JPEG")
    return [("train/n01440764/n01440764_10.JPEG", 0), ("train/n01751748/n01751748_10.JPEG", 1)]


def test_imagenet_with_class_folders(tmp_path, imagenet_train):
    touch(tmp_path / "val" / "n01751748" / "ILSVRC2012_val_00000001.JPEG")
    index = imagenet(tmp_path)
    assert index.classes == ("n01440764", "n01751748")
    assert index.kind == "images"
    assert names(index, tmp_path) == {
        "train": imagenet_train,
        "test": [("val/n01751748/ILSVRC2012_val_00000001.JPEG", 1)],
    }


def test_imagenet_with_a_flat_val(tmp_path, imagenet_train):
    for i in (1, 2, 3):
        touch(tmp_path / "val" / f"ILSVRC2012_val_0000000{i}.JPEG")
    solution = write(
        tmp_path / "LOC_val_solution.csv",
        "ImageId,PredictionString",
        "ILSVRC2012_val_00000004,n01440764 1 2 3 4 ",
        "ILSVRC2012_val_00000002,n01440764 1 2 3 4 n01440764 5 6 7 8 ",
        "ILSVRC2012_val_00000001,n01751748 111 108 433 498 ",
    )
    index = imagenet(tmp_path)
    assert names(index, tmp_path) == {
        "train": imagenet_train,
        "test": [("val/ILSVRC2012_val_00000001.JPEG", 1), ("val/ILSVRC2012_val_00000002.JPEG", 0)],
    }
    assert index.problems == (
        f"{tmp_path / 'val' / 'ILSVRC2012_val_00000004.JPEG'} is listed but missing",
        f"1 images in {tmp_path / 'val'} have no class in {solution}",
    )


def test_imagenet_as_kaggle_packs_it(tmp_path):
    home = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    touch(home / "train" / "n01440764" / "a.JPEG")
    touch(home / "val" / "ILSVRC2012_val_00000001.JPEG")
    write(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString", "ILSVRC2012_val_00000001,n01440764 1 2 3 4")
    assert names(imagenet(tmp_path), home) == {
        "train": [("train/n01440764/a.JPEG", 0)],
        "test": [("val/ILSVRC2012_val_00000001.JPEG", 0)],
    }


@pytest.mark.usefixtures("imagenet_train")
def test_imagenet_says_what_a_flat_val_needs(tmp_path):
    touch(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(ValueError, match=r"put LOC_val_solution\.csv"):
        imagenet(tmp_path)


def test_imagenet_without_val(tmp_path, imagenet_train):
    index = imagenet(tmp_path)
    assert names(index, tmp_path) == {"train": imagenet_train}
    assert index.problems == (f"{tmp_path / 'val'} is missing, so there is no test split",)


@pytest.mark.usefixtures("imagenet_train")
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("ImageId,PredictionString", "x,n99999999 1 2 3 4"), "line 2: there is no class 'n99999999'"),
        (("ImageId,PredictionString", "../x,n01440764 1 2 3 4"), r"names '\.\./x', which is outside"),
        (("ImageId,PredictionString", "x,"), "line 2"),
        (("ImageId,PredictionString", "x,  "), "line 2"),
        (("Image,Class", "x,n01440764"), "no column 'ImageId'"),
    ],
)
def test_imagenet_refuses_a_bad_solution(tmp_path, lines, message):
    touch(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    write(tmp_path / "LOC_val_solution.csv", *lines)
    with pytest.raises(ValueError, match=message):
        imagenet(tmp_path)


UCF = [f"{name}/v_{name}_g0{g}_c01.avi" for name in ("ApplyEyeMakeup", "Archery") for g in (1, 2)]


def ucf_root(root: Path, videos: str = "UCF-101", lists: str = "ucfTrainTestlist") -> Path:
    write(root / lists / "classInd.txt", "1 ApplyEyeMakeup", "2 Archery", end="\r\n")
    for split, (train, test) in {1: ((1, 3), (0, 2)), 2: ((0, 2), (1, 3)), 3: ((0, 3), (1, 2))}.items():
        labelled = (f"{UCF[i]} {1 + i // 2}" for i in train)
        write(root / lists / f"trainlist0{split}.txt", *labelled, end="\r\n")
        write(root / lists / f"testlist0{split}.txt", *(UCF[i] for i in test), "")
    for name in UCF:
        touch(root / videos / name)
    return root


@pytest.mark.parametrize(("videos", "lists"), [("UCF-101", "ucfTrainTestlist"), (".", "."), ("UCF-101", ".")])
def test_ucf101(tmp_path, videos, lists):
    index = ucf101(ucf_root(tmp_path, videos, lists))
    assert index.classes == ("ApplyEyeMakeup", "Archery")
    assert index.kind == "videos"
    assert index.problems == ()
    assert names(index, tmp_path / videos) == {
        "train": [(UCF[1], 0), (UCF[3], 1)],
        "test": [(UCF[0], 0), (UCF[2], 1)],
    }


def test_ucf101_split_three(tmp_path):
    assert names(ucf101(ucf_root(tmp_path), split=3), tmp_path / "UCF-101") == {
        "train": [(UCF[0], 0), (UCF[3], 1)],
        "test": [(UCF[1], 0), (UCF[2], 1)],
    }


def test_ucf101_has_no_split_four(tmp_path):
    with pytest.raises(ValueError, match=r"split = 4: UCF101 has the splits 1, 2 and 3"):
        ucf101(ucf_root(tmp_path), split=4)


def test_ucf101_label_without_its_video(tmp_path):
    path = ucf_root(tmp_path) / "UCF-101" / UCF[2]
    path.unlink()
    index = ucf101(tmp_path)
    assert index.problems == (f"{path} is listed but missing",)
    assert names(index, tmp_path / "UCF-101")["test"] == [(UCF[0], 0)]


def test_ucf101_names_a_missing_list(tmp_path):
    (ucf_root(tmp_path) / "ucfTrainTestlist" / "testlist02.txt").unlink()
    with pytest.raises(ValueError, match=r"testlist02\.txt is missing"):
        ucf101(tmp_path, split=2)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("trainlist01", UCF[0], "line 3: .* is not a video in the folder of its class"),
        ("trainlist01", f"{UCF[0]} one", "line 3"),
        ("trainlist01", f"{UCF[0]} 2", "line 3"),
        ("trainlist01", f"{UCF[0]} 0", "line 3"),
        ("testlist01", "Juggling/v_Juggling_g01_c01.avi", "line 4"),
        ("testlist01", "v_Archery_g01_c01.avi", "line 4"),
        ("testlist01", "Archery/../../x.avi", r"names 'Archery/\.\./\.\./x\.avi', which is outside the dataset"),
        ("trainlist01", "/Archery/x.avi 2", r"names '/Archery/x\.avi', which is outside the dataset"),
        ("classInd", "3", r"classInd\.txt, line 3"),
    ],
)
def test_ucf101_refuses_a_bad_line(tmp_path, name, line, message):
    with (ucf_root(tmp_path) / "ucfTrainTestlist" / f"{name}.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        ucf101(tmp_path)


KINETICS = {
    "train": ["riding a bike,-aaaaaaaaaA,3,13,train,0", '"abseiling",bbbbbbbbbbB,100,110,train,0'],
    "val": ["riding a bike,cccccccccc_,0,10,val,0", "abseiling,dddddddddDD,7,17,val,0"],
}


def kinetics_root(root: Path, annotations: str = ".", val: str = "val") -> Path:
    write(root / annotations / "train.csv", CSV_HEADER, *KINETICS["train"])
    write(root / annotations / f"{val}.csv", CSV_HEADER, *KINETICS["val"])
    return root


@pytest.mark.parametrize(("annotations", "val"), [(".", "val"), ("annotations", "val"), (".", "validate")])
@pytest.mark.parametrize("bike", ["riding a bike/", "riding_a_bike/", ""])
def test_kinetics400(tmp_path, annotations, val, bike):
    kinetics_root(tmp_path, annotations, val)
    train = [f"train/{bike}-aaaaaaaaaA_000003_000013.mp4", "train/abseiling/bbbbbbbbbbB_000100_000110.mp4"]
    test = [f"{val}/{bike}cccccccccc__000000_000010.mp4", f"{val}/abseiling/dddddddddDD_000007_000017.mp4"]
    for name in (*train, *test):
        touch(tmp_path / name)
    index = kinetics400(tmp_path)
    assert index.classes == ("abseiling", "riding a bike")
    assert index.kind == "videos"
    assert index.problems == ()
    assert names(index, tmp_path) == {
        "train": list(zip(train, (1, 0), strict=True)),
        "test": list(zip(test, (1, 0), strict=True)),
    }


def test_kinetics400_counts_what_is_missing_once_for_each_split(tmp_path):
    touch(kinetics_root(tmp_path) / "train" / "bbbbbbbbbbB_000100_000110.mp4")
    touch(tmp_path / "train" / "not_listed_000000_000010.mp4")
    index = kinetics400(tmp_path)
    assert index.classes == ("abseiling", "riding a bike")
    assert names(index, tmp_path) == {"train": [("train/bbbbbbbbbbB_000100_000110.mp4", 0)], "test": []}
    assert index.problems == ("train: 1 of 2 listed videos were found", "test: 0 of 2 listed videos were found")


def test_kinetics400_without_any_video(tmp_path):
    with pytest.raises(ValueError, match="train: 0 of 2 listed videos were found"):
        kinetics400(kinetics_root(tmp_path))


def test_kinetics400_names_a_missing_csv(tmp_path):
    (kinetics_root(tmp_path) / "val.csv").unlink()
    with pytest.raises(ValueError, match=r"no val\.csv or validate\.csv"):
        kinetics400(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("abseiling,eeeeeeeeeee,x,10,train,0", "line 4: x to 10 is not a stretch of time"),
        ("abseiling,eeeeeeeeeee,10,10,train,0", "line 4"),
        ("abseiling,eeeeeeeeeee", "line 4"),
        ("abseiling,../../eeeee,0,10,train,0", r"names '\.\./\.\./eeeee', which is outside the dataset"),
        ("/etc,eeeeeeeeeee,0,10,train,0", "names '/etc', which is outside the dataset"),
    ],
)
def test_kinetics400_refuses_a_bad_line(tmp_path, line, message):
    with (kinetics_root(tmp_path) / "train.csv").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        kinetics400(tmp_path)


def test_kinetics400_names_a_missing_column(tmp_path):
    write(kinetics_root(tmp_path) / "train.csv", "label,id", "abseiling,x")
    with pytest.raises(ValueError, match=r"train\.csv has no column 'youtube_id'"):
        kinetics400(tmp_path)


@pytest.mark.parametrize("lists", [".", "mini-kinetics-200", "elsewhere"])
def test_mini_kinetics200(tmp_path, lists):
    kinetics_root(tmp_path)
    write(tmp_path / lists / "train_ytid_list.txt", "-aaaaaaaaaA", "zzzzzzzzzzz")
    write(tmp_path / lists / "val_ytid_list.txt", "cccccccccc_")
    train = "train/riding_a_bike/-aaaaaaaaaA_000003_000013.mp4"
    for name in (train, "train/abseiling/bbbbbbbbbbB_000100_000110.mp4"):
        touch(tmp_path / name)
    index = mini_kinetics200(tmp_path, tmp_path / lists if lists == "elsewhere" else None)
    assert index.classes == ("riding a bike",)
    assert names(index, tmp_path) == {"train": [(train, 0)], "test": []}
    assert index.problems == (
        "train: 1 of 2 listed videos were found (the paper had 78,265)",
        "train: 1 listed ids have no class in the Kinetics CSV",
        "test: 0 of 1 listed videos were found (the paper had 4,986)",
    )


def test_mini_kinetics200_says_how_many_even_when_all_are_there(tmp_path):
    kinetics_root(tmp_path)
    write(tmp_path / "train_ytid_list.txt", "bbbbbbbbbbB")
    write(tmp_path / "val_ytid_list.txt", "dddddddddDD")
    touch(tmp_path / "train" / "bbbbbbbbbbB_000100_000110.mp4")
    touch(tmp_path / "val" / "dddddddddDD_000007_000017.mp4")
    index = mini_kinetics200(tmp_path)
    assert index.problems == (
        "train: 1 of 1 listed videos were found (the paper had 78,265)",
        "test: 1 of 1 listed videos were found (the paper had 4,986)",
    )


def test_mini_kinetics200_names_missing_lists(tmp_path):
    with pytest.raises(ValueError, match=r"no train_ytid_list\.txt in .* or .*mini-kinetics-200"):
        mini_kinetics200(kinetics_root(tmp_path))


def test_mini_kinetics200_refuses_an_escaping_id(tmp_path):
    kinetics_root(tmp_path)
    write(tmp_path / "train_ytid_list.txt", "../../x")
    write(tmp_path / "val_ytid_list.txt", "cccccccccc_")
    with pytest.raises(ValueError, match=r"train_ytid_list\.txt names '\.\./\.\./x', which is outside the dataset"):
        mini_kinetics200(tmp_path)


LSA64 = ("001_001_001.mp4", "001_009_001.mp4", "064_008_005.mp4", "064_010_002.mp4", "020_002_001.mp4")


def lsa64_root(root: Path, *files: str) -> Path:
    for name in files:
        touch(root / name)
    return root


@pytest.mark.parametrize("home", ["", "all/", "dataset/", "clips/cut/"])
def test_lsa64_splits_by_signer(tmp_path, home):
    index = lsa64(lsa64_root(tmp_path, *(home + name for name in LSA64)))
    assert index.classes == ("001 Opaque", "020 Sweet milk", "064 Find")
    assert (index.kind, index.problems) == ("videos", ())
    assert names(index, tmp_path) == {
        "train": [(f"{home}001_001_001.mp4", 0), (f"{home}020_002_001.mp4", 1), (f"{home}064_008_005.mp4", 2)],
        "test": [(f"{home}001_009_001.mp4", 0), (f"{home}064_010_002.mp4", 2)],
    }


def test_lsa64_has_64_signs():
    assert len(set(LSA64_SIGNS)) == 64
    assert (LSA64_SIGNS[27], LSA64_SIGNS[37], LSA64_SIGNS[49]) == ("Where", "None", "Accept")


def test_lsa64_in_class_folders(tmp_path):
    index = lsa64(lsa64_root(tmp_path, *(f"all/{name[:3]}/{name}" for name in LSA64)))
    assert [len(samples) for samples in index.splits.values()] == [3, 2]


@pytest.mark.parametrize("suffix", sorted(VIDEO_SUFFIXES))
def test_lsa64_takes_any_container(tmp_path, suffix):
    index = lsa64(lsa64_root(tmp_path, f"001_001_001{suffix}", f"001_010_001{suffix.upper()}"))
    assert [len(samples) for samples in index.splits.values()] == [1, 1]


def test_lsa64_other_test_signers(tmp_path):
    index = lsa64(lsa64_root(tmp_path, *LSA64), test_signers=[1, 3])
    assert names(index, tmp_path)["test"] == [("001_001_001.mp4", 0)]
    (problem,) = index.problems
    assert "signer 3" in problem


def test_lsa64_leaves_out_what_is_not_a_clip_of_it(tmp_path):
    others = ("000_001_001.mp4", "065_001_001.mp4", "1_1_1.mp4", "talk.mp4", "001_001_001_a.mp4")
    hidden = (".001_001_002.mp4", ".trash/001_001_003.mp4", "001_001_004.txt", "a/b/c/001_001_005.mp4")
    index = lsa64(lsa64_root(tmp_path, *LSA64, *others, *hidden))
    assert sum(map(len, index.splits.values())) == len(LSA64)
    (problem,) = index.problems
    assert problem.startswith("5 videos ")
    assert str(tmp_path / "000_001_001.mp4") in problem


def test_lsa64_takes_a_clip_once(tmp_path):
    index = lsa64(lsa64_root(tmp_path, *LSA64, "all/001_001_001.mp4", "raw/001_001_001.avi"))
    assert names(index, tmp_path)["train"][0] == ("001_001_001.mp4", 0)
    assert sum(map(len, index.splits.values())) == len(LSA64)
    (problem,) = index.problems
    assert problem.startswith("2 clips ")


@pytest.mark.parametrize(("name", "said"), [("notes.txt", "001_001_001.mp4"), ("talk.mp4", "talk.mp4")])
def test_lsa64_refuses_other_folders(tmp_path, name, said):
    with pytest.raises(ValueError, match=f"{tmp_path} is not LSA64: .*{said}"):
        lsa64(lsa64_root(tmp_path, name))


def test_lsa64_needs_a_test_signer(tmp_path):
    with pytest.raises(ValueError, match="test_signers"):
        lsa64(lsa64_root(tmp_path, *LSA64), test_signers=())


def test_test_signers_is_a_setting(tmp_path):
    lsa64_root(tmp_path, *LSA64)
    settings = build({"data": {"dataset": "lsa64", "root": str(tmp_path), "test_signers": [2, 8]}}).data
    dataset = open_dataset(settings)
    assert (len(dataset.train), len(dataset.test), dataset.kind) == (3, 2, "videos")
    assert open_dataset(Data("lsa64", str(tmp_path))).classes == dataset.classes


def test_links_that_the_user_made_are_followed(tmp_path):
    """A root, a class folder or a file may be elsewhere; it is lists of names that may not leave the dataset."""
    image(tmp_path / "elsewhere" / "cats" / "1.jpg")
    image(tmp_path / "elsewhere" / "2.jpg")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "cat").symlink_to(tmp_path / "elsewhere" / "cats")
    (tmp_path / "real" / "dog").mkdir()
    (tmp_path / "real" / "dog" / "2.jpg").symlink_to(tmp_path / "elsewhere" / "2.jpg")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    root = tmp_path / "root"
    assert names(folder(root), root) == {"train": [("cat/1.jpg", 0), ("dog/2.jpg", 1)]}
    write(root / "images.txt", "1 cat/1.jpg", "2 dog/2.jpg")
    write(root / "classes.txt", "1 cat", "2 dog")
    write(root / "image_class_labels.txt", "1 1", "2 2")
    write(root / "train_test_split.txt", "1 1", "2 0")
    (root / "images").symlink_to(tmp_path / "real")
    assert names(cub(root), root) == {"train": [("images/cat/1.jpg", 0)], "test": [("images/dog/2.jpg", 1)]}


WORDS = st.sampled_from(
    ["1", "2", "a/1.jpg", "../x", "/x", "a\0b", "0", "-1", "x" * 300, "\udc80", "9" * 5000, ",", "é"]
)
LINES = st.lists(st.lists(WORDS, max_size=4).map(" ".join) | st.text(max_size=9), max_size=5).map("\n".join)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["images", "classes", "image_class_labels", "train_test_split"]), LINES)
def test_cub_reads_or_refuses_anything(tmp_path_factory, name, text):
    root = tmp_path_factory.getbasetemp() / "cub"
    root.mkdir(exist_ok=True)
    good = {"images": "1 a/1.jpg", "classes": "1 a", "image_class_labels": "1 1", "train_test_split": "1 1"}
    for file, line in (good | {name: text}).items():
        (root / f"{file}.txt").write_text(line, errors="surrogateescape")
    with contextlib.suppress(ValueError, OSError):
        index = cub(root)
        assert all(path.is_relative_to(root / "images") for samples in index.splits.values() for path, _ in samples)


# csv


def labels_file(root: Path, *rows: str, header: str = "file,label") -> Path:
    return write(root / "labels.csv", header, *rows)


def test_csv_without_splits(tmp_path):
    for name in ("x/1.png", "x/2.jpg", "3.png"):
        image(tmp_path / name)
    labels_file(tmp_path, "3.png,9,me", "x/2.jpg,10,me", 'x/1.png,"9",you', header="file,label,author")
    index = READERS["csv"](tmp_path)
    assert (index.classes, index.kind, index.problems) == (("9", "10"), "images", ())  # by number
    assert names(index, tmp_path) == {"train": [("3.png", 0), ("x/2.jpg", 1), ("x/1.png", 0)]}


@pytest.mark.parametrize("elsewhere", [True, False])
def test_csv_with_splits(tmp_path, elsewhere):
    for number in range(5):
        image(tmp_path / "data" / f"{number}.png")
    table = tmp_path / ("here.csv" if elsewhere else "data/lists/here.csv")
    write(
        table, "split,label,file", *(f"{s},b{n % 2},{n}.png" for n, s in enumerate(["train", "train", "val", "test"]))
    )
    index = READERS["csv"](tmp_path / "data", str(table) if elsewhere else "lists/here.csv")
    assert index.classes == ("b0", "b1")
    assert names(index, tmp_path / "data") == {
        "train": [("0.png", 0), ("1.png", 1)],
        "test": [("3.png", 1)],
        "val": [("2.png", 0)],
    }


@pytest.mark.parametrize("split", ["val", "Validation", "valid", "TEST"])
def test_csv_tests_on_what_there_is(tmp_path, split):
    for number in range(2):
        image(tmp_path / f"{number}.png")
    labels_file(tmp_path, "0.png,a,train", f"1.png,a,{split}", header="file,label,split")
    assert names(READERS["csv"](tmp_path), tmp_path) == {"train": [("0.png", 0)], "test": [("1.png", 0)]}


def test_csv_of_clips(tmp_path):
    touch(tmp_path / "a.mp4")
    image(tmp_path / "frames" / "0.png")
    labels_file(tmp_path, "a.mp4,x", "frames,y")
    index = READERS["csv"](tmp_path)
    assert (index.kind, names(index, tmp_path)) == ("videos", {"train": [("a.mp4", 0), ("frames", 1)]})


def test_csv_counts_what_it_leaves_out(tmp_path):
    image(tmp_path / "1.png")
    labels_file(tmp_path, "1.png,a", "gone.png,b", "notes.txt,a", "1.png,a", "1.png,a")
    index = READERS["csv"](tmp_path)
    missing, others, repeated = index.problems
    assert names(index, tmp_path) == {"train": [("1.png", 0)]}
    assert f"{tmp_path / 'gone.png'} is listed but missing" == missing
    assert "1 file " in others
    assert str(tmp_path / "notes.txt") in others
    assert "2 rows " in repeated


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["name,label", "1.png,a"], ["'file'", "name, label"]),
        (["1.png,a"], ["'file'"]),
        ([], ["'file'", "nothing"]),
        (["file,label", "1.png,a", "1.png,b"], ["line 3", "1.png", "a (train)", "b (train)"]),
        (["file,label,split", "1.png,a,train", "1.png,a,test"], ["line 3", "a (train)", "a (test)"]),
        (["file,label", "1.png, "], ["line 2", "label"]),
        (["file,label", "1.png"], ["line 2", "label"]),
        (["file,label,split", "1.png,a,dev"], ["line 2", "'dev'", "train"]),
        (["file,label", "../1.png,a"], ["'../1.png'", "outside"]),
        (["file,label", "/etc/1.png,a"], ["'/etc/1.png'", "outside"]),
        (["file,label", "gone.png,a"], ["gone.png", "missing"]),
        (["file,label", "1,a"], ["1 file not of images or videos", "1"]),
        (["file,label", "1.png,a", "2.mp4,b"], ["1.png", "2.mp4"]),
        (["file,label", f'1.png,"{"x" * 200_000}"'], ["labels.csv, line", "limit"]),
    ],
)
def test_csv_that_is_wrong_is_refused_in_one_sentence(tmp_path, lines, words):
    image(tmp_path / "1.png")
    write(tmp_path / "labels.csv", *lines)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))) as raised:
        READERS["csv"](tmp_path)
    assert "\n" not in str(raised.value)
    assert [word for word in words if word not in str(raised.value)] == []


def test_csv_holds_out_where_it_has_no_split(tmp_path):
    for number in range(10):
        image(tmp_path / f"{number}.png")
    labels_file(tmp_path, *(f"{number}.png,{'ab'[number % 2]}" for number in range(10)))
    dataset = open_dataset(Data(root=str(tmp_path), labels="labels.csv"))
    assert (dataset.name, len(dataset.train), len(dataset.test)) == ("csv", 8, 2)
