"""YOLO's label files: a line for each object, with its class and its box or polygon as shares of the image."""

from collections.abc import Iterator
from pathlib import Path
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
    read_names,
    require_folder,
)

SPLITS = {"train": ("train",), "test": ("test", "val", "valid")}


def yolo(root: Path | str) -> DatasetIndex:
    """Images with a .txt of the same name each, as YOLO's trainers read them.

    ``images/train`` and ``labels/train`` (or ``train/images`` and ``train/labels``), the same for val, valid or test;
    names of the classes in ``data.yaml`` or ``classes.txt``. Polygons become masks; a box is its own mask.
    """
    root = require_folder(root)
    classes = _read_classes(root)
    problems: list[str] = []
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
        raise ValueError(f"{root} has no object to train on: images/train with labels/train are looked for")
    if more := problems[MAX_NAMED:]:
        problems[MAX_NAMED:] = [f"{len(more):,} more labels are faulty"]
    return DatasetIndex(classes, splits, "objects", tuple(problems), tuple(range(1, len(classes) + 1)))


def _read_classes(root: Path) -> tuple[str, ...]:
    """The names of the classes in their order."""
    if (listed := root / "classes.txt").is_file():
        names: Any = read_names(listed)
    elif (described := root / "data.yaml").is_file():
        content = read(described)
        names = content.get("names") if isinstance(content, dict) else None
        names = [names[key] for key in sorted(names)] if isinstance(names, dict) else names
    else:
        raise ValueError(f"{root} has neither data.yaml nor classes.txt, which name the classes")
    if not isinstance(names, list) or not names or len({str(name) for name in names}) < len(names):
        raise ValueError(f"{root} does not name its classes, each once")
    return tuple(str(name) for name in names)


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
        lines = label.read_text(encoding="utf-8").splitlines() if label.is_file() else []
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
        x, y = x - w / 2, y - h / 2
        polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
    elif len(shares) >= 6 and len(shares) % 2 == 0:
        polygon = [share * (height if place % 2 else width) for place, share in enumerate(shares)]
        x, y = min(polygon[::2]), min(polygon[1::2])
        w, h = max(polygon[::2]) - x, max(polygon[1::2]) - y
    else:
        return None, f"has {len(shares)} numbers: a box has four, a polygon six or more"
    row = {"id": number, "bbox": [x, y, w, h], "segmentation": [polygon]}
    return make_object(row, label, height, width)
