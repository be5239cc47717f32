"""Batches for detectors: images with the boxes, labels and masks of their objects."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..extras import need
from .images import read_image
from .index import Object, Scene, UnreadableError
from .loading import EpochSample, pack, read_all, unpack
from .transforms import generator, integer

Target = dict[str, Tensor]
"""torchvision's: ``boxes`` [N, 4] as left, top, right, bottom; ``labels`` [N] from 1; ``masks`` uint8 [N, H, W]."""


class DetectionBatch(NamedTuple):
    """Images of different sizes for one step, packed."""

    pixels: Tensor
    """uint8, the packed images [3, H, W]."""
    shapes: tuple[tuple[int, int], ...]
    """Height and width of each."""
    samples: Tensor
    problems: tuple[str, ...]
    """One sentence for each file that could not be read."""
    boxes: Tensor
    labels: Tensor
    masks: Tensor
    """uint8, the packed masks [N, H, W]; none in a test."""
    counts: tuple[int, ...]
    """Number of objects in each image."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that ``to`` moves."""
        return self.pixels, self.boxes, self.labels, self.masks

    def to(self, device: torch.device | str) -> "DetectionBatch":
        names = ("pixels", "boxes", "labels", "masks")
        return self._replace(**{name: getattr(self, name).to(device, non_blocking=True) for name in names})

    def images(self) -> list[Tensor]:
        """The images as torchvision's detectors take them: float32 [3, H, W] from 0 to 1."""
        return [pixels / 255 for pixels in unpack(self.pixels, [(3, *shape) for shape in self.shapes])]

    def targets(self) -> list[Target]:
        """The objects of each image as torchvision's detectors take them."""
        masks = unpack(self.masks, [(n, *shape) for n, shape in zip(self.counts, self.shapes, strict=True)])
        rows = zip(self.boxes.split(self.counts), self.labels.split(self.counts), masks, strict=True)
        return [{"boxes": boxes, "labels": labels, "masks": mask} for boxes, labels, mask in rows]


class DetectionTrainSet(Dataset[DetectionBatch]):
    """Images to train on, flipped half the time. One that cannot be read is replaced by the next that can."""

    def __init__(self, scenes: Sequence[Scene], seed: int, flip: bool, bad_limit: int):
        self.scenes, self.seed, self.flip, self.bad_limit = scenes, seed, flip, bad_limit

    def __getitems__(self, keys: Sequence[EpochSample]) -> DetectionBatch:
        return _batch(*read_all(self._read, keys, len(self.scenes), self.bad_limit))

    def _read(self, key: EpochSample, index: int) -> tuple[Tensor, Target, int]:
        pixels, target = read_scene(self.scenes[index]), make_target(self.scenes[index])
        if self.flip and integer(0, 2, generator(self.seed, *key)):
            pixels, target = horizontal_flip(pixels, target)
        return pixels, target, index


class DetectionEvalSet(Dataset[DetectionBatch]):
    """Images as they are, without their objects."""

    def __init__(self, scenes: Sequence[Scene]):
        self.scenes = scenes

    def __getitems__(self, indices: Sequence[int]) -> DetectionBatch:
        return _batch(*read_all(self._read, indices, len(self.scenes)))

    def _read(self, _: int, index: int) -> tuple[Tensor, Target, int]:
        scene = self.scenes[index]
        return read_scene(scene), make_target(scene._replace(objects=())), index


def read_scene(scene: Scene) -> Tensor:
    """Read its image, uint8 [3, H, W], which must have the annotated size."""
    pixels = read_image(scene.path, (scene.height, scene.width))
    height, width = pixels.shape[1:]
    if (height, width) != (scene.height, scene.width):
        annotated = f"{scene.width} x {scene.height}"
        raise UnreadableError(scene.path, f"it is {width} x {height} pixels, and annotated as {annotated}")
    return pixels


def make_target(scene: Scene) -> Target:
    """Its objects without crowds, the boxes clipped to the image."""
    objects = [thing for thing in scene.objects if not thing.crowd]
    boxes = torch.tensor([thing.box for thing in objects], dtype=torch.float32).view(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, scene.width)
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, scene.height)
    labels = torch.tensor([thing.label + 1 for thing in objects], dtype=torch.long)
    masks = torch.zeros(len(objects), scene.height, scene.width, dtype=torch.uint8)
    for mask, thing in zip(masks, objects, strict=True):
        mask.copy_(decode(thing, scene.height, scene.width))
    return {"boxes": boxes, "labels": labels, "masks": masks}


def decode(thing: Object, height: int, width: int) -> Tensor:
    """Decode its mask, uint8 [H, W]."""
    api, shape = need("faster_coco_eval.core.mask", "detection"), thing.segmentation
    if isinstance(shape, list):
        shape = api.merge(api.frPyObjects(shape, height, width))
    elif isinstance(shape["counts"], list):
        shape = api.frPyObjects(shape, height, width)
    return torch.from_numpy(api.decode(shape))


def encode(masks: Tensor) -> list[dict[str, Any]]:
    """Encode masks [N, H, W] as run lengths that JSON can hold."""
    numpy, api = need("numpy", "detection"), need("faster_coco_eval.core.mask", "detection")
    if not len(masks):
        return []
    encoded = api.encode(numpy.asfortranarray(masks.to(torch.uint8).permute(1, 2, 0).cpu().numpy()))
    rows = [(list(row["size"]), row["counts"]) for row in encoded]
    return [{"size": size, "counts": c if isinstance(c, str) else c.decode("ascii")} for size, c in rows]


def horizontal_flip(pixels: Tensor, target: Target) -> tuple[Tensor, Target]:
    """Flip an image and its objects."""
    boxes = target["boxes"].clone()
    boxes[:, 0::2] = pixels.shape[-1] - target["boxes"][:, [2, 0]]
    return pixels.flip(-1), {"boxes": boxes, "labels": target["labels"], "masks": target["masks"].flip(-1)}


def aspect_groups(scenes: Sequence[Scene]) -> list[int]:
    """Group images by width / height, so that batches need little padding."""
    return [round(3 * math.log2(min(max(scene.width / scene.height, 0.5), 2))) for scene in scenes]


def _batch(found: Sequence[tuple[Tensor, Target, int]], problems: tuple[str, ...]) -> DetectionBatch:
    """Pack what ``read_all`` returns."""
    images, targets, samples = zip(*found, strict=True) if found else ((), (), ())
    return DetectionBatch(
        pack(images),
        tuple((pixels.shape[1], pixels.shape[2]) for pixels in images),
        torch.tensor(samples, dtype=torch.long),
        problems,
        torch.cat([torch.empty(0, 4), *(target["boxes"] for target in targets)]),
        torch.cat([torch.empty(0, dtype=torch.long), *(target["labels"] for target in targets)]),
        pack([target["masks"] for target in targets]),
        tuple(len(target["labels"]) for target in targets),
    )
