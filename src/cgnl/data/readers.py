"""Datasets in the layout they are downloaded in: listed and parsed, never decoded."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..text import counted
from .coco import coco
from .index import (
    MAX_NAMED,
    OTHER_SUFFIXES,
    SPLITS,
    TEST_FOLDERS,
    DatasetIndex,
    Kind,
    Sample,
    count_skipped,
    decide_kind,
    is_image_file,
    is_video_file,
    name_some,
    name_splits,
    require_folder,
    require_inside,
    sort_classes,
    walk,
)
from .recognise import describe_layout, find_layout, recognise
from .shards import shards
from .tables import hf
from .yolo import yolo

MINI_KINETICS_OF_THE_PAPER = {"train": 78_265, "test": 4_986}
LSA64_SIGNS = (
    *("Opaque", "Red", "Green", "Yellow", "Bright", "Light-blue", "Colors", "Pink", "Women", "Enemy", "Son", "Man"),
    *("Away", "Drawer", "Born", "Learn", "Call", "Skimmer", "Bitter", "Sweet milk", "Milk", "Water", "Food"),
    *("Argentina", "Uruguay", "Country", "Last name", "Where", "Mock", "Birthday", "Breakfast", "Photo", "Hungry"),
    *("Map", "Coin", "Music", "Ship", "None", "Name", "Patience", "Perfume", "Deaf", "Trap", "Rice", "Barbecue"),
    *("Candy", "Chewing-gum", "Spaghetti", "Yogurt", "Accept", "Thanks", "Shut down", "Appear", "To land", "Catch"),
    *("Help", "Dance", "Bathe", "Buy", "Copy", "Run", "Realize", "Give", "Find"),
)
"""The official names of classes 001 to 064."""
LSA64_CLIP = re.compile(r"([0-9]{3})_([0-9]{3})_[0-9]{3}")
"""Class, signer and repetition in the name of a clip."""


def folder(root: Path | str) -> DatasetIndex:
    """Class folders of images, video files or folders of frames, in ``root`` or in its ``train`` and ``test``.

    The test folder may also be called ``testing``, ``val``, ``valid``, ``validation`` or ``eval``, and the other
    ``training`` where nothing else is beside them. Case does not matter. Without a test there is only ``"train"``.
    Class folders are read with all folders in them. Images that lie only in folders of numbered images are the frames
    of clips; ``images`` and ``clips`` read them as one or the other.
    """
    return _folder(root, None)


def images(root: Path | str) -> DatasetIndex:
    """Class folders of images, never of clips; otherwise as ``folder``."""
    return _folder(root, "images")


def clips(root: Path | str) -> DatasetIndex:
    """Class folders of video files or folders of frames, however these are named; otherwise as ``folder``."""
    return _folder(root, "videos")


def _folder(root: Path | str, kind: Kind | None) -> DatasetIndex:
    """Find the splits of a folder of class folders."""
    root = require_folder(root)
    if layout := find_layout(root):
        raise ValueError(f"{root} {describe_layout(layout, {})}")
    places = _find_splits(root)
    without_classes = not any(map(_folders, places.values()))
    if without_classes or (places["train"] == root and (root / "train").is_dir()):
        layout, given = recognise(root)
        if given.get("images") == "train" or (without_classes and layout != "folder"):  # then train is no class
            raise ValueError(f"{root} {describe_layout(layout, given)}")
    index = _class_folders(root, places, kind)
    beside = [path.name for path in _folders(root) if path not in places.values() and places["train"] != root]
    left_out = f"{root}: {name_some(beside)} beside {places['train'].name}: left out, since no split is called so"
    return replace(index, problems=(*index.problems, left_out)) if beside else index


def _find_splits(root: Path) -> dict[str, Path]:
    """Split -> its folder, whose name may be in any case; without a folder to train on, all is in the root itself."""
    found: dict[str, Path] = {}
    for path in _folders(root):
        found[path.name.lower()] = path  # by name, so train comes after Train
    tests = {name: found[name] for name in TEST_FOLDERS if name in found}
    only_splits = bool(tests) and found.keys() == {"training", *tests}  # else it may be a class
    train = found.get("train") or (found["training"] if only_splits else None)
    if train is None or (_media(train) and not (tests and _folders(train))):  # or a class that is called train
        return {"train": root}
    return name_splits({"train": train, **tests})


def cub(root: Path | str) -> DatasetIndex:
    """CUB-200-2011: ``images.txt`` and its companions, in ``root`` or in ``root/CUB_200_2011``."""
    home = _home(root, "CUB-200-2011", "images.txt", "CUB_200_2011")
    classes = _numbered(home / "classes.txt")
    labels = _numbered(home / "image_class_labels.txt")
    is_training = _numbered(home / "train_test_split.txt")
    listed: dict[str, list[tuple[Path, str]]] = {"train": [], "test": []}
    keys = {str(number): classes[number] for number in sorted(classes)}
    for number, name in _numbered(home / "images.txt").items():
        path = home / "images" / require_inside(name, home / "images.txt")
        if labels.get(number) not in keys:
            raise ValueError(f"{home / 'image_class_labels.txt'} gives image {number} ({name}) no class of classes.txt")
        if is_training.get(number) not in ("0", "1"):
            raise ValueError(f"{home / 'train_test_split.txt'} does not say 0 or 1 for image {number} ({name})")
        listed["train" if is_training[number] == "1" else "test"].append((path, labels[number]))
    return _listed_files(home, "images", keys, listed)


def cub_parts(image: Path | str) -> dict[str, tuple[float, float]]:
    """The (x, y) of each visible part of a bird in pixels, by name; empty for an image outside of CUB."""
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
            name, place = names[int(part)], (float(x), float(y))
        except (KeyError, ValueError):
            raise ValueError(f"{source}, line {row}: {line!r} is not image, part, x, y and visible") from None
        if visible == "1":
            parts[name] = place
    return parts


def pets(root: Path | str) -> DatasetIndex:
    """Oxford-IIIT Pets: ``annotations`` and ``images`` or ``original``, in ``root`` or ``root/oxford-iiit-pet``."""
    home = _home(root, "Oxford-IIIT Pets", "annotations/trainval.txt", "oxford-iiit-pet")
    images = home / ("original" if (home / "original").is_dir() and not (home / "images").is_dir() else "images")
    breeds: dict[int, str] = {}
    listed: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    for split, file in (("train", "trainval.txt"), ("test", "test.txt")):
        source = home / "annotations" / file
        for row, line in _lines(source):
            if line.startswith("#"):
                continue
            name, *numbers = line.split()
            breed, _, number = require_inside(name, source).rpartition("_")
            if not breed or len(numbers) != 3 or min(map(_whole, (number, *numbers))) < 0 or int(numbers[0]) < 1:
                raise ValueError(f"{source}, line {row}: {line!r} is not an image, class, species and breed")
            label = int(numbers[0])
            if breeds.setdefault(label, breed) != breed:
                raise ValueError(f"{source}, line {row}: class {label} is both {breeds[label]} and {breed}")
            listed[split].append((images / f"{name}.jpg", label))
    if twice := [breed for breed, count in Counter(breeds.values()).items() if count > 1]:
        raise ValueError(f"{home / 'annotations'} gives {twice[0]} more than one class")
    return _listed_files(home, "images", dict(sorted(breeds.items())), listed)


def imagenet(root: Path | str) -> DatasetIndex:
    """ImageNet: ``train`` in class folders, ``val`` too or flat with ``LOC_val_solution.csv``."""
    root, home = Path(root), _home(root, "ImageNet", "train", "ILSVRC/Data/CLS-LOC")
    train, val = home / "train", home / "val"
    if not val.is_dir():
        index = _class_folders(root, {"train": train})
        return replace(index, problems=(*index.problems, f"{val} is missing, so there is no test split"))
    if _folders(val):
        return _class_folders(root, {"train": train, "test": val})
    place = _first([root, home, val], holding="LOC_val_solution.csv")
    if place is None:
        raise ValueError(
            f"{val} has no class folders, so the classes of its images are needed: "
            f"put LOC_val_solution.csv (from Kaggle's ImageNet) into {root}"
        )
    return _add_flat_validation(_class_folders(root, {"train": train}), val, place / "LOC_val_solution.csv")


def ucf101(root: Path | str, split: int = 1) -> DatasetIndex:
    """UCF101, split 1, 2 or 3: videos in ``UCF-101`` or ``root``, split files in ``ucfTrainTestlist`` or ``root``."""
    if split not in (1, 2, 3):
        raise ValueError(f"split = {split}: UCF101 has the splits 1, 2 and 3")
    root, lists = Path(root), _home(root, "UCF101", "classInd.txt", "ucfTrainTestlist")
    videos = root / "UCF-101" if (root / "UCF-101").is_dir() else root
    numbered = _numbered(lists / "classInd.txt")
    classes = {numbered[number]: numbered[number] for number in sorted(numbered)}
    listed: dict[str, list[tuple[Path, str]]] = {"train": [], "test": []}
    for name, rows in listed.items():
        source = lists / f"{name}list{split:02}.txt"
        for number, line in _lines(source):
            video, _, given = line.rpartition(" ") if name == "train" else (line, "", "")
            class_name = require_inside(video, source).rpartition("/")[0]
            if class_name not in classes or (name == "train" and numbered.get(_whole(given)) != class_name):
                raise ValueError(f"{source}, line {number}: {line!r} is not a video in the folder of its class")
            rows.append((videos / video, class_name))
    return _listed_files(root, "videos", classes, listed)


def kinetics400(root: Path | str) -> DatasetIndex:
    """Kinetics-400: ``train.csv`` and ``val.csv`` in ``root`` or ``annotations``, videos in ``train`` and ``val``."""
    root = require_folder(root)
    clips = _kinetics_clips(root)
    index = _kinetics(root, clips)
    pairs = ((split, len(index.splits[split]), len(listed)) for split, listed in clips.items())
    problems = [
        f"{s}: {found:,} of {listed:,} listed videos were found" for s, found, listed in pairs if found < listed
    ]
    return _require_samples(root, replace(index, problems=tuple(problems)))


def mini_kinetics200(root: Path | str, lists: Path | str | None = None) -> DatasetIndex:
    """Mini-Kinetics-200: the clips of Kinetics-400 in the official id lists.

    Args:
        root: Kinetics-400, as for ``kinetics400``.
        lists: folder of ``train_ytid_list.txt`` and ``val_ytid_list.txt``; default ``root`` or its
            ``mini-kinetics-200``.
    """
    root = require_folder(root)
    places = [root, root / "mini-kinetics-200"] if lists is None else [Path(lists)]
    place = _first(places, holding="train_ytid_list.txt")
    if place is None:
        raise ValueError(f"there is no train_ytid_list.txt in {' or '.join(map(str, places))}")
    clips, wanted = {}, {}
    for split, listed in _kinetics_clips(root).items():
        source = place / f"{'train' if split == 'train' else 'val'}_ytid_list.txt"
        wanted[split] = {require_inside(line, source) for _, line in _lines(source)}
        clips[split] = {name: clip for name, clip in listed.items() if clip[0] in wanted[split]}
    index, problems = _kinetics(root, clips), []
    for split, ids in wanted.items():
        found, paper = len(index.splits[split]), MINI_KINETICS_OF_THE_PAPER[split]
        problems.append(f"{split}: {found:,} of {len(ids):,} listed videos were found (the paper had {paper:,})")
        if without := len(ids - {video for video, _ in clips[split].values()}):
            problems.append(f"{split}: {without:,} listed ids have no class in the Kinetics CSV")
    return _require_samples(root, replace(index, problems=tuple(problems)))


def lsa64(root: Path | str, test_signers: Sequence[int] = (9, 10)) -> DatasetIndex:
    """LSA64: Argentinian signs in files such as ``001_001_001.mp4``, at most two folders below ``root``.

    Args:
        root: the folder.
        test_signers: signers whose clips are the test split; the rest is for training.
    """
    root = require_folder(root)
    if not test_signers:
        raise ValueError("test_signers is empty: name the signers to test on, such as 9 and 10")
    found = [path for depth in ("*", "*/*", "*/*/*") for path in root.glob(depth) if is_video_file(path)]
    visible = (path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))
    listed: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    names, signers, others, copies = set(), set(), [], []
    for path in sorted(visible, key=lambda path: (path.stem, path)):
        match = LSA64_CLIP.fullmatch(path.stem)
        if match is None or not 1 <= int(match[1]) <= len(LSA64_SIGNS):
            others.append(path)
        elif path.stem in names:
            copies.append(path)
        else:
            names.add(path.stem)
            signers.add(int(match[2]))
            listed["test" if int(match[2]) in test_signers else "train"].append((path, int(match[1])))
    if not names:
        reason = f": {others[0].name} is not named like one" if others else ""
        raise ValueError(f"{root} is not LSA64: it has no clip such as 001_001_001.mp4{reason}")
    problems = [f"there is no clip of test signer {signer}" for signer in sorted({*test_signers} - signers)]
    problems += count_skipped(others, "video", "skipped: not class_signer_repetition")
    problems += count_skipped(copies, "clip", "skipped: there twice")
    numbers = sorted({number for rows in listed.values() for _, number in rows})
    splits = {split: _samples(rows, numbers) for split, rows in listed.items()}
    classes = tuple(f"{number:03} {LSA64_SIGNS[number - 1]}" for number in numbers)
    return DatasetIndex(classes, splits, "videos", tuple(problems))


def labelled(root: Path | str, labels: str | None = None) -> DatasetIndex:
    """Files and their labels from a CSV file with the columns ``file``, ``label`` and perhaps ``split``.

    Args:
        root: the folder that the files are relative to.
        labels: the CSV file, in ``root`` or with its whole path; default ``labels.csv``. A split is train, test or
            val (validation), which is tested on where there is no test. Other columns are ignored.
    """
    root = require_folder(root)
    source = root / (labels or "labels.csv")
    rows: dict[Path, tuple[str, str]] = {}
    repeated: list[Path] = []
    for number, row in _rows(source, ("file", "label")):
        path = root / require_inside(row["file"].strip(), source)
        label, split = row["label"].strip(), (row.get("split", "train") or "").strip().lower()
        if split not in ("train", *TEST_FOLDERS):
            raise ValueError(f"{source}, line {number}: split = {split!r} is not train, test or val")
        if path in rows:
            repeated.append(path)
        if rows.setdefault(path, (label, split)) != (label, split):
            both = " and ".join(f"{label} ({split})" for label, split in (rows[path], (label, split)))
            raise ValueError(f"{source}, line {number}: {row['file']} is both {both}")
    classes = sort_classes({label for label, _ in rows.values()})
    kinds: dict[Path, Kind | None] = {path: "videos" if path.is_dir() else _kind(path) for path in rows}
    image, video = (next((path for path, kind in kinds.items() if kind == k), None) for k in ("images", "videos"))
    kind = decide_kind(source, image, video)
    listed = {split: [(p, label) for p, (label, s) in rows.items() if s == split and kinds[p]] for split in SPLITS}
    others = [path for path, found in kinds.items() if not found]
    problems = count_skipped(others, "file", "not of images or videos: ignored")
    problems += count_skipped(repeated, "row", f"of {source} repeated: ignored")
    return _listed_files(root, kind, {name: name for name in classes}, name_splits(listed), problems)


_DOWNLOADS = (cub, pets, imagenet, ucf101, kinetics400, mini_kinetics200, lsa64)
_ALL = (folder, images, clips, *_DOWNLOADS, shards, hf, coco, yolo)
READERS: dict[str, Callable[..., DatasetIndex]] = {reader.__name__: reader for reader in _ALL} | {"csv": labelled}
"""Name of a layout -> its reader."""


# Parsing


def _home(root: Path | str, name: str, marker: str, below: str) -> Path:
    """The folder of a dataset, which holds the marker: ``root`` or the one below it."""
    root = require_folder(root)
    home = _first([root, root / below], holding=marker)
    if home is None:
        raise ValueError(f"{root} is not {name}: there is no {marker} in it or in its {below}")
    return home


def _first(places: Iterable[Path], holding: str) -> Path | None:
    """The first of these folders that holds a file or folder of this name."""
    return next((place for place in places if (place / holding).exists()), None)


def _whole(text: str) -> int:
    """A whole number, or -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() else -1


def _text(path: Path) -> str:
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
    """Parse a file of lines such as ``12 name``."""
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
        found = ", ".join(map(str, table.fieldnames or ["nothing"]))
        raise ValueError(f"{path} has no column {missing[0]!r} in its first line: {found}")
    try:
        for row in table:
            if not all((row[column] or "").strip() for column in columns):
                raise ValueError(f"{path}, line {table.line_num}: {', '.join(columns)} are not all given")
            yield table.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {table.line_num}: {error}") from None


# Folders


def _folders(place: Path) -> list[Path]:
    return next(walk(place)).folders


def _media(place: Path) -> list[tuple[Path, Kind]]:
    """The images and video files that lie in a folder itself."""
    return [(path, kind) for path in next(walk(place)).files if (kind := _kind(path))]


def _kind(path: Path) -> Kind | None:
    return "images" if is_image_file(path) else "videos" if is_video_file(path) else None


@dataclass
class _Class:
    """The media of a class folder and of all folders in it."""

    name: str
    images: list[Path] = field(default_factory=list)
    """All images, the frames of clips too."""
    loose: list[Path] = field(default_factory=list)
    """Images that cannot be frames: in the class folder itself, or in a folder with video files."""
    videos: list[Path] = field(default_factory=list)
    frames: dict[Path, bool] = field(default_factory=dict)
    """Folders that can be clips -> whether their images are numbered as frames are."""

    def samples(self, kind: Kind) -> list[Path]:
        """Images, or video files and folders of frames, by name."""
        return sorted(self.images if kind == "images" else [*self.videos, *self.frames])


def _read_class(place: Path, ignored: set[str], others: list[Path]) -> _Class:
    """Find the media of a class; ``others`` receives images of a format that is not read."""
    found = _Class(place.name)
    for entry in walk(place, ignored):
        images = [path for path in entry.files if is_image_file(path)]
        videos = [path for path in entry.files if is_video_file(path)]
        found.images += images
        found.videos += videos
        others += [path for path in entry.files if path.suffix.lower() in OTHER_SUFFIXES]
        if entry.path == place or videos:
            found.loose += images
        elif images and not found.frames.keys() & set(entry.path.parents):
            found.frames[entry.path] = _are_numbered([path.name for path in images])
    return found


def _are_numbered(names: list[str]) -> bool:
    """Whether the names differ only in a last number that rises in equal steps, as those of frames do."""
    parts = [re.fullmatch(r"(.*?)([0-9]{1,18})([^0-9]*)", name) for name in names]
    numbers = sorted(int(part[2]) for part in parts if part)
    steps = {after - before for before, after in pairwise(numbers)}
    return None not in parts and len({(part[1], part[3]) for part in parts if part}) == 1 and len(steps) < 2


def _decide_kind(root: Path, classes: list[_Class]) -> tuple[Kind, str | None]:
    """Whether these are images or clips, and a sentence on it unless it is plain."""
    loose = next((path for c in classes for path in c.loose), None)
    video = next((path for c in classes for path in c.videos), None)
    frames = {path: numbered for c in classes for path, numbered in c.frames.items()}
    kind = decide_kind(root, loose, video)
    if not frames:
        return kind, None
    if loose or video:
        reason = f"because of {loose or video}"
    else:
        numbered = sum(frames.values())
        kind, other = ("videos", "images") if 2 * numbered > len(frames) else ("images", "clips")
        reason = f"because {numbered:,} of {counted(len(frames), 'folder')} like it hold numbered frames; "
        reason += f"dataset={other} (in training data.dataset={other}) reads {other}"
    what = "a clip" if kind == "videos" else "a folder of images, not a clip"
    return kind, f"{next(iter(frames))} is read as {what}, {reason}"


def _class_folders(root: Path, places: dict[str, Path], kind: Kind | None = None) -> DatasetIndex:
    """Build the index of splits that are folders of class folders; ``kind`` is found out if it is not given."""
    ignored: set[str] = set()
    others: list[Path] = []
    tops = {place: next(walk(place, ignored)) for place in (root, *places.values())}
    splits = {s: [_read_class(path, ignored, others) for path in tops[place].folders] for s, place in places.items()}
    every = [found for classes in splits.values() for found in classes]
    names = sorted({found.name for found in every})
    if not names:
        raise ValueError(f"{places['train']} holds no class folders")
    untrained = sorted(set(names) - {found.name for found in splits["train"]})
    problems = [f"class {name} has no folder in {places['train']}" for name in untrained]
    decision = None
    if kind is None:
        kind, decision = _decide_kind(root, every)
    samples = {}
    for split, classes in splits.items():
        rows = [(path, found.name) for found in classes for path in found.samples(kind)]
        samples[split] = _samples(rows, names)
        empty = (places[split] / found.name for found in classes if not found.samples(kind))
        problems += [f"{path} holds no images, video files or folders of frames" for path in empty]
    if decision:
        problems.append(decision)
    stray = [path for top in tops.values() for path in top.files if _kind(path)]
    wrong = [path for found in every for path in (found.videos if kind == "images" else found.loose)]
    problems += count_skipped(others, "image", "of a kind that is not read")
    problems += count_skipped(stray, "file", "in no class folder: ignored")
    problems += count_skipped(wrong, "file", f"not of {kind}: ignored")
    if ignored:
        problems.append(f"ignored: {name_some(sorted(ignored))}")
    return _require_samples(root, DatasetIndex(tuple(names), samples, kind, tuple(problems)))


# Samples


def _samples(rows: Iterable[tuple[Path, Any]], keys: Iterable[Any]) -> tuple[Sample, ...]:
    """Samples from files and the keys of their classes; a label is the position of its key."""
    label_of = {key: label for label, key in enumerate(keys)}
    return tuple(Sample(path, label_of[key]) for path, key in rows)


def _require_samples(root: Path, index: DatasetIndex) -> DatasetIndex:
    """Return the index, or raise if it has no sample."""
    if not any(index.splits.values()):
        reason = index.problems[0] if index.problems else "nothing is listed"
        raise ValueError(f"{root} holds none of the {index.kind} it should: {reason}")
    return index


def _describe_missing(paths: list[Path]) -> list[str]:
    """Sentences for labels without files."""
    named = [f"{path} is listed but missing" for path in paths[:MAX_NAMED]]
    rest = len(paths) - len(named)
    return [*named, f"{rest:,} more listed files are missing"] if rest else named


def _listed_files(
    root: Path, kind: Kind, classes: Mapping[Any, str], listed: Mapping[str, list[Any]], problems: Iterable[str] = ()
) -> DatasetIndex:
    """Build the index of the listed (file, key of its class) that exist; the others are added to the problems."""
    exists = Path.exists if kind == "videos" else Path.is_file  # a clip may be a folder of frames
    there = {path for rows in listed.values() for path, _ in rows if exists(path)}
    splits = {s: _samples((row for row in rows if row[0] in there), classes) for s, rows in listed.items()}
    missing = [path for rows in listed.values() for path, _ in rows if path not in there]
    index = DatasetIndex(tuple(classes.values()), splits, kind, (*_describe_missing(missing), *problems))
    return _require_samples(root, index)


def _add_flat_validation(index: DatasetIndex, val: Path, solution: Path) -> DatasetIndex:
    """Add ImageNet's validation images in one folder, with their classes from a CSV file."""
    known, wnids = set(index.classes), {}
    for number, row in _rows(solution, ("ImageId", "PredictionString")):
        wnid = row["PredictionString"].split()[0]
        if wnid not in known:
            raise ValueError(f"{solution}, line {number}: there is no class {wnid!r} in train")
        wnids[require_inside(row["ImageId"], solution)] = wnid
    images = {path.stem: path for path, _ in _media(val)}
    test = _samples([(path, wnids[name]) for name, path in images.items() if name in wnids], index.classes)
    problems = _describe_missing([val / f"{name}.JPEG" for name in sorted(wnids.keys() - images.keys())])
    if unlabelled := len(images) - len(test):
        problems.append(f"{unlabelled:,} images in {val} have no class in {solution}")
    return replace(index, splits=index.splits | {"test": test}, problems=(*index.problems, *problems))


# Kinetics


def _kinetics_clips(root: Path) -> dict[str, dict[str, tuple[str, str]]]:
    """Split -> file name without suffix -> YouTube id and class, from the CSV files."""
    clips = {}
    for split, names in {"train": ("train.csv",), "test": ("val.csv", "validate.csv")}.items():
        places = (home / name for home in (root, root / "annotations") for name in names)
        source = next((place for place in places if place.is_file()), None)
        if source is None:
            raise ValueError(f"{root} is not Kinetics: there is no {' or '.join(names)} in it or in its annotations")
        clips[split] = listed = {}
        for number, row in _rows(source, ("label", "youtube_id", "time_start", "time_end")):
            start, end = _whole(row["time_start"]), _whole(row["time_end"])
            if not 0 <= start < end:
                given = f"{row['time_start']} to {row['time_end']}"
                raise ValueError(f"{source}, line {number}: {given} is not a stretch of time")
            video, label = require_inside(row["youtube_id"], source), require_inside(row["label"], source)
            listed[f"{video}_{start:06}_{end:06}"] = video, label
    return clips


def _kinetics(root: Path, clips: dict[str, dict[str, tuple[str, str]]]) -> DatasetIndex:
    """Build the index of the clips that exist, in the folder of their split or in class folders in it."""
    classes = sorted({label for listed in clips.values() for _, label in listed.values()})
    splits = {}
    for split, listed in clips.items():
        names = ("train",) if split == "train" else ("val", "validate", "validation")
        home = next((root / name for name in names if (root / name).is_dir()), None)
        places = [] if home is None else [home, *_folders(home)]
        media = (found for place in places for found in _media(place))
        videos = {path.stem: path for path, _ in media if is_video_file(path)}
        splits[split] = _samples([(videos[name], clip[1]) for name, clip in listed.items() if name in videos], classes)
    return DatasetIndex(tuple(classes), splits, "videos")
