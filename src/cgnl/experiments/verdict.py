"""What a comparison comes to, in words that were fixed before it was run: docs/protocol.md."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .statistics import interval, t_test

MARGIN = 0.5
"""Points within which two networks are called equivalent."""
TWO_LOOKS = {5: 0.0052, 10: 0.048}
"""O'Brien-Fleming: seeds at a look -> the p below which it decides; together 0.05."""


@dataclass(frozen=True)
class Comparison:
    """A primary comparison of two rows of a table, by their names."""

    before: str
    after: str
    looks: Mapping[int, float] = field(default_factory=lambda: TWO_LOOKS)
    """Seeds at a look -> the p below which it decides."""


@dataclass(frozen=True)
class Finding:
    """What a comparison came to."""

    word: str
    low: float
    high: float
    """The interval of the difference, in points, at the level of the look."""
    level: float
    p: float
    seeds: int
    look: bool
    """Whether these are the seeds of a look, or those before it."""
    futile: bool = False
    """Whether the first look leaves no room for half a point."""


def find(differences: Sequence[float], looks: Mapping[int, float], paper: float | None = None) -> Finding | None:
    """The finding of paired differences, one a seed; none of fewer than two.

    Args:
        differences: in points, after less before.
        looks: seeds at a look -> the p below which it decides.
        paper: the difference that the paper reports, or None.
    """
    count = len(differences)
    if count < 2:
        return None
    alpha = looks[max((n for n in looks if n <= count), default=min(looks))]
    low, high = interval(differences, 1 - alpha)
    first = count == min(looks) and len(looks) > 1
    word = verdict(differences, alpha, paper)
    p = t_test(differences)
    return Finding(word, low, high, 1 - alpha, p, count, count in looks, futile=first and high < MARGIN)


def verdict(differences: Sequence[float], alpha: float, paper: float | None = None) -> str:
    """The first word that fits."""
    low, high = interval(differences, 1 - alpha)
    apart = low > 0 or high < 0
    if paper is None:
        words = {"better": low > 0, "worse": high < 0, "equivalent": equivalent(differences)}
    else:
        words = {
            "reproduced": apart and low <= paper <= high,
            "smaller than reported": low > 0 and high < paper,
            "equivalent": equivalent(differences),
            "not reproduced": not low <= paper <= high,
        }
    return next((word for word, fits in words.items() if fits), "undecided")


def equivalent(differences: Sequence[float], margin: float = MARGIN) -> bool:
    """Whether both one-sided tests, at 0.05 each, say that the difference is smaller than the margin."""
    low, high = interval(differences, 0.9)
    return -margin < low and high < margin


def holm(ps: Sequence[float]) -> list[float]:
    """Each p, corrected for how many there are."""
    order, worst, corrected = sorted(range(len(ps)), key=lambda i: ps[i]), 0.0, [0.0] * len(ps)
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = worst
    return corrected


def over_samples(before: Sequence[str], after: Sequence[str]) -> tuple[float, float]:
    """The difference in points and half of its 95 % interval over test samples, averaged over the seeds of each."""
    count = len(before)
    each = [
        sum((b[i] == "1") - (a[i] == "1") for a, b in zip(before, after, strict=True)) / count
        for i in range(len(before[0]))
    ]
    return 100 * statistics.fmean(each), 100 * 1.96 * statistics.stdev(each) / math.sqrt(len(each))
