"""``cgnl data convert cityscapes``: the polygons of Cityscapes as masks in COCO's format."""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..extras import need
from ..spelling import first_line
from .detection import encode
from .images import check_size, is_image_file, read_image
from .index import UnreadableError

CLASSES = {
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
"""Classes with instances -> their number in Cityscapes."""
NOT_DRAWN = ("license plate",)
"""Labels that hide nothing: Cityscapes' own tools leave them out of the label images."""
SMALLEST = 4
"""Pixels of a picture that an object must fill."""
SECONDS = 10.0
"""Between two lines on the progress."""

Point = tuple[float, float]


class Polygons(NamedTuple):
    """An annotation file: polygons in the order they are drawn, each over those before it."""

    height: int
    width: int
    objects: list[tuple[str, list[Point]]]


class Region(NamedTuple):
    """The visible part of an object, or of a group of objects that were not told apart."""

    name: str
    crowd: bool
    mask: Any
    """NumPy's, bool [H, W]."""


@dataclass
class Converted:
    """What became of a split."""

    pictures: int = 0
    objects: int = 0
    crowds: int = 0
    too_small: int = 0
    """Objects and crowds that are hidden, or have fewer pixels than ``SMALLEST``."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each picture that was left out."""


def convert(root: Path | str, out: Path | str, say: Callable[[str], None] = print) -> dict[str, Converted]:
    """Write ``out/annotations/instances_train.json`` and ``instances_val.json``, and link or copy the pictures.

    Polygons are drawn at their own size, as Cityscapes' tools do, and then brought to that of the picture: a pixel
    belongs to an object that covers more than half of it. At the picture's size they would be thicker, because
    an outline is as wide as a pixel.

    Args:
        root: Cityscapes, with ``leftImg8bit`` and ``gtFine``.
        out: a new folder, in COCO's layout.
        say: is given a line on the progress now and then, and one on each picture that is left out.
    """
    root, out = Path(root), Path(out)
    if not (root / "leftImg8bit" / "train").is_dir():
        raise ValueError(f"{root} is not Cityscapes: it has no folder leftImg8bit/train")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already")
    need("faster_coco_eval", "detection")
    splits = [split for split in ("train", "val") if (root / "leftImg8bit" / split).is_dir()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine they would wait for each other longer than they compute
    try:
        return {split: _convert_split(root, out, split, say) for split in splits}
    finally:
        torch.set_num_threads(threads)


def _convert_split(root: Path, out: Path, split: str, say: Callable[[str], None]) -> Converted:
    """Write one annotation file and its pictures."""
    done, pairs = Converted(), _pairs(root, split)
    if not pairs:
        raise ValueError(f"{root / 'leftImg8bit' / split} holds no pictures such as CITY/NAME_leftImg8bit.png")
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    (out / split).mkdir(parents=True)
    said = time.monotonic()
    for number, (picture, source) in enumerate(pairs, start=1):
        try:
            height, width = read_image(picture).shape[1:]
            found = list(regions(read_polygons(source), height, width))
        except UnreadableError as error:
            done.problems.append(str(error))
            say(str(error))
            continue
        row = {"id": number, "file_name": picture.name, "height": height, "width": width}
        images.append(row)
        for region in found:
            if int(region.mask.sum()) < SMALLEST:
                done.too_small += 1
            else:
                annotations.append({"id": len(annotations) + 1, "image_id": number, **_annotation(region)})
        _link(picture, out / split / picture.name)
        if (now := time.monotonic()) - said >= SECONDS or number == len(pairs):
            say(f"{split}: {number:,} of {len(pairs):,} pictures")
            said = now
    categories = [{"id": number, "name": name} for name, number in CLASSES.items()]
    _write(
        out / "annotations" / f"instances_{split}.json",
        {"images": images, "annotations": annotations, "categories": categories},
    )
    done.pictures = len(images)
    done.crowds = sum(row["iscrowd"] for row in annotations)
    done.objects = len(annotations) - done.crowds
    return done


def _pairs(root: Path, split: str) -> list[tuple[Path, Path]]:
    """The pictures of a split, each with its annotation file."""
    found = sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.*"))
    names = [(path, path.stem.removesuffix("_leftImg8bit")) for path in found if is_image_file(path)]
    return [(p, root / "gtFine" / split / p.parent.name / f"{name}_gtFine_polygons.json") for p, name in names]


def read_polygons(source: Path) -> Polygons:
    """An annotation file. One that is not as it should be raises ``UnreadableError``."""
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        height, width, objects = content["imgHeight"], content["imgWidth"], content["objects"]
        if not (isinstance(height, int) and isinstance(width, int) and min(height, width) > 0):
            raise ValueError(f"imgWidth and imgHeight are {width} and {height}")
        check_size(source, width, height)
        things = [thing for thing in objects if not thing.get("deleted")]
        return Polygons(height, width, [(_label(t), _points(t, height, width)) for t in things])
    except UnreadableError:
        raise
    except OSError as error:
        raise UnreadableError(source, error.strerror or error) from None
    except KeyError as error:
        raise UnreadableError(source, f"{error} is missing") from None
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnreadableError(source, f"it is not Cityscapes' JSON: {first_line(error)}") from None


def _label(thing: dict[str, Any]) -> str:
    if not isinstance(thing["label"], str):
        raise ValueError(f"a label is {thing['label']!r}")
    return thing["label"]


def _points(thing: dict[str, Any], height: int, width: int) -> list[Point]:
    """The corners of a polygon, at most a picture away from theirs."""
    points = [(float(x), float(y)) for x, y in thing["polygon"]]
    if not all(-width <= x <= 2 * width and -height <= y <= 2 * height for x, y in points):
        raise ValueError(f"a polygon of {thing['label']!r} is far outside of {width} x {height} pixels")
    return points


def regions(polygons: Polygons, height: int, width: int) -> Iterator[Region]:
    """The visible parts of all objects of ``CLASSES``, for a picture of this size. Some may have no pixel."""
    image, draw = need("PIL.Image", "data"), need("PIL.ImageDraw", "data")
    canvas = image.new("I", (polygons.width, polygons.height))
    pen = draw.Draw(canvas)
    for number, (name, points) in enumerate(polygons.objects, start=1):
        if name not in NOT_DRAWN and len(points) > 2:
            pen.polygon(points, fill=number)
    drawn = need("numpy", "data").array(canvas)  # int32 [H, W]: which object is on top
    for number, (name, points) in enumerate(polygons.objects, start=1):
        crowd = name not in CLASSES
        name = name.removesuffix("group")
        if name in CLASSES:
            yield Region(name, crowd, _mask(drawn, number, points, height, width))


def _mask(drawn: Any, number: int, points: list[Point], height: int, width: int) -> Any:
    """Pixels of a picture of this size that one number covers by more than half."""
    numpy = need("numpy", "data")
    mask = numpy.zeros((height, width), dtype=bool)
    if len(points) < 3:
        return mask
    rows, columns = drawn.shape[0] / height, drawn.shape[1] / width
    (left, right), (top, bottom) = (  # with the outline, which is drawn around the corners
        (max(0, math.floor((min(side) - 1) / step)), min(most, math.floor((max(side) + 1) / step) + 1))
        for side, step, most in zip(zip(*points, strict=True), (columns, rows), (width, height), strict=True)
    )
    if left >= right or top >= bottom:
        return mask
    x, y = math.floor(left * columns), math.floor(top * rows)
    part = drawn[y : math.ceil(bottom * rows), x : math.ceil(right * columns)] == number
    if drawn.shape != mask.shape:
        image = need("PIL.Image", "data")
        edges = min(right * columns - x, part.shape[1]), min(bottom * rows - y, part.shape[0])
        box = (left * columns - x, top * rows - y, *edges)
        part = image.fromarray(part.astype("float32"))
        part = numpy.array(part.resize((right - left, bottom - top), image.Resampling.BOX, box)) > 0.5
    mask[top:bottom, left:right] = part
    return mask


def _annotation(region: Region) -> dict[str, Any]:
    """A region as COCO describes an object."""
    rows, columns = region.mask.any(1).nonzero()[0], region.mask.any(0).nonzero()[0]
    (top, bottom), (left, right) = ((int(side.min()), int(side.max()) + 1) for side in (rows, columns))
    return {
        "category_id": CLASSES[region.name],
        "iscrowd": int(region.crowd),
        "bbox": [left, top, right - left, bottom - top],
        "area": int(region.mask.sum()),
        "segmentation": encode(torch.from_numpy(region.mask[None]))[0],
    }


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy where there can be no link."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON under another name first, so that what bears its own is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)
