"""The paper's complexity table beside the measured one: as Markdown and as pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..extras import need
from .growth import Fit, Point, curve_of, fit, line, values
from .markdown import grid

EXACT, MATRIX, KERNELS = "GNL, exact", "NL, N x N matrix", "NL, attention kernels"
COMPACT, BLOCK = "CGNL", "CGNL block"


@dataclass(frozen=True)
class Counted:
    """What the equations need, and the powers of N and C that follow from it."""

    needs: str
    power: dict[str, str]


@dataclass(frozen=True)
class Law:
    """An operation as it is counted, and as it is drawn."""

    time: Counted
    memory: Counted
    whose: str
    colour: str
    line: str = "-"


_SQUARED = Counted("2 (NC)²", {"N": "2", "C": "2"})
_COMPACT = Counted("NC (P + 1)", {"N": "1", "C": "1"})
_PRODUCTS = Counted("N² C", {"N": "2", "C": "1"})
LAWS = {
    EXACT: Law(_SQUARED, _SQUARED, "the paper", "#c44e52"),
    MATRIX: Law(_PRODUCTS, Counted("N² + NC", {"N": "1 to 2", "C": "0 to 1"}), "us", "#8c8c8c"),
    KERNELS: Law(_PRODUCTS, Counted("NC + buffers", {"N": "0 to 1", "C": "0 to 1"}), "us", "#8c8c8c", "--"),
    COMPACT: Law(_COMPACT, _COMPACT, "the paper", "#2b6cb0"),
    BLOCK: Law(
        Counted("NC² + NC (P + 1)", {"N": "1", "C": "1 to 2"}), Counted("NC + C²", {"N": "1", "C": "1 to 2"}),
        "us", "#dd8452",
    ),
}  # fmt: skip

QUANTITIES = {"time": ("milliseconds", "milliseconds"), "memory": ("peak_mib", "MiB")}
"""Quantity -> (field of a point, unit)."""

FEATURE_MAPS = {196: "res4,\n224 px", 784: "res4,\n448 px", 12544: "res3 of a 32-frame\nclip, 448 px"}


def markdown(points: Sequence[Point]) -> str:
    sections = [_head(points), _paper()]
    sections += [_growth(points, quantity) for quantity in QUANTITIES if _measured(points, quantity)]
    sections += [_side_by_side(points), _orders(points)]
    return "\n\n".join(filter(None, sections)) + "\n"


FUSED = """The block is the fused one; the operation by itself is plain PyTorch, which is why it takes longer than the
block around it."""
PAGES = """Tensors of more than 32 MiB get new pages from the system at every step, and there curves of time jump;
the fitted points of a curve are on one side of that."""


def _head(points: Sequence[Point]) -> str:
    first = points[0]
    on_cpu = first.device.startswith("CPU")
    graph, seen = ("", "profiler sees") if on_cpu else (" of a CUDA graph", "allocator counts")
    text = f"""# Complexity, measured

{_steps(first)}, {first.dtype}, {first.device}, torch {first.torch}.

![Time and memory against positions and channels](complexity.png)

Time is the median of the repetitions{graph}. Memory is the most that torch's {seen} during a step,
less what was there before it: input, gradient of the output, weights and their gradients.

Powers are least-squares fits of log time or log memory over log size, with their standard errors, over the
larger half of the sizes, which stand beside them: at the smaller ones much of the time goes into starting
the operation. A standard error tells how far the points are from the line, not whether the machine was busier
during one than during another."""
    return f"{text}\n{PAGES if on_cpu else FUSED}"


def _paper() -> str:
    return "## The paper's table\n\n" + grid(
        ["", "general NL method, f(Θ Φᵀ) g", "CGNL method, Θ Φᵀ g"],
        [["time", "O(2 (NC)²)", "O(NC (P + 1))"], ["space", "O(2 (NC)²)", "O(NC (P + 1))"]],
    )


def _growth(points: Sequence[Point], quantity: str) -> str:
    """A row for each operation that was measured: the counted powers of N and C, and the measured ones."""
    rows = []
    for name, law in LAWS.items():
        if not any(p.operation == name for p in points):
            continue
        counted: Counted = getattr(law, quantity)
        cells = [name, f"{law.whose}: {counted.needs}"]
        for axis in ("N", "C"):
            curve = curve_of(points, name, axis)
            found = fit(values(curve, QUANTITIES[quantity][0]))
            cells += [counted.power[axis], "-" if found is None else f"**{found}**", _fitted(curve, found)]
        rows.append(cells)
    titles = [title for axis in "NC" for title in (f"power of {axis}", "measured", "fitted to")]
    return f"## How {quantity} grows\n\n" + grid(["operation", "counted by", *titles], rows)


def _fitted(curve: Sequence[Point], found: Fit | None) -> str:
    """Which points a power was fitted to, and what stayed as it was."""
    if found is None:
        return "-"
    first = curve[0]
    axis, fixed = first.axis, f"C = {first.channels:,}" if first.axis == "N" else f"N = {first.positions:,}"
    return f"{axis} = {', '.join(f'{size:,}' for size in found.sizes)}; {fixed}, batch {first.batch}"


def _side_by_side(points: Sequence[Point]) -> str:
    """The exact and the compact operation on the largest input that both were given."""
    found = [{_shape(p): p for p in points if p.operation == name and p.axis == "N"} for name in (EXACT, COMPACT)]
    shared = set.intersection(*map(set, found))
    if not shared:
        return ""
    largest = max(shared, key=math.prod)
    rows = [[p.operation, _number(p.milliseconds), _number(p.peak_mib)] for p in (of[largest] for of in found)]
    batch, channels, positions = largest
    side = channels * positions
    note = f"One matrix of {side:,} x {side:,} numbers of four bytes is {batch * 4 * side**2 / 2**20:,.0f} MiB."
    size = f"batch {batch}, C = {channels}, N = {positions}"
    return f"## The same input: {size}\n\n{grid(['operation', 'ms', 'MiB'], rows)}\n\n{note}"


def _shape(point: Point) -> tuple[int, int, int]:
    return point.batch, point.channels, point.positions


def _orders(points: Sequence[Point]) -> str:
    """How the Taylor series grows with P + 1, by a straight line: what it takes at any order is no part of a power."""
    curve = curve_of(points, COMPACT, "P + 1")
    if len(curve) < 2:
        return ""
    first = curve[0]
    rows = [
        [str(p.order), _number(p.milliseconds), f"{_number(p.ms_20)} to {_number(p.ms_80)}", _number(p.peak_mib)]
        for p in curve
    ]
    slope, start, error = line(values(curve, "milliseconds"))
    each = _number(slope) + ("" if error is None else f" ± {_number(error)}")
    sizes = f"batch {first.batch}, C = {first.channels}, N = {first.positions:,}"
    text = f"""A straight line through the times is {_number(start)} ms and {each} ms for each of the P + 1 powers.
The paper counts P + 1 for memory too; here Θ and Φ, with their P + 1 columns, are never built, and it need not grow."""
    table = grid(["P", "ms", "20 to 80 %", "MiB"], rows)
    return f"## Order of the Taylor series\n\nOf exp(θ φ), {sizes}:\n\n{table}\n\n{text}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _steps(point: Point) -> str:
    return "Forward + backward" if point.mode == "train" else "Forward"


def _measured(points: Sequence[Point], quantity: str) -> bool:
    return any(values(points, QUANTITIES[quantity][0]))


def draw(points: Sequence[Point], path: Path) -> None:
    """Time and memory, where it was measured, against positions and channels."""
    quantities = [quantity for quantity in QUANTITIES if _measured(points, quantity)]
    figure = _figure(11, 0.6 + 3.7 * len(quantities))
    axes = figure.subplots(len(quantities), 2, squeeze=False)
    for row, quantity in zip(axes, quantities, strict=True):
        for panel, axis in zip(row, "NC", strict=True):
            _panel(panel, points, quantity, axis)
            panel.set_title(f"{quantity} against {axis}", fontsize=9, loc="left")
            panel.legend(frameon=False, fontsize=7, loc="upper left")
            low, high = panel.get_ylim()
            room = 0.1 * len(panel.get_legend().get_texts())  # for the legend, above the curves
            panel.set_ylim(low, high * (high / low) ** room)
    _title(figure, points[0])
    figure.savefig(path, dpi=160)


def draw_time(points: Sequence[Point], path: Path) -> None:
    """Time against positions alone, beside the sizes of feature maps."""
    figure = _figure(9, 3.4)
    panel = figure.subplots()
    _panel(panel, points, "time", "N")
    for size in FEATURE_MAPS:
        panel.axvline(size, color="#dddddd", zorder=0)
    top = panel.secondary_xaxis("top")
    top.set_xticks(list(FEATURE_MAPS), list(FEATURE_MAPS.values()), fontsize=7, color="#777777")
    top.tick_params(which="both", length=0)
    top.spines["top"].set_visible(False)
    panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    _title(figure, points[0])
    figure.savefig(path, dpi=160)


def _panel(panel: Any, points: Sequence[Point], quantity: str, axis: str) -> None:
    field, unit = QUANTITIES[quantity]
    for name, law in LAWS.items():
        curve = curve_of(points, name, axis)
        pairs = values(curve, field)
        if not pairs:
            continue
        found = fit(pairs)
        fixed = f"C = {curve[0].channels}" if axis == "N" else f"N = {curve[0].positions}"
        label = f"{name} ({fixed}, batch {curve[0].batch})" + (f": {axis}^{found}" if found else "")
        style = {"color": law.colour, "markersize": 4, "linewidth": 1.3}
        panel.loglog(*zip(*pairs, strict=True), law.line, marker="o", markerfacecolor="white", label=label, **style)
        if filled := [pair for pair in pairs if found and pair[0] in found.sizes]:
            panel.loglog(*zip(*filled, strict=True), "o", **style)
    panel.set_xlabel({"N": "positions N", "C": "channels C"}[axis], fontsize=9)
    panel.set_ylabel(unit, fontsize=9)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _title(figure: Any, first: Point) -> None:
    where = f"{_steps(first)}, {first.dtype}, {first.device}, torch {first.torch.partition('+')[0]}"
    figure.suptitle(f"{where}; powers are fitted to the filled points", fontsize=9)


def _figure(width: float, height: float) -> Any:
    return need("matplotlib.figure", "bench").Figure(figsize=(width, height), layout="constrained")
