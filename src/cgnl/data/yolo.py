"""YOLO's label files: a line for each object, with its class and its box or polygon as shares of the image."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ..safe_yaml import read
from ..text import first_line
from .coco import make_object
from .index import (
    MAX_NAMED,
    DatasetIndex,
    Object,
    Scene,
    UnreadableError,
    is_image_file,
    name_some,
    read_names,
    require_folder,
)

SPLITS = {"train": ("train",), "test": ("test", "val", "valid")}
DESCRIPTIONS = ("data.yaml", "data.yml")


def yolo(root: Path | str) -> DatasetIndex:
    """Images with a .txt of the same name each, as YOLO's trainers read them.

    ``images/train`` and ``labels/train`` (or ``train/images`` and ``train/labels``), the same for val, valid or test;
    names of the classes in ``data.yaml`` or ``classes.txt``. Polygons become masks; a box is its own mask.
    """
    root = require_folder(root)
    problems: list[str] = []
    classes = _read_classes(root, problems)
    splits, number = {}, 0
    for split, names in SPLITS.items():
        found = [(path, label) for name in names for path, label in _pairs(root, name)]
        scenes = []
        for path, label in found:
            number += 1
            if scene := _read_scene(path, label, number, classes, problems):
                scenes.append(scene)
        if scenes:
            splits[split] = tuple(scenes)
    if not any(scene.objects for scene in splits.get("train", ())):
        reason = f": {problems[0]}" if problems else ": images/train with labels/train are looked for"
        raise ValueError(f"{root} has no object to train on{reason}")
    if more := problems[MAX_NAMED:]:
        problems[MAX_NAMED:] = [f"{len(more):,} more labels are faulty"]
    return DatasetIndex(classes, splits, "objects", tuple(problems), tuple(range(1, len(classes) + 1)))


def _read_classes(root: Path, problems: list[str]) -> tuple[str, ...]:
    """The names of the classes in their order; what else the file says and is not followed is added to ``problems``."""
    if (listed := root / "classes.txt").is_file():
        source, names = listed, read_names(listed)
    elif source := next((path for name in DESCRIPTIONS if (path := root / name).is_file()), None):
        content = read(source)
        names = _names_by_number(source, content.get("names")) if isinstance(content, dict) else None
        problems += _describe_ignored(source, content)
    else:
        raise ValueError(f"{root} has neither {' nor '.join(DESCRIPTIONS)} nor classes.txt, which name the classes")
    if not isinstance(names, list) or not names or len({str(name) for name in names}) < len(names):
        raise ValueError(f"{source} does not name its classes, each once")
    if wrong := [name for name in names if not isinstance(name, str | int) or isinstance(name, bool)]:
        raise ValueError(f"{source}: the class name {wrong[0]} is not text to YAML: put it in quotes")
    return tuple(str(name) for name in names)


def _names_by_number(source: Path, names: Any) -> Any:
    """The names in the order of their numbers, if they have numbers."""
    if not isinstance(names, dict):
        return names
    numbered = {int(key): name for key, name in names.items() if str(key).isascii() and str(key).isdigit()}
    if len(numbered) < len(names) or set(numbered) != set(range(len(names))):
        raise ValueError(f"{source} numbers its classes {name_some(list(map(str, names)))}: not 0, 1, 2 and so on")
    return [numbered[number] for number in range(len(names))]


def _describe_ignored(source: Path, content: Any) -> list[str]:
    """Sentences on paths in ``data.yaml`` that lead elsewhere than to where the images are looked for."""
    usual = {"path": {(".",), (), (source.parent.resolve().name,)}}
    for key, split in (("train", "train"), ("val", "test"), ("test", "test")):
        usual[key] = {parts for name in SPLITS[split] for parts in (("images", name), (name, "images"))}
    found = {key: content[key] for key in usual if isinstance(content, dict) and content.get(key)}
    return [
        f"{source}: {key} = {value} is not followed: images are looked for in images/train and train/images"
        for key, value in found.items()
        if not isinstance(value, str) or PurePosixPath(value).parts[-2 + (key == "path") :] not in usual[key]
    ]


def _pairs(root: Path, split: str) -> Iterator[tuple[Path, Path]]:
    """The images of a split, each with where its labels are."""
    for one, other in (("images", split), (split, "images")):
        images, labels = root / one / other, root / one.replace("images", "labels") / other.replace("images", "labels")
        for path in sorted(images.rglob("*")) if images.is_dir() else ():
            if path.is_file() and is_image_file(path):
                yield path, labels / path.relative_to(images).with_suffix(".txt")


def _read_scene(path: Path, label: Path, number: int, classes: tuple[str, ...], problems: list[str]) -> Scene | None:
    """An image with its objects; faults are added to ``problems``. Without a label file it has none."""
    from .images import read_size  # imports torch, and settings are checked without it

    try:
        height, width = read_size(path)
        lines = label.read_text(encoding="utf-8-sig").splitlines() if label.is_file() else []
    except (OSError, UnicodeDecodeError, UnreadableError) as error:
        problems.append(str(error) if isinstance(error, UnreadableError) else f"{label}: {first_line(error)}")
        return None
    objects: list[Object] = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        thing, fault = _read_object(line.split(), number * 100_000 + place, classes, height, width)
        objects += [thing] if thing else []
        if fault:
            problems.append(f"{label}: line {place} {fault}")
    return Scene(path, number, height, width, tuple(objects))


def _read_object(
    words: list[str], number: int, classes: tuple[str, ...], height: int, width: int
) -> tuple[Object | None, str | None]:
    """The object of a line, if it is valid, and what is wrong with it."""
    try:
        label, shares = int(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        return None, "is not a class and numbers"
    if not 0 <= label < len(classes):
        return None, f"has the class {label}, and there are {len(classes)}"
    if len(shares) == 4:
        x, y, w, h = (share * side for share, side in zip(shares, (width, height) * 2, strict=True))
        x, y, polygons = x - w / 2, y - h / 2, []
    elif len(shares) >= 6 and len(shares) % 2 == 0:
        polygon = [share * (height if place % 2 else width) for place, share in enumerate(shares)]
        x, y = min(polygon[::2]), min(polygon[1::2])
        w, h, polygons = max(polygon[::2]) - x, max(polygon[1::2]) - y, [polygon]
    else:
        return None, f"has {len(shares)} numbers: a box has four, a polygon six or more"
    row = {"id": number, "bbox": [x, y, w, h], "segmentation": polygons}
    return make_object(row, label, height, width)
