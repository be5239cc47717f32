"""``cgnl predict`` with a detector: boxes, masks and labels, in words, as JSON, and drawn."""

import colorsys
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..atomic_io import make_folder, whole_file
from ..data.images import to_image
from ..data.index import UnreadableError
from ..data.sources import Source
from ..extras import need
from ..text import escape, say
from .checkpoint import Trained
from .tasks.detection import coco_results, set_size


@dataclass(frozen=True)
class Finding:
    """The objects found in an image, the surest first; or why it could not be read."""

    path: Path
    image_id: int
    """Its id in COCO's result format: the number that the file is called by, else its place in the list."""
    classes: tuple[str, ...] = ()
    results: tuple[dict[str, Any], ...] = ()
    """In COCO's result format."""
    pixels: Tensor | None = None
    """uint8 [3, H, W]."""
    masks: Tensor | None = None
    """bool [N, H, W]."""
    problem: str | None = None


@torch.inference_mode()
def find_objects(trained: Trained, source: Source, device: str = "cpu", threshold: float = 0.0) -> Iterator[Finding]:
    """The objects in each image with at least this score."""
    network = trained.network.to(device).eval()
    set_size(network, trained.config.data, training=False)
    files = [Path(source.name(index)) for index in range(len(source))]
    for index, (path, number) in enumerate(zip(files, image_ids(files), strict=True)):
        try:
            pixels = source.read(index, range)
        except UnreadableError as error:
            yield Finding(path, number, problem=str(error))
            continue
        found = network([pixels.to(device) / 255])[0]
        found = {name: value[found["scores"] >= threshold] for name, value in found.items()}
        names = tuple(trained.classes[label - 1] for label in found["labels"].tolist())
        results = tuple(coco_results(found, number, trained.ids))
        yield Finding(path, number, names, results, pixels, found["masks"][:, 0].cpu() > 0.5)


def image_ids(paths: Sequence[Path]) -> list[int]:
    """The numbers that files are called by, as COCO's are, if all are and no two are the same; else their places."""
    numbers = [int(path.stem) if path.stem.isascii() and path.stem.isdigit() else None for path in paths]
    found = [number for number in numbers if number is not None]
    return found if len(set(found)) == len(paths) else list(range(len(paths)))


def print_table(results: Iterable[Finding]) -> None:
    """Print the objects of each image that could be read."""
    for r in results:
        if r.problem:
            continue
        say(f"{r.path}: {len(r.results)} found" if r.results else f"{r.path}: nothing found")
        for name, row in zip(r.classes, r.results, strict=True):
            x, y, w, h = row["bbox"]
            say(f"  {row['score']:7.2%}  {escape(name):20} {w:.0f} x {h:.0f} at ({x:.0f}, {y:.0f})")


def print_json(results: Iterable[Finding]) -> None:
    """Print COCO's result format."""
    print(json.dumps([row for r in results for row in r.results]))


def name_drawings(files: Sequence[Path], folder: Path) -> list[Path]:
    """Where each image is drawn: a PNG of its name in the folder, and none of the images."""
    drawings: dict[Path, None] = {}
    inputs = {file.resolve() for file in files}
    for file, number in zip(files, image_ids(files), strict=True):
        drawing = folder / f"{file.stem}.png"
        while drawing in drawings:
            drawing = drawing.with_stem(f"{drawing.stem}-{number}")
        if drawing.resolve() in inputs:
            raise ValueError(f"the drawing of {file} would be written over {drawing}: choose another folder")
        drawings[drawing] = None
    return list(drawings)


def save_drawings(results: Iterable[Finding], files: Sequence[Path], folder: Path) -> Iterator[Finding]:
    """Save a drawing of each of the images in the folder; the findings are passed on."""
    drawings = name_drawings(files, folder)
    make_folder(folder)
    for r, drawing in zip(results, drawings, strict=True):
        if r.pixels is not None:
            with whole_file(drawing) as content:
                to_image(draw(r)).save(content, "png")
        yield r


def draw(finding: Finding) -> Tensor:
    """The image with boxes, masks and labels, uint8 [3, H, W], each object in a colour of its own."""
    pixels, masks = finding.pixels, finding.masks
    assert pixels is not None
    assert masks is not None
    if not finding.results:
        return pixels
    utils = need("torchvision.utils", "detection")
    colours = [colour(i) for i in range(len(finding.results))]
    for mask, each in reversed(list(zip(masks, colours, strict=True))):  # one by one: overlaps show all
        pixels = utils.draw_segmentation_masks(pixels, mask, alpha=0.45, colors=each)
    boxes = torch.tensor([row["bbox"] for row in finding.results])
    boxes[:, 2:] += boxes[:, :2]
    labels = [f"{escape(name)} {row['score']:.0%}" for name, row in zip(finding.classes, finding.results, strict=True)]
    return utils.draw_bounding_boxes(
        pixels, boxes, labels, colors=colours, width=2, label_colors="white", fill_labels=True
    )


def colour(number: int) -> tuple[int, int, int]:
    """The number-th of colours that are far from one another."""
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618 % 1, 0.85, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)
