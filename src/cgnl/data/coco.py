"""COCO's annotation format: read, checked, and written again for evaluation."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..text import first_line
from .index import MAX_NAMED, DatasetIndex, Object, Scene, name_some, require_file, require_folder, require_inside

SMALLEST = 1e-3
"""Pixels: a shorter side vanishes in float32."""


def coco(
    root: Path | str,
    annotations: str | None = None,
    images: str | None = None,
    test_annotations: str | None = None,
    test_images: str | None = None,
) -> DatasetIndex:
    """COCO's own layout, or any annotation file with any folder of images.

    In COCO's layout ``annotations/instances_train2017.json`` describes ``train2017``, and ``instances_val2017.json``
    describes ``val2017``; other years and names are found too.

    Args:
        root: the folder. The other paths are relative to it.
        annotations: the file for training.
        images: the images it names.
        test_annotations: the file for testing.
        test_images: the images that one names.
    """
    root = require_folder(root)
    train = root / annotations if annotations else _find(root, ("train",))
    if train is None:
        raise ValueError(f"{root} has no annotations/instances_train*.json: let annotations name the file")
    test = root / test_annotations if test_annotations else (None if annotations else _find(root, ("val", "test")))
    content, problems = _read(train), []
    categories = _categories(train, content)
    label_of = {name: label for label, name in enumerate(categories.values())}
    labels = {number: label_of[name] for number, name in categories.items()}
    splits = {"train": _scenes(train, content, _image_folder(root, train, images), labels, problems)}
    if test is not None:
        content, folder = _read(test), _image_folder(root, test, test_images or images)
        labels = _match_categories(test, content, label_of)
        splits["test"] = _scenes(test, content, folder, labels, problems)
    if not any(scene.objects for scene in splits["train"]):
        reason = problems[0] if problems else "none is listed"
        raise ValueError(f"{train} has no object that can be trained on: {reason}")
    return DatasetIndex(tuple(categories.values()), splits, "objects", tuple(problems), tuple(categories))


def ground_truth(scenes: Sequence[Scene], ids: Sequence[int]) -> dict[str, Any]:
    """Scenes as the content of an annotation file; ``ids`` are the category_ids of the classes.

    Where annotations are numbered from 0 or below, all numbers move up: the evaluation takes 0 for no match.
    """
    first = min((thing.id for scene in scenes for thing in scene.objects), default=1)
    return {
        "images": [{"id": scene.id, "height": scene.height, "width": scene.width} for scene in scenes],
        "categories": [{"id": number, "name": str(number)} for number in ids],
        "annotations": [
            {
                "id": thing.id + max(0, 1 - first),
                "image_id": scene.id,
                "category_id": ids[thing.label],
                "bbox": list(thing.box),
                "segmentation": thing.segmentation,
                "area": thing.area,
                "iscrowd": int(thing.crowd),
            }
            for scene in scenes
            for thing in scene.objects
        ],
    }


def _find(root: Path, splits: Iterable[str]) -> Path | None:
    """The annotation file of the first of these splits, the latest year first."""
    found = (sorted(place.glob(f"instances_{s}*.json")) for s in splits for place in (root / "annotations", root))
    return next((files[-1] for files in found if files), None)


def _image_folder(root: Path, annotations: Path, given: str | None) -> Path:
    """The folder of the images of an annotation file."""
    if given is not None:
        return require_folder(root / given)
    name = annotations.stem.partition("_")[2]
    places = [root / name, root / "images" / name, root / name.rstrip("0123456789"), root / "images"]
    return next((place for place in places if name and place.is_dir()), root)


def _read(source: Path) -> dict[str, Any]:
    """Read an annotation file with its three lists."""
    text = require_file(source).read_bytes()
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of JSON or of UTF-8
        raise ValueError(f"{source} is not JSON: {first_line(error)}") from None
    for name in ("images", "annotations", "categories"):
        rows = content.get(name) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{source} is no COCO annotation file: it has no list of {name}")
    return content


def _categories(source: Path, content: dict[str, Any]) -> dict[int, str]:
    """category_id -> name, in order. A name that several have gets their numbers, as in ``cat (3)``."""
    names: dict[int, str] = {}
    for row in content["categories"]:
        if not _is_id(row.get("id")) or not isinstance(row.get("name"), str):
            raise ValueError(f"{source} has a category without a number and a name: {row}")
        if row["id"] in names:
            raise ValueError(f"{source} lists category {row['id']} twice: {names[row['id']]} and {row['name']}")
        names[row["id"]] = row["name"]
    if not names:
        raise ValueError(f"{source} lists no categories")
    times = Counter(names.values())
    unique = {number: name if times[name] == 1 else f"{name} ({number})" for number, name in sorted(names.items())}
    if len(set(unique.values())) < len(unique):
        raise ValueError(f"{source} lists categories of the same name: {name_some(list(unique.values()))}")
    return unique


def _match_categories(source: Path, content: dict[str, Any], label_of: dict[str, int]) -> dict[int, int]:
    """category_id of a test file -> label, by the names in both files; their numbers may differ."""
    names = _categories(source, content)
    used = [row.get("category_id") for row in content["annotations"]]
    if unknown := [name for number, name in names.items() if name not in label_of and number in used]:
        raise ValueError(f"{source} has objects of categories that are not trained on: {name_some(unknown)}")
    return {number: label_of[name] for number, name in names.items() if name in label_of}


def _scenes(
    source: Path, content: dict[str, Any], folder: Path, labels: dict[int, int], problems: list[str]
) -> tuple[Scene, ...]:
    """The images of an annotation file that exist, with their valid objects; the rest is added to ``problems``."""
    images = _images(source, content, folder)
    missing = {number for number, row in images.items() if not row["path"].is_file()}
    objects: dict[int, list[Object]] = {number: [] for number in images}
    seen: set[int] = set()
    faults: list[tuple[object, str]] = []
    for place, row in enumerate(content["annotations"], start=1):
        number, image_id, category = row.get("id"), row.get("image_id"), row.get("category_id")
        image = images.get(image_id) if _is_id(image_id) else None
        fault = None
        if not _is_id(number):
            number, fault = f"number {place} of the file", "has no id"
        elif number in seen:
            fault = "is listed twice"
        elif image is None:
            fault = f"names image {image_id}, which is not listed"
        elif image_id in missing:
            fault = f"is of {image['path']}, which is missing"
        elif not _is_id(category) or category not in labels:
            fault = f"has the category {category}, which is not listed"
        else:
            seen.add(number)
            thing, fault = make_object(row, labels[category], image["height"], image["width"])
            if thing is not None:
                objects[image_id].append(thing)
        if fault:
            faults.append((number, fault))
    problems += [f"{source.name}: annotation {number} {fault}" for number, fault in faults[:MAX_NAMED]]
    if more := [str(number) for number, _ in faults[MAX_NAMED:]]:
        problems.append(f"{source.name}: {len(more):,} more annotations are faulty: {', '.join(more)}")
    without = sorted(missing - {row["image_id"] for row in content["annotations"] if _is_id(row.get("image_id"))})
    if without:
        others = f" and {len(without) - 1:,} others without objects are" if len(without) > 1 else " is"
        problems.append(f"{images[without[0]]['path']}{others} listed but missing")
    return tuple(
        Scene(row["path"], number, row["height"], row["width"], tuple(objects[number]))
        for number, row in images.items()
        if number not in missing
    )


def _images(source: Path, content: dict[str, Any], folder: Path) -> dict[int, dict[str, Any]]:
    """Image id -> its row in the annotation file, with its path."""
    images: dict[int, dict[str, Any]] = {}
    for row in content["images"]:
        if not _is_id(row.get("id")) or not isinstance(row.get("file_name"), str):
            raise ValueError(f"{source} has an image without an id and a file_name: {row}")
        if row["id"] in images:
            raise ValueError(f"{source} lists image {row['id']} twice")
        if not all(_is_id(row.get(side)) and row[side] > 0 for side in ("height", "width")):
            raise ValueError(f"{source} does not say the height and width of image {row['id']} ({row['file_name']})")
        images[row["id"]] = {**row, "path": folder / require_inside(row["file_name"], source)}
    return images


def make_object(row: dict[str, Any], label: int, height: int, width: int) -> tuple[Object | None, str | None]:
    """The object of an annotation, if it is valid, and what is wrong with the annotation, if anything is.

    Without a segmentation, its box is its mask.
    """
    box: Any = row.get("bbox")
    if not _are_numbers(box) or len(box) != 4:
        return None, f"has a box that is not four numbers: {box}"
    x, y, w, h = map(float, box)
    left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
    if min(right - left, bottom - top) < SMALLEST:
        return None, f"has a box without area in its image of {width} x {height}: {box}"
    shape: Any = row.get("segmentation")
    if shape is None or shape == []:
        shape = [[left, top, right, top, right, bottom, left, bottom]]
    fault = None
    if isinstance(shape, list) and shape and all(isinstance(polygon, list) for polygon in shape):
        valid = [p for p in shape if _is_polygon(p) and _is_near(p, height, width)]
        if len(valid) < len(shape):
            wrong = next(p for p in shape if p not in valid)
            fault = (
                f"has a polygon {'far outside its image' if _is_polygon(wrong) else f'of {len(wrong) / 2:g} points'}"
            )
        if not valid:
            return None, fault
        shape = valid
    elif not _is_rle(shape, height, width):
        return None, f"has neither polygons nor a run-length encoding of {width} x {height} pixels"
    given: Any = row.get("area")
    area = float(given) if _are_numbers([given]) else w * h
    return Object(row["id"], label, (x, y, w, h), shape, area, row.get("iscrowd") == 1), fault


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_numbers(values: object) -> bool:
    """Whether it is a list of finite numbers."""
    return isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and abs(v) <= sys.float_info.max for v in values
    )


def _is_polygon(points: Any) -> bool:
    return _are_numbers(points) and len(points) >= 6 and len(points) % 2 == 0


def _is_near(points: list[float], height: int, width: int) -> bool:
    """Whether points are at most an image away from theirs: filling a polygon walks along all of its edges."""
    return all(-size <= p <= 2 * size for first, size in ((0, width), (1, height)) for p in points[first::2])


def _is_rle(shape: object, height: int, width: int) -> bool:
    """Whether it is a run-length encoding of an image of this size."""
    if not isinstance(shape, dict) or shape.get("size") != [height, width]:
        return False
    counts: Any = shape.get("counts")
    counts = _run_lengths(counts) if isinstance(counts, str) else counts
    return _are_numbers(counts) and min(counts, default=-1) >= 0 and sum(counts) == height * width


def _run_lengths(text: str) -> list[int] | None:
    """Decode COCO's compressed run lengths: five bits a letter, differences to the last run but one."""
    lengths: list[int] = []
    value = bits = 0
    for letter in text:
        code = ord(letter) - 48
        if not 0 <= code < 64 or bits > 60:
            return None
        value |= (code & 31) << bits
        bits += 5
        if not code & 32:  # the last letter of a number; its highest bit is the sign
            value -= (code & 16) << (bits - 4)
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = bits = 0
    return None if bits else lengths
