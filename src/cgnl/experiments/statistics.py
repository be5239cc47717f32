"""Means with intervals, tests of differences, and verdicts by rules fixed before the runs: docs/protocol.md."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..extras import need

MARGIN = 0.5
"""Points within which two networks are called equivalent."""
TWO_LOOKS = {5: 0.0052, 10: 0.048}
"""O'Brien-Fleming: seeds at a look -> the p below which it decides; 0.05 overall."""


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds; the rest is None for a single seed.

    Attributes:
        deviation: standard deviation of one seed.
        half_width: half of the 95 % interval of the mean, Student's t.
        p: of a mean of zero, two-sided t test.
    """

    mean: float
    deviation: float | None
    half_width: float | None
    count: int
    p: float | None = None

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and its uncertainty; for differences on the same seeds, p is that of the paired t test."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    low, high = interval(values, 0.95)
    p = float(_t_test(values).pvalue) if any(values) else 1.0
    return Estimate(mean, statistics.stdev(values), (high - low) / 2, count, p)


def interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """Confidence interval of the mean, Student's t."""
    low, high = _t_test(values).confidence_interval(level)
    return float(low), float(high)


def _t_test(values: Sequence[float]) -> Any:
    return need("scipy.stats", "reproduce").ttest_1samp(values, 0)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number by Holm's method."""
    adjusted, largest = list(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        adjusted[i] = largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
    return adjusted


class Discordance(NamedTuple):
    """Test samples on which two networks disagree, over all seeds.

    Attributes:
        p: McNemar's test: exact for one seed; for several, seeds of a sample form a cluster.
        half_width: half of the 95 % interval of the difference over test samples, in points.
    """

    lost: int
    won: int
    p: float
    half_width: float


def compare_samples(before: Sequence[str], after: Sequence[str]) -> Discordance:
    """Compare two networks by which samples they had right, a string of 0 and 1 for each seed.

    With d_i = wins less losses of sample i over the seeds, sum d_i / sqrt(sum d_i^2) is a standard normal if the two
    are equally good; for one seed this is McNemar's (b - c) / sqrt(b + c).
    """
    from ..explain.diagnosis import mcnemar  # imports torch

    seeds = list(zip(before, after, strict=True))
    changes = [[int(b) - int(a) for a, b in zip(old, new, strict=True)] for old, new in seeds]  # [seeds][samples]
    won, lost = (sum(change.count(sign) for change in changes) for sign in (1, -1))
    by_sample = [sum(sample) for sample in zip(*changes, strict=True)]
    if len(seeds) == 1:
        p = mcnemar(lost, won)
    else:
        squares = sum(d * d for d in by_sample)
        p = math.erfc(abs(won - lost) / math.sqrt(2 * squares)) if squares else 1.0
    error = statistics.stdev(by_sample) / math.sqrt(len(by_sample))
    return Discordance(lost, won, p, 100 * 1.96 * error / len(seeds))


class Finding(NamedTuple):
    """A verdict, and the interval of the difference in points at the level of the look.

    Attributes:
        look: whether this is the number of seeds of a look.
        futile: whether the first look excludes a gain of half a point.
    """

    word: str
    low: float
    high: float
    level: float
    look: bool
    futile: bool


def find(differences: Sequence[float], looks: Mapping[int, float], paper: float | None = None) -> Finding | None:
    """Decide a comparison by paired differences in points, one for each seed; None for fewer than two.

    ``looks``: seeds at a look -> the p below which it decides; ``paper``: the difference that the paper reports.
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


def equivalent(differences: Sequence[float]) -> bool:
    """Two one-sided tests at 0.05: whether the difference is smaller than the margin."""
    low, high = interval(differences, 0.9)
    return low > -MARGIN and high < MARGIN
