"""Predictions for each test sample: ``predictions.csv`` in the folder of a run."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..atomic_io import write_csv

if TYPE_CHECKING:
    from torch import Tensor

    from .datasets import Dataset

FILE = "predictions.csv"


class Prediction(NamedTuple):
    """One test sample, with classes by number as a test has them, or by name as the file has them."""

    sample: int
    label: int | str
    predicted: int | str
    score: float
    """Probability of what was predicted."""
    name: str = ""

    @property
    def right(self) -> bool:
        return self.label == self.predicted


def ranked(scores: "Tensor", count: int) -> tuple["Tensor", "Tensor"]:
    """The highest of ``scores`` [.., K] in float32, and their classes, both [.., count]; fewer where K is smaller.

    The first class is the prediction. Of equal scores, which half precision makes common, the lower class is first;
    ``topk`` has no such rule.
    """
    values, classes = scores.float().sort(dim=-1, descending=True, stable=True)
    return values[..., :count], classes[..., :count]


def save_predictions(folder: Path, dataset: "Dataset", predictions: Sequence[Prediction]) -> None:
    """One line for each test sample of a dataset, with the names of sample and classes."""
    names = dataset.classes
    rows = (
        (p.sample, names[int(p.label)], names[int(p.predicted)], f"{p.score:.6f}", dataset.test.name(p.sample))
        for p in predictions
    )
    write_csv(folder / FILE, Prediction._fields, rows, errors="surrogateescape")


def read_predictions(folder: Path) -> tuple[Prediction, ...]:
    """What is written in the folder of a run; nothing where there is no file."""
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
            return tuple(
                Prediction(int(r["sample"]), r["label"], r["predicted"], float(r["score"]), r["name"]) for r in rows
            )
    except (csv.Error, KeyError, TypeError, ValueError):
        raise ValueError(f"{path} is damaged: without it, cgnl report tests the network again") from None
