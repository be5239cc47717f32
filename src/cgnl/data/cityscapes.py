"""``cgnl data convert cityscapes``: Cityscapes' polygons as masks in COCO's format."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..atomic_io import make_folder, write_text
from ..extras import need
from .detection import encode
from .images import check_size, read_image
from .index import UnreadableError, is_image_file, require_new_folder

CLASSES = {"person": 24, "rider": 25, "car": 26, "truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33}
"""Classes with instances -> their ids in Cityscapes."""
NOT_DRAWN = ("license plate",)
"""Labels that hide nothing: Cityscapes' own tools do not draw them."""
MAX_OBJECTS, MAX_CORNERS = 2000, 100_000
"""Most objects of an image, and corners of all of them: Cityscapes has a few hundred, with thousands."""
SMALLEST = 4
"""Fewest visible pixels of an object."""
SECONDS = 10.0
"""Seconds between two progress messages."""


class Polygons(NamedTuple):
    """An annotation file: labelled polygons in drawing order, each over those before it."""

    height: int
    width: int
    objects: list[tuple[str, list[tuple[float, float]]]]


class Region(NamedTuple):
    """An object in an image, or a group of them."""

    name: str
    is_crowd: bool
    mask: Any
    """bool [H, W]: what is visible."""


@dataclass
class Converted:
    """Statistics of a split."""

    images: int = 0
    objects: int = 0
    crowds: int = 0
    too_small: int = 0
    """Objects and crowds with fewer than ``SMALLEST`` visible pixels."""
    problems: list[str] = field(default_factory=list)
    """One sentence for each image that was skipped."""


def convert(root: Path | str, out: Path | str, say: Callable[[str], None] = print) -> dict[str, Converted]:
    """Write ``out/annotations/instances_train.json`` and ``instances_val.json``, and link or copy the images.

    Polygons are drawn at their own size, as Cityscapes' tools do, and then resized to that of the image: a pixel
    belongs to an object that covers more than half of it. Drawn at the image's size they would be thicker, because
    an outline is one pixel wide.

    Args:
        root: Cityscapes, with ``leftImg8bit`` and ``gtFine``.
        out: a new folder, in COCO's layout.
        say: called with progress, and with each image that is skipped.
    """
    root, out = Path(root), Path(out)
    if not (root / "leftImg8bit" / "train").is_dir():
        raise ValueError(f"{root} is not Cityscapes: it has no folder leftImg8bit/train")
    require_new_folder(out)
    need("faster_coco_eval", "detection")
    splits = [split for split in ("train", "val") if (root / "leftImg8bit" / split).is_dir()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine threads would wait for each other longer than they compute
    try:
        return {split: _convert_split(root, out, split, say) for split in splits}
    finally:
        torch.set_num_threads(threads)


def _convert_split(root: Path, out: Path, split: str, say: Callable[[str], None]) -> Converted:
    """Write one annotation file and its images."""
    found = sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.*"))
    files = [path for path in found if is_image_file(path)]
    if not files:
        raise ValueError(f"{root / 'leftImg8bit' / split} holds no images such as CITY/NAME_leftImg8bit.png")
    done, images, annotations = Converted(), [], []
    (out / split).mkdir(parents=True)
    said = time.monotonic()
    for number, file in enumerate(files, start=1):
        name = f"{file.stem.removesuffix('_leftImg8bit')}_gtFine_polygons.json"
        try:
            height, width = read_image(file).shape[1:]
            polygons = read_polygons(root / "gtFine" / split / file.parent.name / name)
        except UnreadableError as error:
            done.problems.append(str(error))
            say(str(error))
            continue
        images.append({"id": number, "file_name": file.name, "height": height, "width": width})
        for region in regions(polygons, height, width):
            if region.mask.sum() < SMALLEST:
                done.too_small += 1
                continue
            row = {"id": len(annotations) + 1, "image_id": number, "category_id": CLASSES[region.name]}
            annotations.append(row | {"iscrowd": int(region.is_crowd), **_describe_mask(region.mask)})
        _link(file, out / split / file.name)
        if (now := time.monotonic()) - said >= SECONDS or number == len(files):
            say(f"{split}: {number:,} of {len(files):,} images")
            said = now
    categories = [{"id": number, "name": name} for name, number in CLASSES.items()]
    content = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    make_folder(out / "annotations")
    write_text(out / "annotations" / f"instances_{split}.json", content)
    done.images, done.crowds = len(images), sum(row["iscrowd"] for row in annotations)
    done.objects = len(annotations) - done.crowds
    return done


def read_polygons(source: Path) -> Polygons:
    """Read an annotation file. An invalid one raises ``UnreadableError``."""
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        height, width = content["imgHeight"], content["imgWidth"]
        if not (isinstance(height, int) and isinstance(width, int) and min(height, width) > 0):
            raise ValueError(f"imgWidth and imgHeight are {width} and {height}")
        check_size(source, width, height)
        objects = [thing for thing in content["objects"] if not thing.get("deleted")]
        if len(objects) > MAX_OBJECTS:
            raise ValueError(f"{len(objects):,} objects are too many: at most {MAX_OBJECTS:,} are read")
        if (corners := sum(len(thing["polygon"]) for thing in objects)) > MAX_CORNERS:
            raise ValueError(f"{corners:,} corners are too many: at most {MAX_CORNERS:,} are read")
        return Polygons(height, width, [(thing["label"], _points(thing, height, width)) for thing in objects])
    except UnreadableError:
        raise
    except OSError as error:
        raise UnreadableError(source, error) from None
    except KeyError as error:
        raise UnreadableError(source, f"{error} is missing") from None
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnreadableError(source, f"it is not Cityscapes' JSON: {error}") from None


def _points(thing: dict[str, Any], height: int, width: int) -> list[tuple[float, float]]:
    """The corners of a polygon, at most an image away from theirs."""
    if not isinstance(thing["label"], str):
        raise ValueError(f"a label is {thing['label']!r}")
    points = [(float(x), float(y)) for x, y in thing["polygon"]]
    if not all(-width <= x <= 2 * width and -height <= y <= 2 * height for x, y in points):
        raise ValueError(f"a polygon of {thing['label']!r} is far outside of {width} x {height} pixels")
    return points


def regions(polygons: Polygons, height: int, width: int) -> Iterator[Region]:
    """The objects of an image of this size; those that others hide have no pixel."""
    image, numpy = need("PIL.Image", "data"), need("numpy", "data")
    canvas = image.new("I", (polygons.width, polygons.height))
    pen = need("PIL.ImageDraw", "data").Draw(canvas)
    for number, (name, points) in enumerate(polygons.objects, start=1):
        if name not in NOT_DRAWN and len(points) > 2:
            pen.polygon(points, fill=number)
    drawn = numpy.array(canvas)  # int32 [H, W]: which object is on top
    for number, (name, _) in enumerate(polygons.objects, start=1):
        if name.removesuffix("group") in CLASSES:
            visible = image.fromarray((drawn == number).astype("float32"))
            share = numpy.array(visible.resize((width, height), image.Resampling.BOX))
            yield Region(name.removesuffix("group"), name not in CLASSES, share > 0.5)


def _describe_mask(mask: Any) -> dict[str, Any]:
    """The box, area and run lengths of a mask, as in COCO."""
    ys, xs = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
    box = [xs[0], ys[0], xs[-1] + 1 - xs[0], ys[-1] + 1 - ys[0]]
    runs = encode(torch.from_numpy(mask)[None])[0]
    return {"bbox": [int(n) for n in box], "area": int(mask.sum()), "segmentation": runs}


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it if that is impossible."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
