"""The contract of a task: its samples, metric, defaults and wording. What it learns is in its Lightning module."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import Dataset as TorchDataset

from ..data.detection import DetectionEvalSet, DetectionTrainSet, aspect_groups
from ..data.images import is_image_file
from ..data.index import Kind, Scene
from ..data.loading import EvalSet, TrainSet
from ..data.sources import Source
from ..data.video import is_video_file
from ..models import is_detector, is_video
from ..spelling import counted
from .config import Config
from .datasets import view_in_test, view_in_training

AREAS = ("ap_small", "ap_medium", "ap_large")


class Task(ABC):
    """What there is to learn."""

    kind: ClassVar[Kind]
    sample: ClassVar = "picture"
    """What a training sample is called."""
    file: ClassVar = "picture"
    """What a file is called."""
    metric: ClassVar = "top1"
    """The result by which tests are compared."""
    default_network: ClassVar[str]
    default_lr: ClassVar[float | None] = None
    """If not given, it depends on the weights to start from."""
    fixed_size: ClassVar = True
    """Whether all inputs of a run have one size, so that it can be compiled and its samples cached."""
    classifies: ClassVar = True
    """Whether there is one prediction for each sample."""
    memory_format: ClassVar = torch.channels_last

    @classmethod
    def fits(cls, name: str) -> bool:
        """Whether a network is for this task."""
        return is_detector(name) != cls.classifies

    @classmethod
    def find_files(cls, folder: Path) -> list[Path]:
        """The files in a folder that a network of this task takes."""
        return [path for path in sorted(folder.rglob("*")) if path.is_file() and is_image_file(path)]

    @classmethod
    @abstractmethod
    def train_set(cls, source: Any, config: Config, resize_later: bool) -> tuple[TorchDataset, Sequence[int] | None]:
        """The samples to learn from, and a group for each where batches are of one group."""

    @classmethod
    @abstractmethod
    def test_set(cls, source: Any, config: Config, full: bool) -> tuple[TorchDataset, int]:
        """The samples to test on, and how many views each has."""

    @classmethod
    @abstractmethod
    def make_module(cls, *arguments: Any, **options: Any) -> Any:
        """The Lightning module: loss, test and optimizer."""

    @classmethod
    @abstractmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:
        """The results of a test in words."""


class Images(Task):
    """Images by their class."""

    kind = "images"
    default_network = "resnet18"

    @classmethod
    def fits(cls, name: str) -> bool:
        return super().fits(name) and not is_video(name)

    @classmethod
    def train_set(cls, source: Source, config: Config, resize_later: bool) -> tuple[TorchDataset, None]:
        data = config.data
        return TrainSet(source, view_in_training(data), config.seed, data.bad_limit, resize_later), None

    @classmethod
    def test_set(cls, source: Source, config: Config, full: bool) -> tuple[TorchDataset, int]:
        view = view_in_test(config.data, cls.kind, full)
        return EvalSet(source, view), view.clips * view.crops

    @classmethod
    def make_module(cls, *arguments: Any, **options: Any) -> Any:
        from .task import Classification

        return Classification(*arguments, **options)

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

    @classmethod
    def find_files(cls, folder: Path) -> list[Path]:
        folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_video_file(path)]
        return files + [frames for frames in folders if any(map(is_image_file, frames.iterdir()))]

    @classmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:
        count, views = round(test["test_count"]), round(test["test_views"])
        averaged = f"softmax averaged over {views} views" if views > 1 else "one view"
        of, each = f"{counted(count, 'video')} (chance {1 / classes:.2%})", counted(count * views, "view")
        return [
            f"test: video accuracy ({averaged}): {accuracy(test, classes)} of {of}",
            f"      clip accuracy (each view by itself): top-1 {test['test_clip_top1']:.2%} of {each}",
        ]


class Objects(Task):
    """Objects in pictures: boxes, masks and classes."""

    kind = "objects"
    metric = "box_ap"
    default_network = "maskrcnn_resnet50_fpn"
    default_lr = 0.32
    fixed_size = False
    classifies = False

    @classmethod
    def train_set(cls, source: Sequence[Scene], config: Config, resize_later: bool) -> tuple[TorchDataset, list[int]]:  # noqa: ARG003
        data = config.data
        return DetectionTrainSet(source, config.seed, data.flip, data.bad_limit), aspect_groups(source)

    @classmethod
    def test_set(cls, source: Sequence[Scene], config: Config, full: bool) -> tuple[TorchDataset, int]:  # noqa: ARG003
        return DetectionEvalSet(source), 1

    @classmethod
    def make_module(cls, *arguments: Any, **options: Any) -> Any:
        from .detection import Detection

        return Detection(*arguments, **options)

    @classmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:  # noqa: ARG003
        pictures = counted(round(test["test_count"]), "picture")
        lines = [f"test: average precision on {pictures} (IoU 0.50:0.95; at 0.50; at 0.75)"]
        for kind in ("box", "mask"):
            ap, ap50, ap75, *areas = (percent(test[f"test_{kind}_{n}"]) for n in ("ap", "ap50", "ap75", *AREAS))
            by_area = ", ".join(f"{name[3:]} {value}" for name, value in zip(AREAS, areas, strict=True))
            recall = percent(test[f"test_{kind}_ar_100"])
            lines.append(f"  {kind:5} AP {ap}, AP50 {ap50}, AP75 {ap75}; {by_area}; recall {recall}")
        return lines


def accuracy(test: dict[str, float], classes: int) -> str:
    """Top-1 in words, and top-5 where it says anything."""
    top5 = f", top-5 {test['test_top5']:.2%}" if classes > 5 else ""
    return f"top-1 {test['test_top1']:.2%}{top5}"


def percent(value: float) -> str:
    """A precision in per cent, or a line where there is nothing to find."""
    return "-" if value < 0 else f"{100 * value:.2f}"


TASKS: dict[Kind, type[Task]] = {task.kind: task for task in (Images, Videos, Objects)}
