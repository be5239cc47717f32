"""Batches of pictures with objects: what a detector learns from and is tested on."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..extras import need
from .images import read_image
from .index import Object, Scene, UnreadableError
from .loading import Place, first_readable
from .rng import generator, integer


class Target(NamedTuple):
    """The objects of a picture."""

    boxes: Tensor
    """[N, 4]: left, top, right, bottom."""
    labels: Tensor
    """[N], from 1 on: 0 is the background."""
    masks: Tensor
    """uint8 [N, H, W]."""


class DetectionBatch(NamedTuple):
    """Pictures of different sizes for one step, all in a row: many small tensors would take long to hand over."""

    pixels: Tensor
    """uint8, the pictures [3, H, W] one behind the other."""
    shapes: tuple[tuple[int, int], ...]
    """Height and width of each."""
    samples: Tensor
    problems: tuple[str, ...]
    """A sentence for each file that could not be read."""
    boxes: Tensor
    labels: Tensor
    masks: Tensor
    """uint8, the masks [N, H, W] one behind the other; there are none in a test."""
    counts: tuple[int, ...]
    """Objects of each picture."""

    def tensors(self) -> tuple[Tensor, ...]:
        """What lies on a device."""
        return self.pixels, self.boxes, self.labels, self.masks

    def to(self, device: torch.device | str) -> "DetectionBatch":
        names = ("pixels", "boxes", "labels", "masks")
        return self._replace(**{name: getattr(self, name).to(device, non_blocking=True) for name in names})

    def pictures(self) -> list[Tensor]:
        """float32 [3, H, W] from 0 to 1, as torchvision's detectors want them."""
        parts = self.pixels.split([3 * height * width for height, width in self.shapes])
        return [part.view(3, *shape) / 255 for part, shape in zip(parts, self.shapes, strict=True)]

    def targets(self) -> list[dict[str, Tensor]]:
        """The objects of each picture, as torchvision's detectors want them."""
        sizes = [n * math.prod(shape) for n, shape in zip(self.counts, self.shapes, strict=True)]
        masks = [m.view(-1, *shape) for m, shape in zip(self.masks.split(sizes), self.shapes, strict=True)]
        boxes, labels = self.boxes.split(self.counts), self.labels.split(self.counts)
        return [Target(*row)._asdict() for row in zip(boxes, labels, masks, strict=True)]


class DetectionTrainSet(Dataset[DetectionBatch]):
    """Pictures to learn from, mirrored half the time. One that cannot be read is replaced by the next that can."""

    def __init__(self, scenes: Sequence[Scene], seed: int, flip: bool, bad_limit: int):
        self.scenes, self.seed, self.flip, self.bad_limit = scenes, seed, flip, bad_limit

    def __getitems__(self, places: Sequence[Place]) -> DetectionBatch:
        rows, samples, problems = [], [], []
        for place in places:
            found, index, reasons = first_readable(self._read, place.sample, len(self.scenes), self.bad_limit)
            problems += reasons
            if found is None:
                continue
            if self.flip and integer(0, 2, generator(self.seed, *place)):
                found = mirrored(*found)
            rows.append(found)
            samples.append(index)
        return _batch(rows, samples, problems)

    def _read(self, index: int) -> tuple[Tensor, Target]:
        return read_scene(self.scenes[index]), target_of(self.scenes[index])


class DetectionEvalSet(Dataset[DetectionBatch]):
    """Pictures as they are, without their objects."""

    def __init__(self, scenes: Sequence[Scene]):
        self.scenes = scenes

    def __getitems__(self, indices: Sequence[int]) -> DetectionBatch:
        rows, samples, problems = [], [], []
        for index in indices:
            try:
                pixels = read_scene(self.scenes[index])
            except UnreadableError as error:
                problems.append(str(error))
                continue
            rows.append((pixels, target_of(self.scenes[index]._replace(objects=()))))
            samples.append(index)
        return _batch(rows, samples, problems)


def read_scene(scene: Scene) -> Tensor:
    """Its picture, uint8 [3, H, W], which must have the size that the annotations are for."""
    pixels = read_image(scene.path)
    height, width = pixels.shape[1:]
    if (height, width) != (scene.height, scene.width):
        annotated = f"{scene.width} x {scene.height}"
        raise UnreadableError(scene.path, f"it is {width} x {height} pixels, and annotated as {annotated}")
    return pixels


def target_of(scene: Scene) -> Target:
    """Its objects, with boxes cut at the picture's edge; crowds are left out."""
    objects = [thing for thing in scene.objects if not thing.crowd]
    boxes = torch.tensor([thing.box for thing in objects], dtype=torch.float32).view(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, scene.width)
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, scene.height)
    labels = torch.tensor([thing.label + 1 for thing in objects], dtype=torch.long)
    masks = torch.zeros(len(objects), scene.height, scene.width, dtype=torch.uint8)
    for mask, thing in zip(masks, objects, strict=True):
        mask.copy_(decode(thing, scene.height, scene.width))
    return Target(boxes, labels, masks)


def decode(thing: Object, height: int, width: int) -> Tensor:
    """Its mask, uint8 [H, W]."""
    api, shape = need("faster_coco_eval.core.mask", "detection"), thing.segmentation
    if isinstance(shape, list):
        shape = api.merge(api.frPyObjects(shape, height, width))
    elif isinstance(shape["counts"], list):
        shape = api.frPyObjects(shape, height, width)
    return torch.from_numpy(api.decode(shape))


def encode(masks: Tensor) -> list[dict[str, Any]]:
    """Masks [N, H, W] as run-length encodings that JSON can hold."""
    numpy, api = need("numpy", "detection"), need("faster_coco_eval.core.mask", "detection")
    if not len(masks):
        return []
    encoded = api.encode(numpy.asfortranarray(masks.to(torch.uint8).permute(1, 2, 0).cpu().numpy()))
    return [{"size": list(e["size"]), "counts": _text(e["counts"])} for e in encoded]


def _text(counts: bytes | str) -> str:
    return counts if isinstance(counts, str) else counts.decode("ascii")


def mirrored(pixels: Tensor, target: Target) -> tuple[Tensor, Target]:
    """Left and right exchanged."""
    boxes = target.boxes.clone()
    boxes[:, 0::2] = pixels.shape[-1] - target.boxes[:, [2, 0]]
    return pixels.flip(-1), Target(boxes, target.labels, target.masks.flip(-1))


def aspect_groups(scenes: Sequence[Scene]) -> list[int]:
    """A group for each picture, by its width over its height: those of a group fill a batch with little padding."""
    return [round(3 * math.log2(min(max(scene.width / scene.height, 0.5), 2))) for scene in scenes]


def _batch(rows: Sequence[tuple[Tensor, Target]], samples: Sequence[int], problems: Sequence[str]) -> DetectionBatch:
    def row(tensors: list[Tensor], empty: Tensor) -> Tensor:
        return torch.cat([empty, *tensors])

    targets = [target for _, target in rows]
    pixel, box, label = torch.empty(0, dtype=torch.uint8), torch.empty(0, 4), torch.empty(0, dtype=torch.long)
    return DetectionBatch(
        row([pixels.flatten() for pixels, _ in rows], pixel),
        tuple((pixels.shape[1], pixels.shape[2]) for pixels, _ in rows),
        torch.tensor(samples, dtype=torch.long),
        tuple(problems),
        row([target.boxes for target in targets], box),
        row([target.labels for target in targets], label),
        row([target.masks.flatten() for target in targets], pixel),
        tuple(len(target.labels) for target in targets),
    )
