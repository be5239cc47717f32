"""Detecting objects in images: boxes, masks and classes."""

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from ...data.coco import ground_truth
from ...data.detection import DetectionBatch, DetectionEvalSet, DetectionTrainSet, aspect_groups, encode
from ...data.index import Scene
from ...extras import need
from ...text import counted, percent
from .. import distributed
from ..datasets import get_size, short_side_in_test
from ..settings import Data
from .base import Task

LOSSES = ("loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg")
"""torchvision's; their sum is the loss."""
AREAS = ("ap_small", "ap_medium", "ap_large")
COCO_NUMBERS = ("ap", "ap50", "ap75", *AREAS, "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large")
"""Average precision, and average recall with 1, 10 and 100 detections; by area of the object."""
SURE, MIN_IOU = 0.5, 0.5
"""Lowest score of an object that counts as found, and lowest IoU of two boxes of one object."""
OTHER_SHAPE = {"bbox": "segmentation", "segm": "bbox"}
"""Left out of the results: with both in them, the area of an object would be that of its box."""


class Objects(Task):
    """Objects in images."""

    kind = "objects"
    metric = "box_ap"
    default_network = "maskrcnn_resnet50_fpn"
    default_lr = 0.32
    fixed_size = False
    classifies = False
    train_sums: ClassVar[Sequence[str]] = ("loss", *LOSSES)
    train_columns: ClassVar[Sequence[str]] = ("loss", *LOSSES)

    def train_set(self, source: Sequence[Scene]) -> tuple[TorchDataset, list[int]]:
        data = self.config.data
        return DetectionTrainSet(source, self.config.seed, data.flip, data.bad_limit), aspect_groups(source)

    def test_set(self, source: Sequence[Scene], full: bool) -> tuple[TorchDataset, int]:  # noqa: ARG002
        return DetectionEvalSet(source), 1

    def loss(self, model: nn.Module, batch: DetectionBatch) -> Tensor:
        set_size(self.network, self.config.data, training=True)
        losses = model(batch.images(), batch.targets())
        loss, count = torch.stack(list(losses.values())).sum(), len(batch.samples)
        self.sums.add(count, **{name: value.double() * count for name, value in {"loss": loss, **losses}.items()})
        return loss

    def start_test(self, network: nn.Module) -> None:
        super().start_test(network)
        self._image_ids: list[int] = []
        self._found: list[dict[str, Any]] = []

    def test_step(self, network: nn.Module, batch: DetectionBatch) -> None:
        set_size(network, self.config.data, training=False)
        for sample, found in zip(batch.samples.tolist(), network(batch.images()), strict=True):
            image_id = self.dataset.test[sample].id
            self._image_ids.append(image_id)
            self._found += coco_results(found, image_id, self.dataset.ids)

    def found_by_image(self) -> list[list[dict[str, Any]]]:
        """Of the last test, what was found in each image."""
        rows: dict[int, list[dict[str, Any]]] = {image_id: [] for image_id in self._image_ids}
        for row in self._found:
            rows[row["image_id"]].append(row)
        return list(rows.values())

    def compute(self) -> dict[str, float]:
        images, found = gather_results(self._image_ids, self._found)
        if not images:
            return {"count": 0}
        read = set(images)
        truth = ground_truth([scene for scene in self.dataset.test if scene.id in read], self.dataset.ids)
        return average_precision(truth, found) | {"count": len(images)}

    @classmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:  # noqa: ARG003
        images = counted(round(test["test_count"]), "image")
        lines = [f"test: average precision on {images} (IoU 0.50:0.95; at 0.50; at 0.75)"]
        for kind in ("box", "mask"):
            ap, ap50, ap75, *areas = (percent(test[f"test_{kind}_{n}"]) for n in ("ap", "ap50", "ap75", *AREAS))
            by_area = ", ".join(f"{name[3:]} {value}" for name, value in zip(AREAS, areas, strict=True))
            recall = percent(test[f"test_{kind}_ar_100"])
            lines.append(f"  {kind:5} AP {ap}, AP50 {ap50}, AP75 {ap75}; {by_area}; recall {recall}")
        return lines


def gather_results(images: list[int], found: list[dict[str, Any]]) -> tuple[list[int], list[dict[str, Any]]]:
    """Images and results of all ranks in one order, however many ranks there are."""
    parts = distributed.all_gather((images, found))
    everything = sorted((row for part in parts for row in part[1]), key=lambda row: row["image_id"])
    return sorted(image_id for part in parts for image_id in part[0]), everything


def average_precision(truth: dict[str, Any], results: Iterable[dict[str, Any]]) -> dict[str, float]:
    """COCO's twelve numbers for boxes and for masks, from 0 to 1; -1 where there is no object of that size.

    ``truth`` is the content of an annotation file, ``results`` are in COCO's result format.
    """
    api = need("faster_coco_eval", "detection")
    results, numbers = list(results), {}
    for name, kind in (("box", "bbox"), ("mask", "segm")):
        wanted = api.COCO(copy.deepcopy(truth))
        found = wanted.loadRes([{k: v for k, v in row.items() if k != OTHER_SHAPE[kind]} for row in results])
        evaluation = api.COCOeval_faster(wanted, found, iouType=kind, print_function=lambda *_: None)
        evaluation.run()
        numbers |= {f"{name}_{n}": float(v) for n, v in zip(COCO_NUMBERS, evaluation.stats, strict=False)}
    return numbers


def same_objects(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> bool:
    """Whether two results for an image have the same sure objects, by class and place."""
    mine, theirs = ([row for row in rows if row["score"] >= SURE] for rows in (one, other))
    classes = [[row["category_id"] for row in rows] for rows in (mine, theirs)]
    if not mine or Counter(classes[0]) != Counter(classes[1]):
        return Counter(classes[0]) == Counter(classes[1])
    ops = need("torchvision.ops", "detection")
    boxes = [ops.box_convert(torch.tensor([row["bbox"] for row in rows]), "xywh", "xyxy") for rows in (mine, theirs)]
    alike = (ops.box_iou(*boxes) >= MIN_IOU) & (torch.tensor(classes[0])[:, None] == torch.tensor(classes[1]))
    pairs = need("scipy.optimize", "train").linear_sum_assignment(alike.numpy(), maximize=True)
    return bool(alike[pairs].all())


def set_size(network: nn.Module, data: Data, training: bool) -> None:
    """Let a detector resize images as in training or in a test."""
    transform: Any = network.get_submodule("transform")
    transform.min_size = (get_size(data) if training else short_side_in_test(data),)
    transform.max_size = data.long_side


def coco_results(found: dict[str, Tensor], image_id: int, ids: tuple[int, ...]) -> list[dict[str, Any]]:
    """What a detector found in one image, in COCO's result format; ``ids`` are the categories of the classes."""
    boxes = found["boxes"].double().cpu()
    boxes[:, 2:] -= boxes[:, :2]  # left, top, width, height
    masks, labels, scores = encode(found["masks"][:, 0] > 0.5), found["labels"].tolist(), found["scores"].tolist()
    rows = zip(boxes.tolist(), labels, scores, masks, strict=True)
    return [
        {"image_id": image_id, "category_id": ids[label - 1], "bbox": box, "score": score, "segmentation": mask}
        for box, label, score, mask in rows
    ]
