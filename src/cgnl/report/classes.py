"""What answers say about classes: how often each is named correctly, and which are taken for which."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..engine.predictions import Answer


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
    answers: tuple[Answer, ...]
    of: int
    """Samples of the class."""


def per_class(answers: Iterable[Answer]) -> list[ClassAccuracy]:
    """Each class that has samples, the worst first."""
    answers = list(answers)
    counts, right = Counter(str(a.label) for a in answers), Counter(str(a.label) for a in answers if a.right)
    classes = [ClassAccuracy(name, right[name], count) for name, count in counts.items()]
    return sorted(classes, key=lambda c: (c.share, -c.of, c.name))


def confusions(answers: Iterable[Answer]) -> list[Confusion]:
    """Pairs of classes, those that are mixed up most often first."""
    answers = list(answers)
    counts, pairs = Counter(str(a.label) for a in answers), defaultdict(list)
    for answer in answers:
        if not answer.right:
            pairs[str(answer.label), str(answer.predicted)].append(answer)
    found = [
        Confusion(label, predicted, tuple(sorted(wrong, key=lambda a: -a.score)), counts[label])
        for (label, predicted), wrong in pairs.items()
    ]
    return sorted(found, key=lambda c: (-len(c.answers), -len(c.answers) / c.of, c.label, c.predicted))
