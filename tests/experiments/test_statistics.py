"""Means, intervals and tests, against scipy and against counting by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from cgnl.experiments.statistics import compare_samples, estimate


@pytest.mark.parametrize("values", [[81.4, 81.5], [1.0, 2.0, 4.0], list(np.random.default_rng(0).normal(0.3, 1, 10))])
def test_estimate_is_the_t_interval_and_test(values):
    e = estimate(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (e.mean, e.deviation) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)))
    assert e.half_width is not None
    assert (e.mean - e.half_width, e.mean + e.half_width) == (pytest.approx(low), pytest.approx(high))
    _, p = stats.ttest_1samp(values, 0)
    assert e.p == pytest.approx(p)
    assert e.count == len(values)


def test_estimate_of_differences_is_the_paired_test():
    rng = np.random.default_rng(1)
    before, after = rng.normal(80, 1, 6), rng.normal(81, 1, 6)
    _, p = stats.ttest_rel(after, before)
    assert estimate(list(after - before)).p == pytest.approx(p)


def test_estimate_of_one_value_knows_no_spread():
    e = estimate([3.0])
    assert (e.mean, e.deviation, e.half_width, e.count, e.p) == (3.0, None, None, 1, None)


@pytest.mark.parametrize(("values", "p"), [([0.0, 0.0], 1.0), ([2.0, 2.0, 2.0], 0.0)])
def test_estimate_of_equal_values(values, p):
    assert (estimate(values).p, estimate(values).half_width) == (p, 0.0)


def test_compare_samples_of_one_seed_is_the_exact_test():
    samples = compare_samples(["1110000"], ["0101111"])
    assert (samples.lost, samples.won) == (2, 4)
    assert samples.p == pytest.approx(stats.binomtest(2, 6).pvalue)


def test_compare_samples_counts_over_seeds():
    samples = compare_samples(["1100", "0000"], ["0110", "0011"])
    assert (samples.lost, samples.won) == (1, 3)


def test_compare_samples_of_a_repeated_seed_is_not_more_certain():
    """Seeds that say the same of the same samples are no further evidence."""
    rng = np.random.default_rng(2)
    before, after = ("".join("01"[int(bit)] for bit in rng.random(400) < share) for share in (0.7, 0.75))
    several = compare_samples([before] * 10, [after] * 10)
    b, c = several.won // 10, several.lost // 10
    assert several.p == pytest.approx(math.erfc(abs(b - c) / math.sqrt(b + c) / math.sqrt(2)))


def test_compare_samples_is_right_as_often_as_it_says():
    """Under no difference, p below 0.05 comes up in about 5 % of experiments."""
    rng, small = np.random.default_rng(3), 0
    for _ in range(400):
        easy = rng.random(300)  # samples differ in how easy they are, the networks do not differ
        runs = [["".join("01"[int(bit)] for bit in rng.random(300) < easy) for _ in range(3)] for _ in range(2)]
        small += compare_samples(*runs).p < 0.05
    assert 6 <= small <= 36


def test_compare_samples_of_equals_is_no_difference():
    assert compare_samples(["101", "111"], ["101", "111"]).p == 1


def test_compare_samples_refuses_other_numbers_of_samples():
    with pytest.raises(ValueError, match="is shorter"):
        compare_samples(["101"], ["10"])


def test_compare_samples_has_the_interval_over_samples():
    """Each sample counts once, with the mean of its seeds."""
    samples = compare_samples(["1100", "1000"], ["1110", "1110"])
    assert samples.half_width == pytest.approx(100 * 1.96 * np.std([0, 0.5, 1, 0], ddof=1) / math.sqrt(4))
