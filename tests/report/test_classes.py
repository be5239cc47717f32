import math
import re

import pytest

from cgnl.engine.predictions import Prediction
from cgnl.report.classes import MAX_CLASSES, draw_matrix, draw_reliability

PREDICTIONS = [
    *(Prediction(i, "cat", "cat", 0.95) for i in range(7)),
    *(Prediction(i, "cat", "dog", 0.45) for i in range(3)),
    *(Prediction(i, "dog", "dog", 0.75) for i in range(4)),
]


def texts(svg: str) -> list[str]:
    return [re.sub(r"<[^>]*>", "", text).strip() for text in re.findall(r"<text.*?</text>", svg, re.DOTALL)]


def test_matrix_shows_counts_and_names():
    drawn = draw_matrix(PREDICTIONS)
    assert drawn is not None
    assert {"cat", "dog", "7", "3", "4"} <= set(texts(drawn))
    assert "0" not in texts(drawn)
    assert "://" not in drawn


@pytest.mark.parametrize(("count", "drawn"), [(MAX_CLASSES, True), (MAX_CLASSES + 1, False), (0, False)])
def test_matrix_only_of_few_classes(count, drawn):
    predictions = [Prediction(i, f"class{i}", "class0", 0.5) for i in range(count)]
    assert (draw_matrix(predictions) is not None) is drawn


@pytest.mark.parametrize("name", ["$\\frac", "<script>", "\udcff\x1b[31m", "a" * 300, "\n", "日本"])
def test_matrix_of_odd_names(name):
    drawn = draw_matrix([Prediction(0, name, "other", 0.5)])
    assert drawn is not None
    assert "<script>" not in drawn
    assert "\x1b" not in drawn


def test_reliability_by_hand():
    drawn = draw_reliability(PREDICTIONS)
    assert drawn is not None
    assert drawn[1] == pytest.approx((7 * 0.05 + 3 * 0.45 + 4 * 0.25) / 14)
    assert "<svg" in drawn[0]


def test_reliability_of_nothing_and_of_scores_that_are_not_finite():
    assert draw_reliability([]) is None
    assert draw_reliability([Prediction(0, "a", "b", math.nan)]) is None
