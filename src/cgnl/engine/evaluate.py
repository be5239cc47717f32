"""``cgnl eval``: test checkpoints by the full protocol."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..data.index import fits_fingerprint
from ..data.shards import is_there
from ..data.sources import CachedSource
from ..text import counted
from .checkpoint import Trained, open_trained
from .config import build, check_test, merge, nest, to_dict
from .datasets import Dataset, dataset_name, open_dataset, read_index
from .distributed import connect, is_rank_zero
from .loop import set_backends, validate
from .progress import Bar, Lines
from .settings import SYNTHETIC, Config, Data
from .tasks import Task


@dataclass
class Test:
    """A trained network and the samples it is tested on."""

    trained: Trained
    config: Config
    dataset: Dataset
    task: Task
    batches: Any

    def run(self) -> dict[str, float]:
        """The results of a test, in numbers; how far it has come goes to the standard error."""
        console, unit = Console(stderr=True, highlight=False), f"{self.task.sample}s"
        bar = Bar(console, 0, 0, unit) if console.is_terminal else Lines(0, 0, unit, console.print)
        return validate(self.task, self.trained.network, self.batches, bar if is_rank_zero() else None)


def prepare(
    checkpoint: str | Path, settings: dict[str, Any] | None = None, cache: dict[str, CachedSource] | None = None
) -> Test:
    """Everything that a test needs; ``cache`` holds decoded samples by split."""
    overrides = nest(settings or {})
    check_test(overrides)
    trained = open_trained(checkpoint)
    if (name := dataset_name(trained.config.data)) in SYNTHETIC and "root" in overrides.get("data", {}):
        raise ValueError(f"{checkpoint} was trained on {name}, which is synthetic and has no folder")
    machine = {"devices": None, "nodes": 1, "accelerator": "auto", "data": {"workers": None, "cache": "none"}}
    config = build(merge(merge(to_dict(trained.config), machine), overrides))
    root = config.data.root if name not in SYNTHETIC else None
    if root and not is_there(root) and "root" not in overrides.get("data", {}):
        raise ValueError(f"{checkpoint} was trained on {root}, which is not here: data.root=FOLDER says where it is")
    dataset = _open_test(trained, config.data, overrides.get("data", {}))
    if (dataset.classes, dataset.kind, dataset.ids) != (trained.classes, trained.kind, trained.ids):
        ours, theirs = (f"{counted(len(of.classes), 'class')} of {of.kind}" for of in (trained, dataset))
        difference = _name_difference(trained.classes, dataset.classes)
        raise ValueError(f"{checkpoint} knows {ours}, and not the {theirs} of {dataset.name}{difference}")
    task = trained.task(trained.network, config, dataset, connect(config), config.optim.batch_size, cache)
    set_backends(task)
    return Test(trained, config, dataset, task, task.test_batches(full=True))


def _open_test(trained: Trained, data: Data, typed: Mapping[str, Any]) -> Dataset:
    """The dataset of the training, with the same samples held out, or another: its test split, or else all of it."""
    if dataset_name(data) in SYNTHETIC or not {"root", "labels", "annotations"} & typed.keys():
        return open_dataset(data)
    samples = read_index(data).splits["train"]
    if trained.fingerprint is None:  # an older checkpoint
        here, there = (Path(root or ".").absolute() for root in (data.root, trained.config.data.root))
        is_other = there.exists() and here.resolve() != there.resolve()
    else:
        is_other = not fits_fingerprint(samples, trained.fingerprint)
    if is_other and "test_on" not in typed:
        data = dataclasses.replace(data, test_on="test")
    return open_dataset(data, whole=is_other)


def _name_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """A class that only the network or only the dataset has, in words."""
    if missing := set(ours) - set(theirs):
        return f", where {min(missing)!r} is missing"
    if unknown := set(theirs) - set(ours):
        return f", one of which is {min(unknown)!r}"
    return "" if tuple(ours) == tuple(theirs) else ", which are the same in another order"


def evaluate(checkpoint: str | Path, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The results of a test, in numbers and words."""
    test = prepare(checkpoint, settings)
    results, dataset, problems = test.run(), test.dataset, test.task.problems
    of = f", split {test.config.data.split} of UCF101" if dataset.name == "ucf101" else ""
    words = test.task.describe(results, len(dataset.classes))
    if test.trained.chosen and test.config.data.test_on == test.trained.config.data.test_on:
        words.append("this epoch was chosen by its result on these very samples; last.ckpt was not")
    words += dataset.tested
    if problems:
        words.append(f"{counted(len(problems), 'sample')} could not be read: {sorted(problems)[0]}")
    return {"test": results, "words": words, "of": of, "metric": test.task.metric}
