"""Datasets in the layout they are downloaded in: listed and parsed, never decoded."""

import csv
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..spelling import counted
from .coco import coco
from .index import Index, Kind, Sample, inside
from .lsa64 import lsa64

TEST_FOLDERS = ("test", "val", "valid", "validation")
NAMED_AT_MOST = 10
"""Missing files that are named one by one before the rest is only counted."""
SIGNS = {
    "cub": ("CUB-200-2011", "image_class_labels.txt", "CUB_200_2011/image_class_labels.txt"),
    "pets": ("Oxford-IIIT Pets", "annotations/trainval.txt", "oxford-iiit-pet/annotations/trainval.txt"),
    "imagenet": ("ImageNet", "ILSVRC/Data/CLS-LOC"),
    "ucf101": ("UCF101", "classInd.txt", "ucfTrainTestlist/classInd.txt"),
    "mini_kinetics200": ("Mini-Kinetics-200", "train_ytid_list.txt", "mini-kinetics-200/train_ytid_list.txt"),
    "lsa64": ("LSA64", "001_001_001.*", "all/001_001_001.*", "dataset/001_001_001.*"),
    "coco": ("COCO", "annotations/instances_train*.json"),
}
"""Layout -> what it is called, and what no other has: to read it as class folders would make no sense."""
MINI_KINETICS_OF_THE_PAPER = {"train": 78_265, "test": 4_986}


def folder(root: Path | str) -> Index:
    """Class folders of images, video files or folders of frames, in ``root`` or in its ``train`` and ``test``.

    The test folder may be called ``val``, ``valid`` or ``validation`` too. Without one there is only ``"train"``.
    """
    root = _existing(root)
    for layout, (name, *signs) in SIGNS.items():
        if any(any(root.glob(sign)) for sign in signs):
            raise ValueError(f"{root} looks like {name}: say dataset={layout}, or in training data.dataset={layout}")
    if not _is_split(root / "train"):
        return _class_folders(root, {"train": root})
    splits = {"train": root / "train"}
    for name in TEST_FOLDERS:
        if (root / name).is_dir():
            splits[name if "test" in splits else "test"] = root / name
    return _class_folders(root, splits)


def cub(root: Path | str) -> Index:
    """CUB-200-2011: ``images.txt`` and its companions, in ``root`` or in ``root/CUB_200_2011``."""
    root = _existing(root)
    home = _first([root, root / "CUB_200_2011"], holding="images.txt")
    if home is None:
        raise ValueError(f"{root} is not CUB-200-2011: there is no images.txt in it or in its CUB_200_2011")
    classes = _numbered(home / "classes.txt")
    labels = _numbered(home / "image_class_labels.txt")
    is_training = _numbered(home / "train_test_split.txt")
    position = {str(number): label for label, number in enumerate(sorted(classes))}
    splits: dict[str, list[Sample]] = {"train": [], "test": []}
    for number, name in _numbered(home / "images.txt").items():
        path = home / "images" / inside(name, home / "images.txt")
        if labels.get(number) not in position:
            raise ValueError(f"{home / 'image_class_labels.txt'} gives image {number} ({name}) no class of classes.txt")
        if is_training.get(number) not in ("0", "1"):
            raise ValueError(f"{home / 'train_test_split.txt'} does not say 0 or 1 for image {number} ({name})")
        splits["train" if is_training[number] == "1" else "test"].append(Sample(path, position[labels[number]]))
    return _of_existing_files(root, [classes[number] for number in sorted(classes)], splits, "images")


def cub_parts(image: Path | str) -> dict[str, tuple[float, float]]:
    """Where the visible parts of a bird are, (x, y) in pixels by name; none for a picture that is not in a CUB tree."""
    image = Path(image).resolve()
    home = _first(image.parents, holding="parts/part_locs.txt")
    if home is None or not (home / "images.txt").is_file() or not image.is_relative_to(home / "images"):
        return {}
    name = image.relative_to(home / "images").as_posix()
    number = next((n for n, listed in _numbered(home / "images.txt").items() if listed == name), None)
    names, source = _numbered(home / "parts" / "parts.txt"), home / "parts" / "part_locs.txt"
    parts = {}
    for row, line in _lines(source):
        if not line.startswith(f"{number} "):
            continue
        try:
            _, part, x, y, visible = line.split()
            place = names[int(part)], (float(x), float(y))
        except (KeyError, ValueError):
            raise ValueError(f"{source}, line {row}: {line!r} is not image, part, x, y and visible") from None
        if visible == "1":
            parts[place[0]] = place[1]
    return parts


def pets(root: Path | str) -> Index:
    """Oxford-IIIT Pets: ``annotations`` beside ``images`` or ``original``, in ``root`` or ``root/oxford-iiit-pet``."""
    root = _existing(root)
    home = _first([root, root / "oxford-iiit-pet"], holding="annotations/trainval.txt")
    if home is None:
        raise ValueError(f"{root} is not Oxford-IIIT Pets: it has no annotations/trainval.txt")
    pictures = next((home / name for name in ("images", "original") if (home / name).is_dir()), home / "images")
    breeds: dict[int, str] = {}
    listed: dict[str, list[tuple[Path, int]]] = {}
    for split, file in (("train", "trainval.txt"), ("test", "test.txt")):
        source = home / "annotations" / file
        listed[split] = []
        for row, line in _lines(source):
            if line.startswith("#"):
                continue
            name, *numbers = line.split()
            breed, _, number = inside(name, source).rpartition("_")
            if not breed or len(numbers) != 3 or min(map(_whole, (number, *numbers))) < 0 or int(numbers[0]) < 1:
                raise ValueError(f"{source}, line {row}: {line!r} is not a picture, class, species and breed")
            label = int(numbers[0])
            if breeds.setdefault(label, breed) != breed:
                raise ValueError(f"{source}, line {row}: class {label} is both {breeds[label]} and {breed}")
            listed[split].append((pictures / f"{name}.jpg", label))
    labels = {number: label for label, number in enumerate(sorted(breeds))}
    classes = [breeds[number] for number in labels]
    if twice := [breed for breed, count in Counter(classes).items() if count > 1]:
        raise ValueError(f"{home / 'annotations'} gives {twice[0]} more than one class")
    splits = {split: [Sample(path, labels[number]) for path, number in rows] for split, rows in listed.items()}
    return _of_existing_files(root, classes, splits, "images")


def imagenet(root: Path | str) -> Index:
    """ImageNet: ``train`` in class folders, ``val`` too or flat with ``LOC_val_solution.csv``."""
    root = _existing(root)
    home = _first([root, root / "ILSVRC" / "Data" / "CLS-LOC"], holding="train")
    if home is None:
        raise ValueError(f"{root} is not ImageNet: there is no train folder in it or in its ILSVRC/Data/CLS-LOC")
    train, val = home / "train", home / "val"
    if not val.is_dir():
        index = _class_folders(root, {"train": train})
        return _with_problems(index, [f"{val} is missing, so there is no test split"])
    if _folders(val):
        return _class_folders(root, {"train": train, "test": val})
    place = _first([root, home, val], holding="LOC_val_solution.csv")
    if place is None:
        raise ValueError(
            f"{val} has no class folders, so the classes of its images are needed: "
            f"put LOC_val_solution.csv (from Kaggle's ImageNet) into {root}"
        )
    index = _class_folders(root, {"train": train})
    test, problems = _flat_validation(val, place / "LOC_val_solution.csv", index.classes)
    return _with_problems(Index(index.classes, {**index.splits, "test": test}, "images", index.problems), problems)


def ucf101(root: Path | str, split: int = 1) -> Index:
    """UCF101, split 1, 2 or 3: videos in ``UCF-101`` or ``root``, split files in ``ucfTrainTestlist`` or ``root``."""
    root = _existing(root)
    if split not in (1, 2, 3):
        raise ValueError(f"split = {split}: UCF101 has the splits 1, 2 and 3")
    lists = _first([root / "ucfTrainTestlist", root], holding="classInd.txt")
    if lists is None:
        raise ValueError(f"{root} is not UCF101: there is no classInd.txt in it or in its ucfTrainTestlist")
    videos = root / "UCF-101" if (root / "UCF-101").is_dir() else root
    numbered = _numbered(lists / "classInd.txt")
    classes = [numbered[number] for number in sorted(numbered)]
    label_of = {name: label for label, name in enumerate(classes)}
    splits: dict[str, list[Sample]] = {}
    for name in ("train", "test"):
        source = lists / f"{name}list{split:02}.txt"
        splits[name] = []
        for number, line in _lines(source):
            video, _, given = line.rpartition(" ") if name == "train" else (line, "", "")
            class_name = inside(video, source).rpartition("/")[0]
            label = label_of.get(class_name)
            if label is None or (name == "train" and numbered.get(_whole(given)) != class_name):
                raise ValueError(f"{source}, line {number}: {line!r} is not a video in the folder of its class")
            splits[name].append(Sample(videos / video, label))
    return _of_existing_files(root, classes, splits, "videos")


def kinetics400(root: Path | str) -> Index:
    """Kinetics-400: ``train.csv`` and ``val.csv`` in ``root`` or ``annotations``, videos in ``train`` and ``val``."""
    root = _existing(root)
    clips = _kinetics_clips(root)
    classes = _labels(clips)
    splits, problems = {}, []
    for split, listed in clips.items():
        splits[split] = found = _found(_kinetics_videos(root, split), listed, classes)
        if len(found) < len(listed):
            problems.append(f"{split}: {len(found):,} of {len(listed):,} listed videos were found")
    return _filled(root, Index(classes, splits, "videos", tuple(problems)))


def mini_kinetics200(root: Path | str, lists: Path | str | None = None) -> Index:
    """Mini-Kinetics-200: the clips of Kinetics-400 in the official id lists.

    Args:
        root: Kinetics-400, as ``kinetics400`` takes it.
        lists: where ``train_ytid_list.txt`` and ``val_ytid_list.txt`` are; else ``root`` or its ``mini-kinetics-200``.
    """
    root = _existing(root)
    places = [root, root / "mini-kinetics-200"] if lists is None else [Path(lists)]
    place = _first(places, holding="train_ytid_list.txt")
    if place is None:
        raise ValueError(f"there is no train_ytid_list.txt in {' or '.join(map(str, places))}")
    clips, wanted = {}, {}
    for split, listed in _kinetics_clips(root).items():
        source = place / f"{'train' if split == 'train' else 'val'}_ytid_list.txt"
        wanted[split] = {inside(line, source) for _, line in _lines(source)}
        clips[split] = [clip for clip in listed if clip.video in wanted[split]]
    classes = _labels(clips)
    splits, problems = {}, []
    for split, listed in clips.items():
        splits[split] = found = _found(_kinetics_videos(root, split), listed, classes)
        problems.append(
            f"{split}: {len(found):,} of {len(wanted[split]):,} listed videos were found "
            f"(the paper had {MINI_KINETICS_OF_THE_PAPER[split]:,})"
        )
        if without := len(wanted[split] - {clip.video for clip in listed}):
            problems.append(f"{split}: {without:,} listed ids have no class in the Kinetics CSV")
    return _filled(root, Index(classes, splits, "videos", tuple(problems)))


READERS: dict[str, Callable[..., Index]] = {
    "folder": folder,
    "cub": cub,
    "pets": pets,
    "imagenet": imagenet,
    "ucf101": ucf101,
    "kinetics400": kinetics400,
    "mini_kinetics200": mini_kinetics200,
    "lsa64": lsa64,
    "coco": coco,
}
"""Name of a layout -> its reader."""


def _existing(root: Path | str) -> Path:
    """The folder, if it is one."""
    if not Path(root).is_dir():
        raise ValueError(f"{root} is not a folder")
    return Path(root)


def _first(places: Iterable[Path], holding: str) -> Path | None:
    """The first of these folders that holds a file or folder of this name."""
    return next((place for place in places if (place / holding).exists()), None)


def _whole(text: str) -> int:
    """A whole number, or -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() else -1


def _text(path: Path) -> str:
    """A text file as a whole."""
    if not path.is_file():
        raise ValueError(f"{path} is missing")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers."""
    lines = enumerate(map(str.strip, _text(path).split("\n")), start=1)
    return ((number, line) for number, line in lines if line)


def _numbered(path: Path) -> dict[int, str]:
    """A file of lines such as ``12 name``."""
    entries: dict[int, str] = {}
    for number, line in _lines(path):
        key, _, value = line.partition(" ")
        if _whole(key) < 0 or not value or int(key) in entries:
            raise ValueError(f"{path}, line {number}: {line!r} is not a new number and its value")
        entries[int(key)] = value.strip()
    return entries


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with at least these columns, with their line numbers."""
    table = csv.DictReader(_text(path).splitlines())
    if missing := [column for column in columns if column not in (table.fieldnames or ())]:
        raise ValueError(f"{path} has no column {missing[0]!r}")
    for row in table:
        if not all((row[column] or "").strip() for column in columns):
            raise ValueError(f"{path}, line {table.line_num}: {', '.join(columns)} are not all given")
        yield table.line_num, row


def _visible(place: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, hidden things left out, by name."""
    with os.scandir(place) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _folders(place: Path) -> list[Path]:
    """The folders in a folder."""
    return [Path(entry.path) for entry in _visible(place) if entry.is_dir()]


def _media(place: Path, frames: bool = True, others: list[Path] | None = None) -> list[tuple[Path, Kind]]:
    """Images and video files in a folder, and folders of frames unless told otherwise.

    Pictures of a kind that is not read are added to ``others``.
    """
    from .images import OTHER_SUFFIXES, is_image_file
    from .video import is_video_file

    found: list[tuple[Path, Kind]] = []
    for entry in _visible(place):
        path = Path(entry.path)
        if entry.is_dir():
            if frames and any(is_image_file(inner.name) for inner in _visible(path)):
                found.append((path, "videos"))
        elif is_image_file(path):
            found.append((path, "images"))
        elif is_video_file(path):
            found.append((path, "videos"))
        elif others is not None and path.suffix.lower() in OTHER_SUFFIXES:
            others.append(path)
    return found


def _is_split(place: Path) -> bool:
    """Whether this is a folder of class folders, and not itself a class that happens to be called ``train``."""
    return place.is_dir() and not _media(place, frames=False)


def _class_folders(root: Path, places: dict[str, Path]) -> Index:
    """Splits that are folders of class folders."""
    folders = {split: _folders(place) for split, place in places.items()}
    classes = tuple(sorted({path.name for paths in folders.values() for path in paths}))
    if not classes:
        raise ValueError(f"{places['train']} holds no class folders")
    label_of = {name: label for label, name in enumerate(classes)}
    example: dict[Kind, Path] = {}
    untaught = set(classes) - {path.name for path in folders["train"]}
    problems = [f"class {name} has no folder in {places['train']}" for name in sorted(untaught)]
    splits, others = {}, []
    for split, paths in folders.items():
        samples: list[Sample] = []
        for path in paths:
            media = _media(path, others=others)
            example.update((kind, file) for file, kind in media)
            samples.extend(Sample(file, label_of[path.name]) for file, _ in media)
            if not media:
                problems.append(f"{path} holds no images, video files or folders of frames")
        splits[split] = tuple(samples)
    if len(example) > 1:
        raise ValueError(f"{root} mixes images ({example['images']}) and videos ({example['videos']})")
    if others:
        problems.append(f"{counted(len(others), 'picture')} of a kind that is not read, such as {others[0]}")
    kind: Kind = "videos" if "videos" in example else "images"
    return _filled(root, Index(classes, splits, kind, tuple(problems)))


def _filled(root: Path, index: Index) -> Index:
    """The index, if it has any sample."""
    if not any(index.splits.values()):
        reason = index.problems[0] if index.problems else "nothing is listed"
        raise ValueError(f"{root} holds none of the {index.kind} it should: {reason}")
    return index


def _with_problems(index: Index, problems: Iterable[str]) -> Index:
    """The index with more problems."""
    return dataclasses.replace(index, problems=(*index.problems, *problems))


def _without_files(paths: list[Path]) -> list[str]:
    """Sentences for labels without their files."""
    named = [f"{path} is listed but missing" for path in paths[:NAMED_AT_MOST]]
    rest = len(paths) - len(named)
    return [*named, f"{rest:,} more listed files are missing"] if rest else named


def _of_existing_files(root: Path, classes: Iterable[str], listed: dict[str, list[Sample]], kind: Kind) -> Index:
    """An index of the listed files that are there; the others are problems."""
    splits, missing = {}, []
    for split, samples in listed.items():
        there = {sample.path for sample in samples if sample.path.is_file()}
        splits[split] = tuple(sample for sample in samples if sample.path in there)
        missing += [sample.path for sample in samples if sample.path not in there]
    return _filled(root, Index(tuple(classes), splits, kind, tuple(_without_files(missing))))


def _flat_validation(val: Path, solution: Path, classes: tuple[str, ...]) -> tuple[tuple[Sample, ...], list[str]]:
    """ImageNet's validation images in one folder, with their classes from a CSV file, and what is wrong with them."""
    label_of = {name: label for label, name in enumerate(classes)}
    labels: dict[str, int] = {}
    for number, row in _rows(solution, ("ImageId", "PredictionString")):
        wnid = row["PredictionString"].split()[0]
        if wnid not in label_of:
            raise ValueError(f"{solution}, line {number}: there is no class {wnid!r} in train")
        labels[inside(row["ImageId"], solution)] = label_of[wnid]
    images = {path.stem: path for path, _ in _media(val, frames=False)}
    test = tuple(Sample(path, labels[name]) for name, path in images.items() if name in labels)
    missing = [val / f"{name}.JPEG" for name in sorted(labels.keys() - images.keys())]
    unlabelled = len(images) - len(test)
    problems = [f"{unlabelled:,} images in {val} have no class in {solution}"] if unlabelled else []
    return test, _without_files(missing) + problems


class _Clip(NamedTuple):
    """A line of the Kinetics CSV: YouTube id, class, and name of the file without its suffix."""

    video: str
    label: str
    name: str


def _kinetics_clips(root: Path) -> dict[str, list[_Clip]]:
    """The clips that the CSV files of Kinetics list, by split."""
    clips: dict[str, list[_Clip]] = {}
    for split, names in {"train": ("train.csv",), "test": ("val.csv", "validate.csv")}.items():
        places = (home / name for home in (root, root / "annotations") for name in names)
        source = next((place for place in places if place.is_file()), None)
        if source is None:
            raise ValueError(f"{root} is not Kinetics: there is no {' or '.join(names)} in it or in its annotations")
        unique = {clip.name: clip for clip in _csv_clips(source)}
        clips[split] = list(unique.values())
    return clips


def _csv_clips(source: Path) -> Iterator[_Clip]:
    """The clips of one CSV file of Kinetics."""
    for number, row in _rows(source, ("label", "youtube_id", "time_start", "time_end")):
        start, end = _whole(row["time_start"]), _whole(row["time_end"])
        if not 0 <= start < end:
            raise ValueError(
                f"{source}, line {number}: {row['time_start']} to {row['time_end']} is not a stretch of time"
            )
        video, label = inside(row["youtube_id"], source), inside(row["label"], source)
        yield _Clip(video, label, f"{video}_{start:06}_{end:06}")


def _kinetics_videos(root: Path, split: str) -> dict[str, Path]:
    """The video files of a split by name without suffix, in the split's folder or in class folders in it."""
    names = ("train",) if split == "train" else ("val", "validate", "validation")
    home = next((root / name for name in names if (root / name).is_dir()), None)
    places = [] if home is None else [home, *_folders(home)]
    return {path.stem: path for place in places for path, kind in _media(place, frames=False) if kind == "videos"}


def _labels(clips: dict[str, list[_Clip]]) -> tuple[str, ...]:
    """The classes of these clips, by name."""
    return tuple(sorted({clip.label for listed in clips.values() for clip in listed}))


def _found(videos: dict[str, Path], listed: list[_Clip], classes: tuple[str, ...]) -> tuple[Sample, ...]:
    """The listed clips that are there."""
    label_of = {name: label for label, name in enumerate(classes)}
    return tuple(Sample(videos[clip.name], label_of[clip.label]) for clip in listed if clip.name in videos)
