from dataclasses import replace
from pathlib import Path

import pytest

from cgnl.bench.complexity_report import EXACT, markdown, plot, plot_time
from cgnl.bench.growth import read_points

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("folder", [RESULTS / "complexity", RESULTS / "h200" / "complexity"], ids=["cpu", "h200"])
def test_markdown_of_committed_points_is_the_committed_one(folder):
    expected = (folder / "complexity.md").read_text(encoding="utf-8")
    assert markdown(read_points(folder / "complexity.csv")) == expected


def test_report_leaves_out_what_was_not_measured(tmp_path):
    points = [
        replace(point, peak_mib=None)
        for point in read_points(RESULTS / "complexity" / "complexity.csv")
        if point.operation == EXACT
    ]
    text = markdown([point for point in points if point.axis == "N"])
    assert "## How time grows" in text
    assert "## How memory grows" not in text
    assert "## The same input" not in text
    assert "## Order of the Taylor series" not in text
    assert "| 2 | - | - |" in text  # no curve against C
    plot(points, tmp_path / "a.png")
    plot_time(points, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"
