"""Means, intervals and tests, against scipy and against counting by hand."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from cgnl.experiments.statistics import (
    TWO_LOOKS,
    compare_samples,
    equivalent,
    estimate,
    find,
    holm,
    interval,
    verdict,
)

stats: Any = scipy_stats


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


def around(mean: float, spread: float, count: int = 5) -> list[float]:
    """Numbers with this mean and standard deviation."""
    z = np.linspace(-1, 1, count)
    return list(mean + spread * z / z.std(ddof=1))


@pytest.mark.parametrize(
    ("differences", "paper", "word"),
    [
        (around(1.0, 0.2), 1.09, "reproduced"),
        (around(0.6, 0.1), 1.09, "smaller than reported"),
        (around(0.0, 0.2), 1.09, "equivalent"),
        (around(0.0, 0.6), 1.5, "not reproduced"),
        (around(0.5, 1.0), 1.09, "undecided"),
        (around(8.0, 0.5), None, "better"),
        (around(-3.0, 0.5), None, "worse"),
        (around(0.1, 0.1), None, "equivalent"),
        (around(0.5, 1.0), None, "undecided"),
    ],
)
def test_verdict_is_the_first_word_that_fits(differences, paper, word):
    assert verdict(differences, 0.05, paper) == word


def test_interval_is_scipys():
    differences = [0.3, 0.9, -0.2, 0.5, 0.1]
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.99)
    assert interval(differences, 0.99) == pytest.approx((expected.low, expected.high))


def test_equivalent_is_two_one_sided_tests():
    for differences in ([0.1, 0.2, 0.0, 0.3], [0.4, 0.45, 0.2, 0.6], [-0.4, 0.1, 0.3, 0.0]):
        above = stats.ttest_1samp(differences, -0.5, alternative="greater").pvalue
        below = stats.ttest_1samp(differences, 0.5, alternative="less").pvalue
        assert equivalent(differences) == (max(above, below) < 0.05)


def test_find_takes_the_level_of_its_look():
    differences = around(0.8, 0.5, 5)
    found = find(differences, TWO_LOOKS)
    assert found is not None
    assert (found.look, found.level) == (True, pytest.approx(1 - 0.0052))
    assert (found.low, found.high) == pytest.approx(interval(differences, 1 - 0.0052))
    later = find(around(0.8, 0.5, 10), TWO_LOOKS)
    assert later is not None
    assert (later.look, later.level) == (True, pytest.approx(1 - 0.048))
    between = find(around(0.8, 0.5, 7), TWO_LOOKS)
    assert between is not None
    assert (between.look, between.level) == (False, pytest.approx(1 - 0.0052))
    assert find([0.5], TWO_LOOKS) is None


def test_first_look_may_be_futile():
    low, high = find(around(-0.3, 0.1), TWO_LOOKS), find(around(0.4, 0.3), TWO_LOOKS)
    assert low is not None
    assert high is not None
    assert (low.futile, high.futile) == (True, False)
    later = find(around(-0.3, 0.1, 10), TWO_LOOKS)
    assert later is not None
    assert not later.futile


def test_two_looks_err_one_time_in_twenty():
    """By simulation of a difference of zero: either look decides in at most 5 % of all studies."""
    draws = np.random.default_rng(0).normal(size=(40_000, 10))
    first = stats.ttest_1samp(draws[:, :5], 0, axis=1).pvalue < TWO_LOOKS[5]
    second = stats.ttest_1samp(draws, 0, axis=1).pvalue < TWO_LOOKS[10]
    assert float((first | second).mean()) == pytest.approx(0.05, abs=0.004)


def test_holm_is_the_textbooks():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
