"""Training and testing of networks that find objects."""

from typing import Any

import torch
from torch import Tensor, nn

from ..data.coco import ground_truth
from ..data.detection import DetectionBatch, encode
from ..data.index import Scene
from .config import Data
from .datasets import short_side_in_test
from .precision import Collected, average_precision
from .task import Sums, TaskModule

LOSSES = ("loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg")
"""torchvision's; their sum is the loss."""


class Losses(Sums):
    """The loss and its parts."""

    SUMS = ("loss", *LOSSES, "count")

    def update(self, losses: dict[str, Tensor], count: int) -> None:
        """Means over ``count`` pictures."""
        for name, value in {"loss": torch.stack(list(losses.values())).sum(), **losses}.items():
            getattr(self, name).add_(value.detach().double() * count)
        self.count += count


class Detection(TaskModule):
    """A network that learns to find objects."""

    TRAIN_COLUMNS = ("loss", *LOSSES)

    train_tally: Losses

    def __init__(self, *rest: Any, ids: tuple[int, ...], scenes: tuple[Scene, ...] = (), **options: Any):
        super().__init__(*rest, **options)
        self.ids, self.scenes, self.collected = ids, scenes, Collected()

    def make_tally(self) -> Losses:
        return Losses()

    def about(self) -> dict[str, Any]:
        return {"ids": list(self.ids)}

    def learn(self, batch: DetectionBatch) -> Tensor:
        set_size(self.network, self.config.data, training=True)
        losses = self.network(batch.pictures(), batch.targets())
        self.train_tally.update(losses, len(batch.samples))
        return torch.stack(list(losses.values())).sum()

    def validation_step(self, batch: DetectionBatch, batch_idx: int) -> None:  # noqa: ARG002
        self.note(batch)
        if not len(batch.samples):
            return
        set_size(self.network, self.config.data, training=False)
        found = self.network(batch.pictures())
        for sample, one in zip(batch.samples.tolist(), found, strict=True):
            picture = self.scenes[sample].id
            self.collected.add(picture, coco_results(one, picture, self.ids))

    def on_validation_epoch_end(self) -> None:
        self.gather_problems()
        pictures, results = self.collected.gather()
        self.collected, read = Collected(), set(pictures)
        truth = ground_truth([scene for scene in self.scenes if scene.id in read], self.ids)
        self.conclude_test(average_precision(truth, results) | {"count": len(pictures)} if read else {"count": 0})


def set_size(network: nn.Module, data: Data, training: bool) -> None:
    """Let a detector bring pictures to the size of the training or of the test."""
    transform: Any = network.get_submodule("transform")
    transform.min_size = (data.size if training else short_side_in_test(data),)
    transform.max_size = data.long_side


def coco_results(found: dict[str, Tensor], picture: int, ids: tuple[int, ...]) -> list[dict[str, Any]]:
    """What a detector found in one picture, in COCO's result format; ``ids`` are the categories of the classes."""
    boxes = found["boxes"].double().cpu()
    boxes[:, 2:] -= boxes[:, :2]  # left, top, width, height
    rows = zip(
        boxes.tolist(),
        found["labels"].tolist(),
        found["scores"].tolist(),
        encode(found["masks"][:, 0] > 0.5),
        strict=True,
    )
    return [
        {"image_id": picture, "category_id": ids[label - 1], "bbox": box, "score": score, "segmentation": mask}
        for box, label, score, mask in rows
    ]
