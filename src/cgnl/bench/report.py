"""Rows as a table on the screen, as CSV and as a plot."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..atomic_io import save_figure
from ..extras import need
from .measure import Roofline
from .registry import Setting
from .runner import Row, device_name


def _significant(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


HEADING = ["benchmark", "row", "mode", "shape", "dtype", "kernel", "settings", "device", "torch", "time"]
STEP_COLUMNS = [
    ("ms", "ms", _significant),
    ("20 %", "ms_20", _significant),
    ("80 %", "ms_80", _significant),
    ("eager", "eager_ms", _significant),
    ("add_", "eager_adds", "{:.0f}".format),
    ("ratio", "ratio", "{:.2f}".format),
    ("added ms", "added_ms", "{:+.4g}".format),
    ("MiB", "peak_mib", "{:.1f}".format),
    ("GFLOP", "gflop", _significant),
    ("TFLOP/s", "tflop_per_s", _significant),
    ("roofline", "roofline", "{:.0%}".format),
    ("error", "error", "{:.1e}".format),
]
"""Title, field and format of the columns."""
SERVE_COLUMNS = [
    ("samples/s", "per_second", "{:.1f}".format),
    ("ms", "ms", "{:.4g}".format),
    ("99 %", "ms_99", "{:.4g}".format),
    ("requests", "requests", str),
    ("error", "error", "{:.1e}".format),
]

WIDTH = 9

LEGEND = """ms: median of the repetitions, and their 20 % and 80 % quantiles; on a GPU, of a CUDA graph with the L2
cache flushed before each. eager: the same step called from Python: launching kernels can take longer than
running them. add_: eager, as a multiple of what adding to one number in place costs Python.
ratio: of ms to that of {baseline}, or of the row that is named at the end of the line.
MiB: peak memory allocated during a step, less what was allocated before it. Input, gradient of the output,
weights and their gradients are there before; the output is alive.
GFLOP: of the equations, two for a multiply-add.
roofline: share of the speed at which the measured matrix product or copy would be the only limit.
error: relative, of the output and in training of the input's gradient, to the reference in float64; of a
network, that of each of its blocks.
-: not measured; of rows that are not CGNL only the shape and finite values are checked."""

SERVE_LEGEND = """samples/s: throughput, input on the device, without waiting for one result before the next request.
ms, 99 %: latency of a request from input to prediction in the host's memory: median and 99th percentile.
error: of the logits, relative, to the reference in float64; the weights are random.
folded: cgnl.export.for_inference, batch norms folded into convolutions; on a GPU, blocks are fused in all rows but the
first. graph: replayed as a CUDA graph. plain: the same network without blocks."""


def header(setting: Setting, roofline: Roofline | None = None) -> str:
    """The lines above a table."""
    where = f"{setting.summary}; {device_name(setting.device)}, torch {torch.__version__}"
    what = f"{setting.dtype_name}, {setting.kernel}"
    if roofline is None:
        return f"cgnl bench serve: {' x '.join(map(str, setting.shape[1:]))}, {what}\n{where}"
    shape = " x ".join(map(str, setting.shape))
    return (
        f"cgnl bench {setting.benchmark}: {setting.mode}, {shape}, {what}\n{where}\n"
        f"{_precision(setting)}; measured here: {roofline.flops / 1e12:.4g} TFLOP/s by a matrix product, "
        f"{roofline.bytes / 1e9:.4g} GB/s by a copy"
    )


def _precision(setting: Setting) -> str:
    if setting.tf32:
        return "parameters and input in float32, multiplied as TF32"
    if setting.dtype_name == "float32":
        return "everything in float32, without TF32"
    if setting.autocast:
        return f"parameters in float32, input in {setting.dtype_name}, under autocast"
    return f"modules and input in {setting.dtype_name}, the norms of our blocks in float32"


def columns(benchmark: str) -> list[tuple[str, str, Callable[[Any], str]]]:
    """The columns on the screen."""
    if benchmark == "serve":
        return SERVE_COLUMNS
    return [column for column in STEP_COLUMNS if column[1] != "added_ms" or benchmark == "network"]


def title_line(benchmark: str, width: int) -> str:
    label = f"{'batch  ' if benchmark == 'serve' else ''}{'row':{width}}"
    return " ".join([label, *(f"{title:>{WIDTH}}" for title, _, _ in columns(benchmark))])


def line(row: Row, width: int) -> str:
    label = f"{row['row']:{width}}"
    if row["benchmark"] == "serve":
        label = f"{row['shape'].partition('x')[0]:>5}  {label}"
    if row.get("ms") is None and row.get("error") is None:
        return f"{label} {'-':>{WIDTH}} {row['note']}"
    values = [(row.get(field), write) for _, field, write in columns(row["benchmark"])]
    cells = [f"{'-' if value is None else write(value):>{WIDTH}}" for value, write in values]
    return " ".join([label, *cells, row["note"]]).rstrip()


def csv_fields(benchmark: str) -> list[str]:
    measured = SERVE_COLUMNS if benchmark == "serve" else STEP_COLUMNS
    return [*HEADING, *(field for _, field, _ in measured), "note"]


def check_csv(path: Path, benchmark: str) -> None:
    """Refuse a file that holds another table, before an hour is spent on rows that cannot be written."""
    if path.exists() and path.stat().st_size and path.read_text().splitlines()[0] != ",".join(csv_fields(benchmark)):
        raise ValueError(f"{path} exists and is not a table of this benchmark: give another name")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Append rows, under a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or not path.stat().st_size
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, csv_fields(rows[0]["benchmark"]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """Bars of milliseconds, with their quantiles, and of memory where it was measured."""
    timed = [row for row in rows if row.get("ms") is not None][::-1]  # the first on top
    count = 2 if any(row.get("peak_mib") is not None for row in timed) else 1
    size = 3 + 3.2 * count, 1.3 + 0.36 * len(timed)
    figure = need("matplotlib.figure", "bench").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    panels = [
        ("milliseconds, median and 20 to 80 %", "#2b6cb0", "ms", _significant),
        ("MiB during a step", "#8c8c8c", "peak_mib", "{:.0f}".format),
    ]
    names = [row["row"] for row in timed]
    spread = [[row["ms"] - row["ms_20"] for row in timed], [row["ms_80"] - row["ms"] for row in timed]]
    for axis, (label, colour, field, write) in zip(axes, panels, strict=False):
        values = [row.get(field) for row in timed]
        error = spread if field == "ms" else None
        bars = axis.barh(names, [value or 0 for value in values], color=colour, xerr=error, ecolor="#777777")
        axis.bar_label(bars, ["-" if value is None else write(value) for value in values], padding=4, fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, dpi=160)
