"""From settings to samples and the views of them."""

import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path

from ..data.index import Index
from ..data.loading import View
from ..data.readers import READERS
from ..data.sources import Drawn, Files, Kind, Source, hold_out
from ..spelling import nearest
from .config import EMBEDDED, Data

TRAIN_SEED, TEST_SEED = 0, 1
"""Of the embedded datasets, which are the same for every run."""


@dataclass(frozen=True)
class Dataset:
    """Samples to train and to test on."""

    name: str
    classes: tuple[str, ...]
    kind: Kind
    train: Source
    test: Source
    problems: tuple[str, ...] = ()
    """What is not as it should be, a sentence each."""


def dataset_name(data: Data) -> str:
    """The dataset that is meant."""
    if data.dataset is not None:
        return data.dataset
    return "parts" if data.root is None else "folder"


def open_dataset(data: Data) -> Dataset:
    """Find the samples; nothing is decoded."""
    name = dataset_name(data)
    if name in EMBEDDED:
        train, test = Drawn(name, TRAIN_SEED, data.samples), Drawn(name, TEST_SEED, max(1, data.samples // 4))
        return Dataset(name, train.classes, train.kind, train, test)
    if name not in READERS:
        raise ValueError(f"there is no dataset {name!r}{nearest(name, [*EMBEDDED, *READERS])}")
    if data.root is None:
        raise ValueError(f"data.root must say where {name} is")
    index = read_index(data)
    held_out = "test" not in index.splits
    if held_out:
        index = hold_out(index, data.holdout)
    for split in ("train", "test"):
        if not index.splits[split]:
            raise ValueError(f"{data.root} has no samples to {split} on")
    taught = {sample.label for sample in index.splits["train"]}
    problems = list(index.problems)
    if held_out:
        problems.append(f"{data.root} has no test split: {data.holdout:.0%} of each class are kept for testing")
    if without := [c for label, c in enumerate(index.classes) if label not in taught]:
        names = ", ".join(without[:3]) + (" and others" if len(without) > 3 else "")
        problems.append(f"{len(without):,} of {len(index.classes):,} classes have no training sample: {names}")
    train, test = (Files(index.splits[split], index.kind) for split in ("train", "test"))
    return Dataset(name, index.classes, index.kind, train, test, tuple(problems))


def read_index(data: Data) -> Index:
    """The files of a dataset, by the reader of its layout."""
    reader = READERS[dataset_name(data)]
    options = {"split": data.split, "lists": data.lists}
    takes = inspect.signature(reader).parameters
    return reader(Path(data.root or "."), **{name: value for name, value in options.items() if name in takes})


def view_in_training(data: Data) -> View:
    """How the network sees training samples."""
    if dataset_name(data) in EMBEDDED:
        return _as_drawn(dataset_name(data))
    return View(data.size, data.area, data.flip, frames=data.frames, stride=data.stride)


def view_in_test(data: Data, kind: Kind, full: bool = True) -> View:
    """How the network sees test samples: in full, or one view of each."""
    if dataset_name(data) in EMBEDDED:
        return _as_drawn(dataset_name(data))
    size = data.test_size or (data.size if kind == "images" else data.test_short_side)
    if size > data.test_short_side:
        raise ValueError(f"a test crop of {size} does not fit into data.test_short_side = {data.test_short_side}")
    view = View(size, short_side=data.test_short_side, frames=data.frames, stride=data.stride)
    if kind == "images" or not full:
        return view
    return dataclasses.replace(view, clips=data.test_clips, crops=data.test_crops)


def _as_drawn(name: str) -> View:
    """Embedded samples are seen whole: a crop could cut off what their class depends on."""
    pixels = Drawn(name, TRAIN_SEED, 1).read(0, range)
    return View(None, frames=len(pixels), stride=1)
