"""What a few seeds allow to say: means with intervals, differences with tests."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..explain.diagnosis import mcnemar
from ..extras import need

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean, and how well it is known."""

    mean: float
    deviation: float | None
    """Of one seed; nothing where there is only one."""
    half_width: float | None
    """Half of the 95 % interval of the mean, by Student's t."""
    count: int
    p: float | None = None
    """Of a mean this far from zero, were it zero: the two-sided t test."""


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of some seeds; of differences on the same seeds, that is the paired t test."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    low, high = interval(values, LEVEL)
    return Estimate(mean, statistics.stdev(values), (high - low) / 2, count, t_test(values))


def interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """Of the mean, by Student's t."""
    mean, error = _mean_and_error(values)
    half = float(_t(values).ppf((1 + level) / 2)) * error
    return mean - half, mean + half


def t_test(values: Sequence[float]) -> float:
    """The two-sided p of a mean this far from zero."""
    mean, error = _mean_and_error(values)
    return float(2 * _t(values).sf(abs(mean) / error)) if error else float(mean == 0)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def _t(values: Sequence[float]):
    return need("scipy.stats", "reproduce").t(len(values) - 1)


@dataclass(frozen=True)
class Sides:
    """How many samples changed sides from one network to another, over all seeds, and whether that is chance."""

    lost: int
    won: int
    p: float
    """McNemar's test: exact for one seed; for several, samples are taken as clusters, since seeds share them."""


def changed_sides(before: Sequence[str], after: Sequence[str]) -> Sides:
    """Compare two networks by what they had right, a string of 0 and 1 for each seed.

    With d_i = wins less losses of sample i over the seeds, sum d_i / sqrt(sum d_i^2) is a standard normal if the two
    are equally good; for one seed this is McNemar's (b - c) / sqrt(b + c).
    """
    lost = won = 0
    differences = [0] * len(before[0])
    for old, new in zip(before, after, strict=True):
        for sample, (a, b) in enumerate(zip(old, new, strict=True)):
            if a != b:
                won += b == "1"
                lost += a == "1"
                differences[sample] += 1 if b == "1" else -1
    if len(before) == 1:
        return Sides(lost, won, mcnemar(lost, won))
    squares = sum(d * d for d in differences)
    z = sum(differences) / math.sqrt(squares) if squares else 0.0
    return Sides(lost, won, math.erfc(abs(z) / math.sqrt(2)))
