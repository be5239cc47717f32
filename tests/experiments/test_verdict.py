from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from cgnl.experiments.statistics import interval, t_test
from cgnl.experiments.verdict import TWO_LOOKS, equivalent, find, holm, verdict

stats: Any = scipy_stats


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


def test_interval_and_p_are_scipys():
    differences = [0.3, 0.9, -0.2, 0.5, 0.1]
    truth = stats.ttest_1samp(differences, 0)
    expected = truth.confidence_interval(0.99)
    assert interval(differences, 0.99) == pytest.approx((expected.low, expected.high))
    assert t_test(differences) == pytest.approx(truth.pvalue)


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
