"""What predictions say about classes: how often each is named correctly, and which are taken for which."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..engine.predictions import Prediction


class ClassAccuracy(NamedTuple):
    """How many of a class's samples were named correctly."""

    name: str
    right: int
    of: int

    @property
    def share(self) -> float:
        return self.right / self.of


class Confusion(NamedTuple):
    """Samples of one class that were taken for another, the surest first."""

    label: str
    predicted: str
    predictions: tuple[Prediction, ...]
    of: int
    """Samples of the class."""


def per_class(predictions: Iterable[Prediction]) -> list[ClassAccuracy]:
    """Each class that has samples, the worst first."""
    predictions = list(predictions)
    counts, right = Counter(str(a.label) for a in predictions), Counter(str(a.label) for a in predictions if a.right)
    classes = [ClassAccuracy(name, right[name], count) for name, count in counts.items()]
    return sorted(classes, key=lambda c: (c.share, -c.of, c.name))


def confusions(predictions: Iterable[Prediction]) -> list[Confusion]:
    """Pairs of classes, those that are mixed up most often first."""
    predictions = list(predictions)
    counts, pairs = Counter(str(a.label) for a in predictions), defaultdict(list)
    for prediction in predictions:
        if not prediction.right:
            pairs[str(prediction.label), str(prediction.predicted)].append(prediction)
    found = [
        Confusion(label, predicted, tuple(sorted(wrong, key=lambda a: -a.score)), counts[label])
        for (label, predicted), wrong in pairs.items()
    ]
    return sorted(found, key=lambda c: (-len(c.predictions), -len(c.predictions) / c.of, c.label, c.predicted))
