"""How time and memory grow: measured points, their CSV file, and the power law through them."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

AXES = ("N", "C", "P + 1")


@dataclass(frozen=True)
class Point:
    """Time and peak memory of an operation at one size.

    Attributes:
        axis: what grows from point to point: N, the positions; C, the channels; P + 1, the powers of a Taylor series.
        order: P, if the operation is a Taylor series.
        mode: train: forward and backward; forward: without gradients.
        milliseconds: the median; ms_20 and ms_80 are quantiles.
    """

    operation: str
    axis: str
    batch: int
    channels: int
    positions: int
    groups: int
    order: int | None
    milliseconds: float
    ms_20: float
    ms_80: float
    peak_mib: float | None
    mode: str
    dtype: str
    device: str
    torch: str

    @property
    def size(self) -> int:
        return {"N": self.positions, "C": self.channels, "P + 1": (self.order or 0) + 1}[self.axis]


class Fit(NamedTuple):
    """value ~ size^power over these sizes; ``error`` is the power's standard error, None for two points."""

    power: float
    error: float | None
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.power:.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")


def fit_power(curve: Iterable[tuple[int, float]]) -> Fit | None:
    """Fit log value over log size on the larger half of the sizes; None if that is a single size.

    At smaller sizes much of the time goes into launching the operation.
    """
    ordered = sorted(curve)
    half = ordered[len(ordered) // 2 :]
    if len({size for size, _ in half}) < 2:
        return None
    slope, _, error = fit_line([(math.log(size), math.log(value)) for size, value in half])
    return Fit(slope, error, tuple(size for size, _ in half))


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float | None]:
    """Slope and intercept by least squares, and the slope's standard error if there are more than two points."""
    x, y = np.array(points, float).T
    if len(points) == 2:
        return *np.polyfit(x, y, 1).tolist(), None
    line, covariance = np.polyfit(x, y, 1, cov=True)
    return *line.tolist(), math.sqrt(covariance[0, 0])


def select_curve(points: Iterable[Point], operation: str, axis: str) -> list[Point]:
    """The points of one curve, from small to large."""
    return sorted((p for p in points if (p.operation, p.axis) == (operation, axis)), key=lambda p: p.size)


def values(curve: Iterable[Point], quantity: str) -> list[tuple[int, float]]:
    """(size, value) of ``milliseconds`` or ``peak_mib``, where it was measured and is not zero."""
    return [(p.size, value) for p in curve if (value := getattr(p, quantity))]


def write_points(points: Iterable[Point], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def read_points(path: Path) -> list[Point]:
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        names = [field.name for field in fields(Point)]
        if list(rows.fieldnames or []) != names:
            raise ValueError(f"{path} is not a table of measured points: its first line should be {','.join(names)}")
        points = []
        for row in rows:
            try:
                point = Point(**{field.name: _parse(field.type, row[field.name]) for field in fields(Point)})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {rows.line_num}: {error}") from None
            if point.axis not in AXES:
                raise ValueError(f"{path}, line {rows.line_num}: axis {point.axis!r} is not one of {', '.join(AXES)}")
            points.append(point)
    if not points:
        raise ValueError(f"{path} has no points")
    return points


def _parse(kind: Any, text: str) -> Any:
    if kind in (int | None, float | None):
        return kind.__args__[0](text) if text else None
    return kind(text)
