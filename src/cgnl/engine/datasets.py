"""From settings to samples, and to views of them."""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..data.augment import Augmentation
from ..data.index import DatasetIndex, Kind, Scene, find_untrained, fingerprint, hold_out, limit_training
from ..data.loading import View
from ..data.readers import READERS
from ..data.sources import FileSource, SyntheticSource
from ..data.transforms import MEAN, STD, network_input
from ..models.backbones import find_input
from ..text import counted, nearest
from .settings import (
    DETECTION,
    HEAD_LR,
    HEAD_NEW_LAYERS,
    LONGEST_SIDE,
    SYNTHETIC,
    Config,
    Data,
    Optim,
    dataset_name,
    default_decay,
)

TOO_FEW = ": too few to keep some from the training; put folders train and test there, or say data.test_on=train"
SIZE = 224
"""Side of a training crop, for networks that do not say what they were made for."""
TRAIN_SEED, TEST_SEED, VALIDATION_SEED = 0, 1, 2
SEEDS = {"train": TRAIN_SEED, "test": TEST_SEED, "validation": VALIDATION_SEED}
"""Of the synthetic datasets, which are the same for every run."""


@dataclass(frozen=True)
class Dataset:
    """Samples to train and to test on."""

    name: str
    classes: tuple[str, ...]
    kind: Kind
    train: Any
    """A ``Source``, or a tuple of ``Scene``s where the kind is objects."""
    test: Any
    problems: tuple[str, ...] = ()
    """What is not as it should be, a sentence each."""
    ids: tuple[int, ...] = ()
    """COCO's numbers of the classes."""
    untrained: tuple[str, ...] = ()
    """Classes without a sample to train on, before any limit; a detector may have some."""
    tested: tuple[str, ...] = ()
    """What the tests are on where that is not the test split, in sentences that are also among the problems."""
    fingerprint: Mapping[str, int] = field(default_factory=dict)
    """Of all samples that are no test split, where some or all of these are tested."""


def open_dataset(data: Data, whole: bool = False) -> Dataset:
    """Find the samples; nothing is decoded. ``whole``: without a test split, all are tested."""
    name = dataset_name(data)
    if name in SYNTHETIC:
        train, seed = SyntheticSource(name, TRAIN_SEED, data.samples), SEEDS[data.test_on]
        test = train if data.test_on == "train" else SyntheticSource(name, seed, max(1, data.samples // 4))
        return Dataset(name, train.classes, train.kind, train, test)
    if name not in READERS:
        raise ValueError(f"there is no dataset {name!r}{nearest(name, [*SYNTHETIC, *READERS])}")
    if data.root is None and data.annotations is None:
        raise ValueError(f"data.root must say where {name} is")
    index = read_index(data)
    if data.test_on == "train":
        index = dataclasses.replace(index, splits=index.splits | {"test": index.splits["train"]})
    no_split = "test" not in index.splits
    marks = fingerprint(index.splits["train"]) if no_split or data.test_on != "test" else {}
    if whole and no_split:
        index = dataclasses.replace(index, splits=index.splits | {"test": index.splits["train"]})
    held_out = "test" not in index.splits
    for _ in range(held_out + (data.test_on == "validation")):
        index = hold_out(index, data.holdout)
    empty = find_untrained(index)
    if data.limit is not None:
        index = limit_training(index, data.limit)
    for split in ("train", "test"):
        if not index.splits[split]:
            few = TOO_FEW if held_out and data.holdout else ""
            raise ValueError(f"{data.root or data.annotations} has no samples to {split} on{few}")
    tested = _name_tested(data, index, held_out, whole and no_split)
    problems = [*index.problems, *tested, *_untaught(index)]
    if index.is_detection:
        dataset = _with_objects(name, index, problems)
    else:
        train, test = (FileSource(index.splits[split], index.kind) for split in ("train", "test"))
        dataset = Dataset(name, index.classes, index.kind, train, test, tuple(problems), untrained=empty)
    return dataclasses.replace(dataset, tested=tuple(tested), fingerprint=marks)


def _name_tested(data: Data, index: DatasetIndex, held_out: bool, whole: bool) -> list[str]:
    """What the tests are on where that is not the test split."""
    sentences, where = [], f"{data.root or data.annotations} has no test split"
    if held_out:
        share = f"{data.holdout:.0%} of {'the images' if index.is_detection else 'each class'}"
        sentences.append(f"{where}: {share} are kept for testing")
    if whole:
        sentences.append(f"{where}, and is not what was trained on: all of it is tested")
    if data.test_on != "test":
        share = f"{data.holdout:.0%} of " if data.test_on == "validation" else ""
        sentences.append(f"the tests are on {share}the training samples, as data.test_on says")
    return sentences


def _untaught(index: DatasetIndex) -> list[str]:
    """The classes without a training sample, in words."""
    taught = {label for sample in index.splits["train"] for label in sample.labels}
    if without := [c for label, c in enumerate(index.classes) if label not in taught]:
        names = ", ".join(without[:3]) + (" and others" if len(without) > 3 else "")
        return [f"{len(without):,} of {len(index.classes):,} classes have no training sample: {names}"]
    return []


def _with_objects(name: str, index: DatasetIndex, problems: list[str]) -> Dataset:
    """Images without an object are tested on but, as is usual, not trained on."""
    filled = {split: tuple(s for s in index.splits[split] if has_objects(s)) for split in ("train", "test")}
    for split, scenes in filled.items():
        if not scenes:
            raise ValueError(f"no image of {name} has an object to {split} on")
    if empty := len(index.splits["train"]) - len(filled["train"]):
        problems.append(f"{counted(empty, 'training image')} without objects: left out of the training")
    return Dataset(name, index.classes, index.kind, filled["train"], index.splits["test"], tuple(problems), index.ids)


def has_objects(scene: Scene) -> bool:
    """Whether there is anything but crowds in it."""
    return not all(thing.crowd for thing in scene.objects)


def read_index(data: Data) -> DatasetIndex:
    """The files of a dataset, by the reader of its layout."""
    reader = READERS[dataset_name(data)]
    takes = [name for name in inspect.signature(reader).parameters if name != "root"]
    return reader(data.root or ".", **{name: getattr(data, name) for name in takes})


def view_in_training(data: Data) -> View:
    """How the network sees training samples."""
    if dataset_name(data) in SYNTHETIC:
        return _whole_view(dataset_name(data))
    return View(get_size(data), data.area, data.flip, frames=data.frames, stride=data.stride)


def get_size(data: Data) -> int:
    """The side of a training crop."""
    return data.size or SIZE


def to_input(data: Data, pixels: Tensor, channels_last: bool = False) -> Tensor:
    """Normalize uint8 [B, 3, H, W], or [B, T, 3, H, W] -> [B, 3, T, H, W], as the settings say."""
    return network_input(pixels, channels_last, data.mean or MEAN, data.std or STD)


def augmentation_in_training(data: Data, classes: int) -> Augmentation:
    """How training samples are augmented."""
    return Augmentation(data.augment, data.jitter, data.erase, data.mixup, data.cutmix, classes)


def short_side_in_test(data: Data) -> int:
    """The shorter side in a test: as given, or in proportion to the size, as 256 to 224. Objects have no crop."""
    if data.test_short_side is not None:
        return data.test_short_side
    return get_size(data) if dataset_name(data) in DETECTION else min(round(get_size(data) * 8 / 7), LONGEST_SIDE)


def with_defaults(config: Config) -> Config:
    """The settings with what depends on the network and the optimizer filled in."""
    data, own = config.data, find_input(config.model.name) if config.model.name else None
    usual = {"size": own.size, "mean": own.mean, "std": own.std} if own else {"size": SIZE, "mean": MEAN, "std": STD}
    data = dataclasses.replace(data, **{n: value for n, value in usual.items() if getattr(data, n) is None})
    data = dataclasses.replace(data, test_short_side=short_side_in_test(data))
    return dataclasses.replace(config, data=data, optim=_with_rates(config))


def _with_rates(config: Config) -> Optim:
    """A covariance head on pretrained weights learns at the rates at which it was measured."""
    optim, rates = config.optim, {"weight_decay": default_decay(config.optim)}
    measured = config.model.head == "covariance" and config.model.weights is not None
    if optim.new_layers is None:
        rates["new_layers"] = HEAD_NEW_LAYERS if measured else 1.0
    if optim.lr is None and optim.optimizer == "sgd" and measured:
        rates["lr"] = HEAD_LR
    return dataclasses.replace(optim, **rates)


def central_view(data: Data, size: int) -> View:
    """The middle of each test sample: a crop of ``data.test_size`` or, if that is not given, of this size."""
    if dataset_name(data) in SYNTHETIC:
        return _whole_view(dataset_name(data))
    size, short_side = data.test_size or size, short_side_in_test(data)
    if size > short_side:
        raise ValueError(f"a test crop of {size} does not fit into data.test_short_side = {short_side}")
    return View(size, short_side=short_side, frames=data.frames, stride=data.stride)


def _whole_view(name: str) -> View:
    """Synthetic samples are seen whole: a crop could cut off what their class depends on."""
    pixels = SyntheticSource(name, TRAIN_SEED, 1).read(0, range)
    return View(None, frames=len(pixels), stride=1)
