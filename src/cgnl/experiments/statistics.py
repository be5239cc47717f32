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
    deviation = statistics.stdev(values)
    t = need("scipy.stats", "reproduce").t(count - 1)
    error = deviation / math.sqrt(count)
    p = float(2 * t.sf(abs(mean) / error)) if error else float(mean == 0)
    return Estimate(mean, deviation, float(t.ppf((1 + LEVEL) / 2)) * error, count, p)


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
