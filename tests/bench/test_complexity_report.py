import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import linregress

from cgnl.bench.complexity_report import (
    EXACT,
    Fit,
    Point,
    fit_line,
    fit_power,
    markdown,
    plot,
    plot_time,
    read_points,
    select_curve,
    values,
    write_points,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
POINT = Point(
    "CGNL", "N", 2, 64, 128, 8, 1, 0.5, 0.4, 0.6, 12.25, "train", "float32", "CPU, 1 thread", "2.15.0"
)  # fmt: skip


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_fit_finds_the_power(power):
    found = fit_power([(2**k, 3 * 2 ** (power * k)) for k in range(8)])
    assert found is not None
    assert found.power == pytest.approx(power, abs=1e-12)
    assert found.error == pytest.approx(0, abs=1e-9)


def test_fit_leaves_the_smaller_half_out():
    overhead = [(size, 100.0) for size in (1, 2, 4)]
    found = fit_power([*overhead, (16, 16.0**2), (8, 8.0**2), (32, 32.0**2), (64, 64.0**2)])
    assert found is not None
    assert found.power == pytest.approx(2)
    assert found.sizes == (8, 16, 32, 64)


def test_fit_is_that_of_scipy():
    generator = np.random.default_rng(0)
    sizes = [2**k for k in range(4, 10)]
    noisy = [(n, n**1.3 * generator.lognormal(sigma=0.1)) for n in sizes]
    found = fit_power([(1, 1.0)] * len(noisy) + noisy)
    x, y = np.log(noisy).T
    expected: Any = linregress(x, y)
    assert found is not None
    assert found.power == pytest.approx(expected.slope)
    assert found.error == pytest.approx(expected.stderr)


@pytest.mark.parametrize("curve", [[], [(1, 1.0)], [(1, 1.0), (2, 2.0)], [(4, 1.0), (4, 2.0)]])
def test_fit_of_one_size_is_none(curve):
    assert fit_power(curve) is None


def test_fit_of_constant_values_has_an_error():
    found = fit_power([(size, 3.0) for size in (1, 2, 4, 8, 16, 32)])
    assert str(found) in ("0.00 ± 0.00", "-0.00 ± 0.00")


def test_fit_of_two_points_has_no_error():
    found = fit_power([(1, 9.0), (2, 2.0), (4, 4.0)])
    assert found is not None
    assert (found.power, found.error, found.sizes) == (pytest.approx(1.0), None, (2, 4))
    assert str(Fit(1.0, None, (2, 4))) == "1.00"
    assert str(Fit(1.984, 0.021, (2, 4))) == "1.98 ± 0.02"


def test_line_through_points_of_one():
    slope, intercept, error = fit_line([(x, 3.0 + 0.5 * x) for x in range(2, 10)])
    assert (slope, intercept) == (pytest.approx(0.5), pytest.approx(3.0))
    assert error == pytest.approx(0, abs=1e-12)


def test_size_is_what_grows():
    assert [replace(POINT, axis=axis, order=3).size for axis in ("N", "C", "P + 1")] == [128, 64, 4]


def test_select_curve_has_its_points_in_order():
    large, other = replace(POINT, positions=512), replace(POINT, operation="GNL, exact")
    assert select_curve([large, other, POINT, replace(POINT, axis="C")], "CGNL", "N") == [POINT, large]


def test_values_leave_out_what_was_not_measured():
    curve = [POINT, replace(POINT, positions=256, peak_mib=None), replace(POINT, positions=512, peak_mib=0.0)]
    assert values(curve, "peak_mib") == [(128, 12.25)]
    assert [size for size, _ in values(curve, "milliseconds")] == [128, 256, 512]


def test_points_come_back_from_their_file(tmp_path):
    points = [POINT, replace(POINT, order=None, peak_mib=None, milliseconds=1 / 3)]
    path = tmp_path / "points.csv"
    write_points(points, path)
    assert read_points(path) == points


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("positions", "many", r"points\.csv, line 2: .*'many'"),
        ("milliseconds", "", r"points\.csv, line 2: .*''"),
        ("axis", "Z", r"points\.csv, line 2: axis 'Z' .*N, C, P \+ 1"),
    ],
)
def test_read_points_names_the_bad_value(tmp_path, name, value, message):
    path = tmp_path / "points.csv"
    write_points([POINT], path)
    (row,) = csv.DictReader(path.open())
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow({**row, name: value})
    with pytest.raises(ValueError, match=message):
        read_points(path)


def test_read_points_refuses_another_table(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv is not a table of measured points"):
        read_points(path)
    write_points([], path)
    with pytest.raises(ValueError, match=r"other\.csv has no points"):
        read_points(path)


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
