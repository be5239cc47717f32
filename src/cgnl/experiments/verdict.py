"""Verdicts on comparisons, by rules fixed before the runs: docs/protocol.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .statistics import interval

MARGIN = 0.5
"""Points within which two networks are called equivalent."""
TWO_LOOKS = {5: 0.0052, 10: 0.048}
"""O'Brien-Fleming: seeds at a look -> the p below which it decides; 0.05 overall."""


@dataclass(frozen=True)
class Comparison:
    """A primary comparison of two rows, by name."""

    before: str
    after: str
    looks: Mapping[int, float] = field(default_factory=lambda: TWO_LOOKS)
    """Seeds at a look -> the p below which it decides."""


@dataclass(frozen=True)
class Finding:
    """Result of a comparison."""

    word: str
    low: float
    high: float
    """Interval of the difference in points, at the level of the look."""
    level: float
    look: bool
    """Whether this is the number of seeds of a look."""
    futile: bool = False
    """Whether the first look excludes a gain of half a point."""


def find(differences: Sequence[float], looks: Mapping[int, float], paper: float | None = None) -> Finding | None:
    """Decide a comparison by paired differences in points, one for each seed; None for fewer than two.

    Args:
        differences: after less before, in points.
        looks: seeds at a look -> the p below which it decides.
        paper: the difference the paper reports, or None.
    """
    count = len(differences)
    if count < 2:
        return None
    alpha = looks[max((n for n in looks if n <= count), default=min(looks))]
    low, high = interval(differences, 1 - alpha)
    futile = len(looks) > 1 and count == min(looks) and high < MARGIN
    return Finding(verdict(differences, alpha, paper), low, high, 1 - alpha, count in looks, futile)


def verdict(differences: Sequence[float], alpha: float, paper: float | None = None) -> str:
    """The first word that fits."""
    low, high = interval(differences, 1 - alpha)
    if paper is None:
        words = {"better": low > 0, "worse": high < 0, "equivalent": equivalent(differences)}
    else:
        words = {
            "reproduced": (low > 0 or high < 0) and low <= paper <= high,
            "smaller than reported": low > 0 and high < paper,
            "equivalent": equivalent(differences),
            "not reproduced": not low <= paper <= high,
        }
    return next((word for word, fits in words.items() if fits), "undecided")


def equivalent(differences: Sequence[float], margin: float = MARGIN) -> bool:
    """Two one-sided tests at 0.05: whether the difference is smaller than the margin."""
    low, high = interval(differences, 0.9)
    return -margin < low and high < margin


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number by Holm's method."""
    adjusted, largest = list(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = largest
    return adjusted
