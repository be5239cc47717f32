"""Rows as a table on the screen, as CSV and as a picture."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from ..extras import need
from .roofline import Ceilings
from .runner import Row, device_name
from .settings import Setting

Column = tuple[str, str, Callable[[Any], str]]


def _significant(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


COLUMNS: list[Column] = [
    ("ms", "ms", _significant),
    ("20 %", "ms_20", _significant),
    ("80 %", "ms_80", _significant),
    ("eager", "eager_ms", _significant),
    ("ratio", "ratio", "{:.2f}".format),
    ("added ms", "added_ms", "{:+.4g}".format),
    ("MiB", "peak_mib", "{:.1f}".format),
    ("GFLOP", "gflop", _significant),
    ("TFLOP/s", "tflop_per_s", _significant),
    ("roofline", "roofline", "{:.0%}".format),
    ("error", "error", "{:.1e}".format),
]
"""Title, field of a row, and how its value is written."""

WIDTH = 9


def header(setting: Setting, ceilings: Ceilings) -> str:
    where = f"{device_name(setting.device)}, torch {torch.__version__}"
    shape = " x ".join(map(str, setting.shape))
    return "\n".join(
        [
            f"cgnl bench {setting.benchmark}: {setting.mode}, {shape}, {setting.dtype_name}, {setting.kernel}",
            f"{setting.words}; {where}",
            f"{_precision(setting)}; measured here: {ceilings.flops / 1e12:.4g} TFLOP/s by a matrix product, "
            f"{ceilings.bytes / 1e9:.4g} GB/s by a copy",
        ]
    )


def _precision(setting: Setting) -> str:
    if setting.tf32:
        return "parameters and input in float32, multiplied as TF32"
    if setting.dtype_name == "float32":
        return "everything in float32, without TF32"
    if setting.autocast:
        return f"parameters in float32, input in {setting.dtype_name}, under autocast"
    return f"modules and input in {setting.dtype_name}, the norms of our blocks in float32"


def legend(baseline: str) -> str:
    return "\n".join(
        [
            "ms: median of the repetitions, and their 20 % and 80 % quantiles; on a GPU, of a CUDA graph with the L2",
            "cache flushed before each. eager: the same step as Python calls it: starting kernels can take longer than",
            f"running them. ratio: of ms to that of {baseline}, or of the row that is named at the end of the line.",
            "MiB: most allocated during a step, less what was allocated before it. Input, gradient of the output,",
            "weights and their gradients are there before; the output is alive.",
            "GFLOP: of the equations, two for a multiply-add.",
            "roofline: share of the speed at which the measured matrix product or copy would be the only limit.",
            "error: relative, of the output and in training of the input's gradient, to the reference in float64; of a",
            "network, that of each of its blocks.",
            "-: not measured; rows that are no CGNL have only their shape and finite values checked.",
        ]
    )


def columns(benchmark: str) -> list[Column]:
    return [column for column in COLUMNS if column[1] != "added_ms" or benchmark == "network"]


def title_line(benchmark: str, width: int) -> str:
    return " ".join([f"{'row':{width}}", *(f"{title:>{WIDTH}}" for title, _, _ in columns(benchmark))])


def line(row: Row, width: int) -> str:
    if row.ms is None and row.error is None:
        return f"{row.row:{width}} {'-':>{WIDTH}} {row.note}"
    values = [(getattr(row, field), write) for _, field, write in columns(row.benchmark)]
    cells = [f"{'-' if value is None else write(value):>{WIDTH}}" for value, write in values]
    return " ".join([f"{row.row:{width}}", *cells, row.note]).rstrip()


def check_csv(path: Path, kind: type = Row) -> None:
    """Refuse a file that holds something else, before an hour is spent on what cannot be written."""
    if path.exists() and path.stat().st_size and path.read_text().splitlines()[0] != ",".join(names(kind)):
        raise ValueError(f"{path} is there, and is no table of this benchmark: give another name")


def write_csv(rows: Sequence[Any], path: Path, kind: type = Row) -> None:
    """Rows are added to those that are there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, names(kind))
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Bars of milliseconds, with their quantiles, and of memory where it was measured."""
    timed = [row for row in rows if row.ms is not None][::-1]  # the first on top
    count = 2 if any(row.peak_mib is not None for row in timed) else 1
    size = 3 + 3.2 * count, 1.3 + 0.36 * len(timed)
    figure = need("matplotlib.figure", "bench").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    panels = [
        ("milliseconds, median and 20 to 80 %", "#2b6cb0", "ms", "ms_80", _significant),
        ("MiB during a step", "#8c8c8c", "peak_mib", "peak_mib", "{:.0f}".format),
    ]
    for axis, (label, colour, field, end, write) in zip(axes, panels, strict=False):
        axis.barh([row.row for row in timed], [getattr(row, field) or 0 for row in timed], color=colour)
        for place, row in enumerate(timed):
            value, right = getattr(row, field), getattr(row, end)
            text, x = ("-", 0) if value is None else (write(value), max(value, right))
            axis.annotate(text, (x, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    for place, row in enumerate(timed):
        axes[0].plot([row.ms_20, row.ms_80], [place, place], color="#777777", linewidth=1.5)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
