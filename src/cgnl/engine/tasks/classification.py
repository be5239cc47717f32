"""Naming images or videos by their class."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from ...data.index import CANNOT, VIDEO_SUFFIXES, is_image_file, name_some
from ...data.loading import Batch, EvalSet, TrainSet, View
from ...data.sources import Source
from ...models import is_backbone, is_detector, is_video
from ...text import counted, printable
from .. import distributed
from ..classes import summarize
from ..datasets import augmentation_in_training, central_view, get_size, short_side_in_test, to_input, view_in_training
from ..predictions import Prediction, ranked
from ..settings import Data
from .base import Sums, Task, list_labels

log = logging.getLogger("cgnl")

TOP = 5
"""Ranks that are counted."""


class Images(Task):
    """Images by their class."""

    kind = "images"
    default_network = "resnet18"
    train_sums: ClassVar[Sequence[str]] = ("loss", "top1", "top5")
    train_columns: ClassVar[Sequence[str]] = ("loss", "top1")

    @classmethod
    def fits(cls, name: str) -> bool:
        return super().fits(name) and not is_video(name)

    @classmethod
    def view_in_test(cls, data: Data, full: bool = True) -> View:  # noqa: ARG003
        return central_view(data, get_size(data))

    @cached_property
    def class_weights(self) -> Tensor | None:
        """By ``data.balance=weights``, [K]."""
        if self.config.data.balance != "weights":
            return None
        return inverse_frequencies(list_labels(self.dataset.train), len(self.dataset.classes)).to(self.device)

    def train_set(self, source: Source) -> tuple[TorchDataset, None]:
        data = self.config.data
        later = self.device.type == "cuda" and data.cache == "none"  # resized by the device
        how = augmentation_in_training(data, len(self.dataset.classes))
        return TrainSet(source, view_in_training(data), self.config.seed, data.bad_limit, later, how), None

    def test_set(self, source: Source, full: bool) -> tuple[TorchDataset, int]:
        view = self.view_in_test(self.config.data, full)
        return EvalSet(source, view), view.clips * view.crops

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits, labels = self.logits(model, batch.pixels), batch.labels
        weight, smoothing = self.class_weights, self.config.optim.label_smoothing
        reduction = "mean" if weight is None else "sum"  # a mean would divide by the weights of this part of the step
        loss = F.cross_entropy(logits, labels, weight=weight, label_smoothing=smoothing, reduction=reduction)
        loss = loss if weight is None else loss / len(logits)
        largest = labels.argmax(1) if labels.ndim == 2 else labels  # samples may be mixed
        count_classes(self.sums, loss, ranked(logits.detach(), TOP)[1], largest)
        return loss

    def gather_problems(self) -> None:
        """Also stop if nothing of a class can be read, which no test would show."""
        super().gather_problems()
        train, unreadable = self.dataset.train, {problem.partition(CANNOT)[0] for problem in self.problems}
        if not unreadable:
            return
        samples = [(train.label(i), printable(train.name(i)) not in unreadable) for i in range(len(train))]
        missing = {label for label, _ in samples} - {label for label, readable in samples if readable}
        if missing:
            names = name_some([self.dataset.classes[label] for label in sorted(missing)])
            raise ValueError(f"no training sample of class {names} can be read")

    def logits(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] or [B, T, 3, H, W], from 0 to 255 -> [B, K]."""
        # Tests do not run the compiled network: their last batch has a size of its own, and compiling takes longer.
        call = model if model.training else model.forward
        return call(to_input(self.config.data, pixels, self.config.channels_last)).float()

    def start_test(self, network: nn.Module) -> None:
        super().start_test(network)
        self.test_sums, self.view_sums = (Sums(*self.train_sums, device=self.device) for _ in range(2))
        self._predicted: list[tuple[Tensor, Tensor]] = []

    def test_step(self, network: nn.Module, batch: Batch) -> None:
        views = batch.pixels.shape[1]
        parts = batch.pixels.flatten(0, 1).split(self.micro_batch)
        logits = torch.cat([self.logits(network, part) for part in parts])  # [B * V, K]
        labels, of_views = batch.labels.repeat_interleave(views), logits.softmax(1)
        count_classes(self.view_sums, F.cross_entropy(logits, labels), ranked(of_views, TOP)[1], labels)
        scores = of_views.unflatten(0, (-1, views)).mean(1)  # [B, K]
        best, classes = ranked(scores, TOP)  # once, so that results and predictions are of one ranking
        count_classes(self.test_sums, F.nll_loss(scores.clamp_min(1e-30).log(), batch.labels), classes, batch.labels)
        said = torch.stack((batch.labels.double(), classes[:, 0].double(), best[:, 0].double()), 1)  # [B, 3]
        self._predicted.append((batch.samples, said))  # it stays on the device until the end, so that nothing waits

    def compute(self) -> dict[str, float]:
        mine = [
            Prediction(sample, int(label), int(predicted), score)
            for samples, said in self._predicted
            for sample, (label, predicted, score) in zip(samples.tolist(), said.tolist(), strict=True)
        ]
        self.predictions = sorted(prediction for rank in distributed.all_gather(mine) for prediction in rank)
        check_finite([prediction.score for prediction in self.predictions])
        return self.test_sums.means() | (summarize(self.predictions) if self.predictions else {})

    @classmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:
        images = counted(round(test["test_count"]), "image")
        return [f"test: {accuracy(test, classes)} of {images} (chance {1 / classes:.2%})", *balance(test)]


def check_finite(scores: Sequence[float]) -> None:
    """Refuse a test in which no output of the network is finite; where some are not, say how many."""
    count = sum(not math.isfinite(score) for score in scores)
    if count and count == len(scores):
        raise ValueError(f"the outputs for all {counted(count, 'test sample')} are not finite: try a lower optim.lr")
    if count:
        log.warning("%d of %d outputs are not finite: these samples count as the first class", count, len(scores))


def inverse_frequencies(labels: Sequence[int], classes: int) -> Tensor:
    """A weight for each class, [K], in inverse proportion to its samples; the mean over all samples is 1."""
    counts = torch.bincount(torch.tensor(labels), minlength=classes).double()
    return (len(labels) / (counts.clamp_min(1) * counts.count_nonzero())).float()


class Videos(Images):
    """Videos by their class: the mean over the views of a video."""

    kind = "videos"
    sample = "clip"
    file = "video"
    suffixes = VIDEO_SUFFIXES
    has_frames = True
    default_network = "c2d_resnet18"
    memory_format = torch.channels_last_3d

    @classmethod
    def fits(cls, name: str) -> bool:
        return not is_detector(name) and not is_backbone(name) and not name.startswith("resnet")

    @classmethod
    def view_in_test(cls, data: Data, full: bool = True) -> View:
        view = central_view(data, short_side_in_test(data))
        if view.size is None or not full:
            return view
        return dataclasses.replace(view, clips=data.test_clips, crops=data.test_crops)

    def compute(self) -> dict[str, float]:
        results, views = super().compute(), self.view_sums.means()
        if not results["count"]:
            return results
        return {**results, "clip_top1": views["top1"], "views": views["count"] // results["count"]}

    @classmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:
        count, views = round(test["test_count"]), round(test["test_views"])
        averaged = f"softmax averaged over {views} views" if views > 1 else "one view"
        of = f"{counted(count, 'video')} (chance {1 / classes:.2%})"
        return [
            f"test: video accuracy ({averaged}): {accuracy(test, classes)} of {of}",
            f"      clip accuracy (each view by itself): top-1 {test['test_clip_top1']:.2%} of "
            f"{counted(count * views, 'view')}",
            *balance(test),
        ]

    @classmethod
    def find_files(cls, folder: Path) -> list[Path]:
        folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
        return super().find_files(folder) + [frames for frames in folders if any(map(is_image_file, frames.iterdir()))]


def accuracy(test: dict[str, float], classes: int) -> str:
    """Top-1 in words, and top-5 where it says anything."""
    top5 = f", top-5 {test['test_top5']:.2%}" if classes > TOP else ""
    return f"top-1 {test['test_top1']:.2%}{top5}"


def balance(test: dict[str, float]) -> list[str]:
    """Macro F1 and calibration in words; older results have none."""
    if "test_macro_f1" not in test:
        return []
    return [f"      macro F1 {test['test_macro_f1']:.2%}, expected calibration error {test['test_ece']:.2%}"]


def count_classes(sums: Sums, losses: Tensor, classes: Tensor, labels: Tensor) -> None:
    """Add ``losses`` [B] or their mean, and the likeliest ``classes`` [B, 5] or fewer by rank, for ``labels`` [B]."""
    right, count = classes == labels[:, None], len(labels)  # [B, 5]
    sums.add(count, loss=losses.double().mean() * count, top1=right[:, 0].sum(), top5=right.sum())
