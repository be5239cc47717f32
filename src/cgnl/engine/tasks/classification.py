"""Naming images or videos by their class."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from ...data.index import is_image_file, is_video_file
from ...data.loading import Batch, EvalSet, TrainSet
from ...data.sources import Source
from ...data.transforms import network_input
from ...models import is_detector, is_video
from ...spelling import counted
from .. import distributed
from ..datasets import view_in_test, view_in_training
from ..predictions import Prediction, ranked
from .base import Sums, Task

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

    def train_set(self, source: Source) -> tuple[TorchDataset, None]:
        data = self.config.data
        later = self.device.type == "cuda" and data.cache == "none"  # resized by the device
        return TrainSet(source, view_in_training(data), self.config.seed, data.bad_limit, later), None

    def test_set(self, source: Source, full: bool) -> tuple[TorchDataset, int]:
        view = view_in_test(self.config.data, self.kind, full)
        return EvalSet(source, view), view.clips * view.crops

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = self.logits(model, batch.pixels)
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=self.config.optim.label_smoothing)
        count_classes(self.sums, loss, ranked(logits.detach(), TOP)[1], batch.labels)
        return loss

    def logits(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] or [B, T, 3, H, W] -> [B, K]."""
        # Tests do not run the compiled network: their last batch has a size of its own, and compiling takes longer.
        call = model if model.training else model.forward
        return call(network_input(pixels, self.config.channels_last)).float()

    def start_test(self, network: nn.Module) -> None:
        super().start_test(network)
        self.test_sums, self.view_sums = (Sums(*self.train_sums, device=self.device) for _ in range(2))
        self._said: list[tuple[Tensor, Tensor]] = []

    def test_step(self, network: nn.Module, batch: Batch) -> None:
        views = batch.pixels.shape[1]
        parts = batch.pixels.flatten(0, 1).split(self.at_once)
        logits = torch.cat([self.logits(network, part) for part in parts])  # [B * V, K]
        labels, of_views = batch.labels.repeat_interleave(views), logits.softmax(1)
        count_classes(self.view_sums, F.cross_entropy(logits, labels), ranked(of_views, TOP)[1], labels)
        scores = of_views.unflatten(0, (-1, views)).mean(1)  # [B, K]
        best, classes = ranked(scores, TOP)  # once, so that results and predictions are of one ranking
        count_classes(self.test_sums, F.nll_loss(scores.clamp_min(1e-30).log(), batch.labels), classes, batch.labels)
        said = torch.stack((batch.labels.double(), classes[:, 0].double(), best[:, 0].double()), 1)  # [B, 3]
        self._said.append((batch.samples, said))  # it stays on the device until the end, so that nothing waits

    def compute(self) -> dict[str, float]:
        mine = [
            Prediction(sample, int(label), int(predicted), score)
            for samples, said in self._said
            for sample, (label, predicted, score) in zip(samples.tolist(), said.tolist(), strict=True)
        ]
        self.predictions = sorted(prediction for rank in distributed.all_gather(mine) for prediction in rank)
        return self.test_sums.means()

    @classmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:
        pictures = counted(round(test["test_count"]), "picture")
        return [f"test: {accuracy(test, classes)} of {pictures} (chance {1 / classes:.2%})"]


class Videos(Images):
    """Videos by their class: the mean over the views of a video."""

    kind = "videos"
    sample = "clip"
    file = "video"
    default_network = "c2d_resnet18"
    memory_format = torch.channels_last_3d

    @classmethod
    def fits(cls, name: str) -> bool:
        return not is_detector(name) and not name.startswith("resnet")

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
        ]

    @classmethod
    def find_files(cls, folder: Path) -> list[Path]:
        folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_video_file(path)]
        return files + [frames for frames in folders if any(map(is_image_file, frames.iterdir()))]


def accuracy(test: dict[str, float], classes: int) -> str:
    """Top-1 in words, and top-5 where it says anything."""
    top5 = f", top-5 {test['test_top5']:.2%}" if classes > TOP else ""
    return f"top-1 {test['test_top1']:.2%}{top5}"


def count_classes(sums: Sums, losses: Tensor, classes: Tensor, labels: Tensor) -> None:
    """Add ``losses`` [B] or their mean, and the likeliest ``classes`` [B, 5] or fewer by rank, for ``labels`` [B]."""
    right, count = classes == labels[:, None], len(labels)  # [B, 5]
    sums.add(count, loss=losses.double().mean() * count, top1=right[:, 0].sum(), top5=right.sum())
