"""Precision, recall and F1 of each class, confusions and calibration, from the predictions of a test."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ..atomic_io import write_csv
from .predictions import Prediction

CLASSES, CONFUSION = "classes.csv", "confusion.csv"
BINS = 15
"""Of the scores from 0 to 1, to compare the mean score in each with the share that is right."""


class Scores(NamedTuple):
    """How well one class is told from the others; 0 where there is nothing to divide by."""

    precision: float
    """Share of its predictions that are right."""
    recall: float
    """Share of its samples that are found."""
    f1: float
    """Their harmonic mean."""
    support: int
    """Its samples."""
    predicted: int
    """Its predictions."""


class Bin(NamedTuple):
    """Predictions of about one score."""

    samples: int
    score: float
    """Mean score; NaN where there is none."""
    right: float
    """Share that is right; NaN where there is none."""


def score_classes(predictions: Iterable[Prediction]) -> dict[int | str, Scores]:
    """The scores of each class that has a sample or a prediction."""
    counts = count_confusions(predictions)
    support, predicted = Counter[int | str](), Counter[int | str]()
    for (label, said), count in counts.items():
        support[label] += count
        predicted[said] += count
    scores: dict[int | str, Scores] = {}
    for name in support | predicted:
        right = counts[name, name]
        precision, recall = right / max(predicted[name], 1), right / max(support[name], 1)
        f1 = 2 * right / (support[name] + predicted[name])
        scores[name] = Scores(precision, recall, f1, support[name], predicted[name])
    return scores


def count_confusions(predictions: Iterable[Prediction]) -> Counter[tuple[int | str, int | str]]:
    """Samples by (label, predicted)."""
    return Counter((p.label, p.predicted) for p in predictions)


def calibrate(predictions: Iterable[Prediction]) -> list[Bin]:
    """Predictions in bins of equal width by their score."""
    parts: list[list[Prediction]] = [[] for _ in range(BINS)]
    for p in predictions:
        parts[min(int(p.score * BINS), BINS - 1) if p.score >= 0 else 0].append(p)  # NaN spoils a bin, as it should
    nothing = Bin(0, math.nan, math.nan)
    return [Bin(len(b), fmean(p.score for p in b), fmean(p.right for p in b)) if b else nothing for b in parts]


def calibration_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error: the mean distance of score and accuracy over the samples."""
    total = sum(b.samples for b in bins)
    return math.fsum(b.samples * abs(b.right - b.score) for b in bins if b.samples) / total


def summarize(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Macro F1 and expected calibration error."""
    macro_f1 = fmean(scores.f1 for scores in score_classes(predictions).values())
    return {"macro_f1": macro_f1, "ece": calibration_error(calibrate(predictions))}


def save_classes(folder: Path, names: Sequence[str], predictions: Sequence[Prediction]) -> None:
    """Write ``classes.csv``, a line for each class, and ``confusion.csv``, a line for each pair that occurs."""
    scores, none = score_classes(predictions), Scores(0.0, 0.0, 0.0, 0, 0)
    rows = ([name, *scores.get(number, none)] for number, name in enumerate(names))
    write_csv(folder / CLASSES, ["class", *Scores._fields], rows, errors="surrogateescape")
    counts = sorted(count_confusions(predictions).items())
    pairs = ([names[int(label)], names[int(said)], count] for (label, said), count in counts)
    write_csv(folder / CONFUSION, ["label", "predicted", "count"], pairs, errors="surrogateescape")
