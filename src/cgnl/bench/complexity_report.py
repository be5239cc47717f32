"""What ``complexity`` measured: the points, the power laws through them, and the paper's table beside ours."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..atomic_io import save_figure, write_csv
from ..extras import need
from ..text import markdown_table

AXES = ("N", "C", "P + 1")
EXACT, MATRIX, KERNELS = "GNL, exact", "NL, N x N matrix", "NL, attention kernels"
COMPACT, BLOCK = "CGNL", "CGNL block"


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

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"axis {self.axis!r} is not one of {', '.join(AXES)}")

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
    write_csv(path, [field.name for field in fields(Point)], (astuple(point) for point in points))


def read_points(path: Path) -> list[Point]:
    names, points = [field.name for field in fields(Point)], []
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != names:
            raise ValueError(f"{path} is not a table of measured points: its first line should be {','.join(names)}")
        for row in rows:
            try:
                points.append(Point(**{field.name: _parse(field.type, row[field.name]) for field in fields(Point)}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {rows.line_num}: {error}") from None
    if not points:
        raise ValueError(f"{path} has no points")
    return points


def _parse(kind: Any, text: str) -> Any:
    if kind in (int | None, float | None):
        return kind.__args__[0](text) if text else None
    return kind(text)


class Operation(NamedTuple):
    """What an operation needs by its equations, with the powers of N and C that follow, and how it is drawn."""

    counted_by: str
    time: tuple[str, str, str]
    memory: tuple[str, str, str]
    colour: str
    line: str = "-"


_SQUARED, _COMPACT, _PRODUCTS = ("2 (NC)²", "2", "2"), ("NC (P + 1)", "1", "1"), ("N² C", "2", "1")
OPERATIONS = {
    EXACT: Operation("the paper", _SQUARED, _SQUARED, "#c44e52"),
    MATRIX: Operation("us", _PRODUCTS, ("N² + NC", "1 to 2", "0 to 1"), "#8c8c8c"),
    KERNELS: Operation("us", _PRODUCTS, ("NC + buffers", "0 to 1", "0 to 1"), "#8c8c8c", "--"),
    COMPACT: Operation("the paper", _COMPACT, _COMPACT, "#2b6cb0"),
    BLOCK: Operation("us", ("NC² + NC (P + 1)", "1", "1 to 2"), ("NC + C²", "1", "1 to 2"), "#dd8452"),
}
QUANTITIES = {"time": ("milliseconds", "milliseconds"), "memory": ("peak_mib", "MiB")}
"""Quantity -> (field of a point, unit)."""
FEATURE_MAPS = {196: "res4,\n224 px", 784: "res4,\n448 px", 12544: "res3 of a 32-frame\nclip, 448 px"}


def markdown(points: Sequence[Point]) -> str:
    quantities = _measured(points)
    sections = [_introduction(points[0]), PAPER, *(_growth(points, quantity) for quantity in quantities)]
    return "\n\n".join(filter(None, [*sections, _side_by_side(points), _orders(points)])) + "\n"


def _measured(points: Sequence[Point]) -> list[str]:
    return [quantity for quantity, (field, _) in QUANTITIES.items() if values(points, field)]


INTRODUCTION = """# Complexity, measured

{step}, {point.dtype}, {point.device}, torch {point.torch}.

![Time and memory against positions and channels](complexity.png)

Time is the median of the repetitions{graph}. Memory is the most that torch's {seen} during a step,
less what was there before it: input, gradient of the output, weights and their gradients.

Powers are least-squares fits of log time or log memory over log size, with their standard errors, over the
larger half of the sizes, which stand beside them: at the smaller ones much of the time goes into starting
the operation. A standard error tells how far the points are from the line, not whether the machine was busier
during one than during another.
{note}"""
FUSED = """The block is the fused one; the operation by itself is plain PyTorch, which is why it takes longer than the
block around it."""
PAGES = """Tensors of more than 32 MiB get new pages from the system at every step, and there curves of time jump;
the fitted points of a curve are on one side of that."""
PAPER = """## The paper's table

|  | general NL method, f(Θ Φᵀ) g | CGNL method, Θ Φᵀ g |
| --- | --- | --- |
| time | O(2 (NC)²) | O(NC (P + 1)) |
| space | O(2 (NC)²) | O(NC (P + 1)) |"""


def _introduction(point: Point) -> str:
    if point.device.startswith("CPU"):
        words = {"graph": "", "seen": "profiler sees", "note": PAGES}
    else:
        words = {"graph": " of a CUDA graph", "seen": "allocator counts", "note": FUSED}
    return INTRODUCTION.format(step=_step(point), point=point, **words)


def _growth(points: Sequence[Point], quantity: str) -> str:
    """A row for each operation that was measured: the counted powers of N and C, and the measured ones."""
    rows = []
    for name, operation in OPERATIONS.items():
        if not any(p.operation == name for p in points):
            continue
        needs, *powers = getattr(operation, quantity)
        cells = [name, f"{operation.counted_by}: {needs}"]
        for axis, power in zip("NC", powers, strict=True):
            curve = select_curve(points, name, axis)
            fit = fit_power(values(curve, QUANTITIES[quantity][0]))
            if fit is None:
                cells += [power, "-", "-"]
                continue
            sizes = ", ".join(f"{size:,}" for size in fit.sizes)
            cells += [power, f"**{fit}**", f"{axis} = {sizes}; {_constants(curve[0], ',')}"]
        rows.append(cells)
    titles = [title for axis in "NC" for title in (f"power of {axis}", "measured", "fitted to")]
    return f"## How {quantity} grows\n\n" + markdown_table(["operation", "counted by", *titles], rows)


def _side_by_side(points: Sequence[Point]) -> str:
    """The exact and the compact operation on the largest input that both were given."""
    exact, compact = (
        {(p.batch, p.channels, p.positions): p for p in select_curve(points, name, "N")} for name in (EXACT, COMPACT)
    )
    if not (shared := exact.keys() & compact.keys()):
        return ""
    largest = max(shared, key=math.prod)
    rows = [[p.operation, _number(p.milliseconds), _number(p.peak_mib)] for p in (exact[largest], compact[largest])]
    batch, channels, positions = largest
    side = channels * positions
    note = f"One matrix of {side:,} x {side:,} numbers of four bytes is {batch * 4 * side**2 / 2**20:,.0f} MiB."
    title = f"## The same input: batch {batch}, C = {channels}, N = {positions}"
    return f"{title}\n\n{markdown_table(['operation', 'ms', 'MiB'], rows)}\n\n{note}"


def _orders(points: Sequence[Point]) -> str:
    """How the Taylor series grows with P + 1, by a straight line: its constant cost would distort a power."""
    curve = select_curve(points, COMPACT, "P + 1")
    if len(curve) < 2:
        return ""
    rows = []
    for p in curve:
        spread = f"{_number(p.ms_20)} to {_number(p.ms_80)}"
        rows.append([str(p.order), _number(p.milliseconds), spread, _number(p.peak_mib)])
    slope, start, error = fit_line(values(curve, "milliseconds"))
    each = _number(slope) + ("" if error is None else f" ± {_number(error)}")
    return f"""## Order of the Taylor series

Of exp(θ φ), batch {curve[0].batch}, C = {curve[0].channels}, N = {curve[0].positions:,}:

{markdown_table(["P", "ms", "20 to 80 %", "MiB"], rows)}

A straight line through the times is {_number(start)} ms and {each} ms for each of the P + 1 powers.
The paper counts P + 1 for memory too; here Θ and Φ, with their P + 1 columns, are never built, and it need not grow."""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _step(point: Point) -> str:
    return "Forward + backward" if point.mode == "train" else "Forward"


def _constants(point: Point, thousands: str = "") -> str:
    """What stays constant along a curve."""
    fixed = f"C = {point.channels:{thousands}}" if point.axis == "N" else f"N = {point.positions:{thousands}}"
    return f"{fixed}, batch {point.batch}"


def plot(points: Sequence[Point], path: Path) -> None:
    """Time and memory, where it was measured, against positions and channels."""
    quantities = _measured(points)
    figure = _figure(points[0], 11, 0.6 + 3.7 * len(quantities))
    axes = figure.subplots(len(quantities), 2, squeeze=False)
    for row, quantity in zip(axes, quantities, strict=True):
        for panel, axis in zip(row, "NC", strict=True):
            _panel(panel, points, quantity, axis)
            panel.set_title(f"{quantity} against {axis}", fontsize=9, loc="left")
            panel.legend(frameon=False, fontsize=7, loc="upper left")
            low, high = panel.get_ylim()
            room = 0.1 * len(panel.get_legend().get_texts())  # for the legend, above the curves
            panel.set_ylim(low, high * (high / low) ** room)
    save_figure(figure, path, dpi=160)


def plot_time(points: Sequence[Point], path: Path) -> None:
    """Time against positions alone, beside the sizes of feature maps."""
    figure = _figure(points[0], 9, 3.4)
    panel = figure.subplots()
    _panel(panel, points, "time", "N")
    for size in FEATURE_MAPS:
        panel.axvline(size, color="#dddddd", zorder=0)
    top = panel.secondary_xaxis("top")
    top.set_xticks(list(FEATURE_MAPS), list(FEATURE_MAPS.values()), fontsize=7, color="#777777")
    top.tick_params(which="both", length=0)
    top.spines["top"].set_visible(False)
    panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, path, dpi=160)


def _panel(panel: Any, points: Sequence[Point], quantity: str, axis: str) -> None:
    field, unit = QUANTITIES[quantity]
    for name, operation in OPERATIONS.items():
        curve = select_curve(points, name, axis)
        pairs = values(curve, field)
        if not pairs:
            continue
        fit = fit_power(pairs)
        label = f"{name} ({_constants(curve[0])})" + (f": {axis}^{fit}" if fit else "")
        style = {"color": operation.colour, "markersize": 4, "linewidth": 1.3}
        panel.loglog(*zip(*pairs, strict=True), operation.line, marker="o", mfc="white", label=label, **style)
        if filled := [pair for pair in pairs if fit and pair[0] in fit.sizes]:
            panel.loglog(*zip(*filled, strict=True), "o", **style)
    panel.set_xlabel({"N": "positions N", "C": "channels C"}[axis], fontsize=9)
    panel.set_ylabel(unit, fontsize=9)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _figure(point: Point, width: float, height: float) -> Any:
    figure = need("matplotlib.figure", "bench").Figure(figsize=(width, height), layout="constrained")
    where = f"{_step(point)}, {point.dtype}, {point.device}, torch {point.torch.partition('+')[0]}"
    figure.suptitle(f"{where}; powers are fitted to the filled points", fontsize=9)
    return figure
