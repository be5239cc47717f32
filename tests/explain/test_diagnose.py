"""A diagnosis as text, files and a figure."""

import csv

import pytest
import torch

from cgnl.explain.diagnose import plot, table, write
from cgnl.explain.diagnosis import Diagnosis, Outcome, Share, Spread
from cgnl.explain.verdict import Verdict

VALUES = torch.tensor([[[1.0], [-2.0]], [[3.0], [-4.0]]], dtype=torch.float64)  # [samples, G, K]


@pytest.fixture
def diagnosis() -> Diagnosis:
    outcomes = (Outcome("as it is", 80.0, added=2.5, added_median=1.5), Outcome("its mean", 75.0, 8, 3, -5.0, 0.227))
    spreads = (Spread("b", 0, "1", 2.0, 1.0, 0.0, 0.5), Spread("b", 1, "1", -3.0, 1.0, 1.0, 1 / 3))
    verdict = Verdict({"b": 1.5}, 11, 100)
    return Diagnosis(outcomes, spreads, {"b": VALUES}, {"b": ("1",)}, {"b": Share(2.5, 1.5)}, verdict)


def test_table_has_every_number(diagnosis):
    lines = table(diagnosis, 100)
    assert lines[1].split() == ["as", "it", "is", "80.00%"]
    assert lines[2].split() == ["its", "mean", "75.00%", "-5.00", "8", "3", "0.23"]
    groups = [line.split() for line in lines if line.startswith("b, group")]
    assert groups == [
        ["b,", "group", "0", "1", "2", "1", "0.0%", "0.5"],
        ["b,", "group", "1", "1", "-3", "1", "100.0%", "0.333"],
    ]
    assert any("2.5 %" in line and "1.5 %" in line for line in lines)
    assert lines[-1] == diagnosis.verdict.words()  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("name", ["out", "out.csv", "out.png"])
def test_write_makes_two_tables_and_a_figure(diagnosis, tmp_path, name):
    written = write(diagnosis, tmp_path / "new" / name, "a run")
    assert [path.name for path in written] == ["out.csv", "out_groups.csv", "out.png"]
    with written[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["attention"], row["lost"], row["won"]) for row in rows] == [
        ("as it is", "0", "0"),
        ("its mean", "8", "3"),
    ]
    with written[1].open(newline="") as file:
        assert [float(row["mean"]) for row in csv.DictReader(file)] == [2.0, -3.0]
    assert written[2].read_bytes().startswith(b"\x89PNG")


def test_plot_shows_groups_in_units_of_their_mean_size(diagnosis):
    bars, groups = plot(diagnosis, "a run").axes
    assert [bar.get_width() for bar in bars.patches] == [75.0, 80.0]  # the unchanged network on top
    medians = [line.get_ydata()[0] for line in groups.lines if len(set(line.get_ydata())) == 1 and line.get_ydata()[0]]
    assert 1.0 in medians  # (1 + 3) / 2 by 2
    assert -1.0 in medians
