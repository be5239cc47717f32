"""How time and memory grow: measured points, the files they are kept in, and the power law through them."""

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

AXES = ("N", "C", "P + 1")


@dataclass(frozen=True)
class Point:
    """A step of an operation at one size: milliseconds, and the most memory it allocates.

    Attributes:
        axis: what grows from point to point: N, the positions; C, the channels; P + 1, the powers of a Taylor series.
        order: P, where the operation is one.
        mode: train: forward and backward; forward: without gradients.
        milliseconds: the median; ms_20 and ms_80: what 20 % and 80 % of the repetitions stay under.
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
        """Where it stands on its axis."""
        return {"N": self.positions, "C": self.channels, "P + 1": (self.order or 0) + 1}[self.axis]


@dataclass(frozen=True)
class Fit:
    """value ~ size^power over these sizes; ``error`` is the power's standard error, None where two points are all."""

    power: float
    error: float | None
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.power:.2f}" + ("" if self.error is None else f" ± {self.error:.2f}")


def fit(curve: Iterable[tuple[int, float]]) -> Fit | None:
    """Least squares of log value over log size, over the larger half of the sizes; None where that is one point.

    At the smaller ones much of the time goes into starting the operation.
    """
    ordered = sorted(curve)
    half = ordered[len(ordered) // 2 :]
    if len({size for size, _ in half}) < 2:
        return None
    slope, _, error = line([(math.log(size), math.log(value)) for size, value in half])
    return Fit(slope, error, tuple(size for size, _ in half))


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float | None]:
    """Slope, intercept and the slope's standard error of the line through the points, by least squares."""
    x, y = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(x, y)
    if len(points) < 3:
        return slope, intercept, None
    residuals = sum((b - intercept - slope * a) ** 2 for a, b in points)
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    return slope, intercept, math.sqrt(residuals / (len(points) - 2) / spread)


def curve_of(points: Iterable[Point], operation: str, axis: str) -> list[Point]:
    """The points of one curve, from small to large."""
    chosen = (p for p in points if (p.operation, p.axis) == (operation, axis))
    return sorted(chosen, key=lambda p: p.size)


def values(curve: Iterable[Point], quantity: str) -> list[tuple[int, float]]:
    """(size, value) of ``milliseconds`` or ``peak_mib``, where it was measured and is not zero."""
    pairs = ((p.size, getattr(p, quantity)) for p in curve)
    return [(size, value) for size, value in pairs if value]


def write_points(points: Sequence[Point], path: Path) -> None:
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
            raise ValueError(f"{path} is no table of measured points: its first line should be {','.join(names)}")
        points = [_read(row, f"{path}, line {rows.line_num}") for row in rows]
    if not points:
        raise ValueError(f"{path} has no points")
    return points


def _read(row: dict[str, Any], place: str) -> Point:
    try:
        point = Point(**{field.name: _value(field.type, row[field.name]) for field in fields(Point)})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from None
    if point.axis not in AXES:
        raise ValueError(f"{place}: there is no axis {point.axis!r}; there is {', '.join(AXES)}")
    return point


def _value(kind: Any, text: str) -> Any:
    if kind in (int | None, float | None):
        return _value(int if kind == int | None else float, text) if text else None
    return kind(text)
