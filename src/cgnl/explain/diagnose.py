"""Diagnose a trained network on its test samples; print, write and plot the result."""

import operator
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..atomic_io import make_folder, write_csv
from ..engine.evaluate import Test
from ..engine.tasks.detection import SURE, same_objects
from ..extras import need
from ..heads import second_order_pools
from .diagnosis import DetectorOutcome, Diagnosis, Outcome, compare_classes, diagnose_blocks, frames_shuffled
from .figure import save
from .maps import find_blocks, find_module
from .verdict import Verdict, count_changed


def run(test: Test, block: str | None = None) -> Diagnosis:
    """Diagnose all blocks and second-order heads at once, or one block."""
    network, task = test.trained.network, test.task
    blocks, heads, more = find_blocks(network), second_order_pools(network), {}
    if block or not (heads or task.has_frames):
        find_module(blocks, block)  # raises if there is none
    if block:
        blocks, heads = {block: blocks[block]}, {}
    elif task.has_frames:
        more = {"frames in random order": lambda: frames_shuffled(network)}

    predicted: list[list[Any]] = []  # by each test

    def classify() -> list[bool]:
        test.run()
        predicted.append([int(prediction.predicted) for prediction in task.predictions])
        return [prediction.right for prediction in task.predictions]

    def find() -> tuple[float, list[Any]]:
        box_ap = 100 * test.run()["test_box_ap"]
        predicted.append(task.found_by_image())  # pyright: ignore[reportAttributeAccessIssue]
        return box_ap, predicted[-1]

    names, view = task.classifies, task.view_in_test(test.config.data)
    compare = compare_classes if names else compare_objects
    result = diagnose_blocks(blocks, classify if names else find, view.clips * view.crops, heads, more, compare)
    if not blocks:
        return result
    without = predicted[[outcome.attention for outcome in result.outcomes].index("block off")]
    added = {name: share.median for name, share in result.added.items()}
    changed = count_changed(predicted[0], without, operator.eq if names else same_objects)
    return replace(result, verdict=Verdict(added, changed, len(without)))


def compare_objects(name: str, truth: tuple[float, list[Any]], now: tuple[float, list[Any]]) -> DetectorOutcome:
    """Compare a test of a detector with that of the unchanged one, image by image."""
    return DetectorOutcome(name, now[0], count_changed(truth[1], now[1], same_objects), now[0] - truth[0])


def table(result: Diagnosis, samples: int) -> list[str]:
    """Format a diagnosis as lines of text."""
    finds = isinstance(result.outcomes[0], DetectorOutcome)
    columns = "box AP   change  images" if finds else " top-1   change  lost   won         p"
    lines = [f"{f'replaced, {samples:,} samples':34}  {columns}"]
    for o in result.outcomes:
        line = f"{o.attention:34} {score(o):6.2f}%"
        if o is not result.outcomes[0]:
            line += f" {o.change:+8.2f}"
            line += f" {o.changed:9}" if isinstance(o, DetectorOutcome) else f" {o.lost:5} {o.won:5} {o.p:9.2g}"
        lines.append(line)
    if finds:
        lines.append(f"images: those in which other objects are found, of a score of {SURE:g} or more.")
    else:
        lines.append("lost, won: samples that become wrong, right. p: McNemar's exact test.")
    if result.added:
        lines.append("")
    for name, (of_all, median) in result.added.items():
        lines.append(f"what {name} adds to its input: {of_all:.3g} % of its size; {median:.3g} % in the median sample")
    if result.spreads:
        lines += ["", "attention by group            order        mean   deviation  negative  deviation / |mean|"]
    elif result.added:
        lines.append("A non-local block's attention is a matrix: it has no number for each group.")
    for s in result.spreads:
        name = f"{s.block}, group {s.group}"
        lines.append(f"{name:28} {s.order:>6} {s.mean:11.4g} {s.deviation:11.4g} {s.negative:9.1%} {s.variation:19.3g}")
    return [*lines, "", result.verdict.words()] if result.verdict else lines


def score(outcome: Outcome | DetectorOutcome) -> float:
    """The accuracy, or the average precision of the boxes, in percent."""
    return outcome.top1 if isinstance(outcome, Outcome) else outcome.box_ap


def write(result: Diagnosis, output: Path, title: str) -> list[Path]:
    """Write both tables as CSV, and the plot; return their paths."""
    output = output.with_suffix("") if output.suffix in (".csv", ".png") else output
    make_folder(output.parent)
    outcomes, groups, figure = (output.with_name(f"{output.name}{end}") for end in (".csv", "_groups.csv", ".png"))
    write_rows(result.outcomes, outcomes)
    if result.spreads:
        write_rows(result.spreads, groups)
    save(plot(result, title), figure, dpi=160)
    return [outcomes, groups, figure] if result.spreads else [outcomes, figure]


def write_rows(rows: Sequence[Any], path: Path) -> None:
    """Write dataclasses of one type as CSV."""
    write_csv(path, list(asdict(rows[0])), (list(asdict(row).values()) for row in rows))


def plot(result: Diagnosis, title: str) -> Any:
    """Plot the accuracy with each replacement, and the attention of each group over the samples."""
    count = 1 + len(result.values)
    figure = need("matplotlib.figure", "explain").Figure(figsize=(3.6 + 3.6 * count, 3.2), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    first, *rest = result.outcomes
    bars = [*reversed(rest), first]
    colours = ["#8c8c8c"] * len(rest) + ["#2b6cb0"]
    axes[0].barh([o.attention for o in bars], [score(o) for o in bars], color=colours)
    for place, o in enumerate(bars):
        p = f", p = {o.p:.2g}" if isinstance(o, Outcome) else ""
        text = f"{score(o):.2f}" if o is first else f"{score(o):.2f} ({o.change:+.2f}{p})"
        axes[0].annotate(text, (score(o), place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes[0].set(
        xlabel="top-1, %" if isinstance(first, Outcome) else "box AP, %", xlim=(0, 100), xticks=range(0, 101, 25)
    )
    for axis, name in zip(axes[1:], result.values, strict=True):
        _plot_groups(axis, result, name)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}: what is in the attention's place", fontsize=9, parse_math=False)
    if result.verdict:
        text = textwrap.fill(result.verdict.words(), int(figure.get_figwidth() * 15.5))
        figure.supxlabel(text, fontsize=8, x=0.01, ha="left")
    return figure


def _plot_groups(axis: Any, result: Diagnosis, name: str) -> None:
    """Draw a box for each group and order, in units of the mean size."""
    values, orders = result.values[name], result.orders[name]
    width = 0.8 / len(orders)
    scaled = values / values.abs().mean(0).clamp_min(1e-300)  # [samples, G, K]
    options = {"widths": 0.8 * width, "patch_artist": True, "sym": ".", "manage_ticks": False}
    for k, order in enumerate(orders):
        places = [group + (k - (len(orders) - 1) / 2) * width for group in range(values.shape[1])]
        parts = axis.boxplot(scaled[..., k].numpy(), positions=places, **options)
        for box in parts["boxes"]:
            box.set(facecolor=f"C{k}", alpha=0.6, label=f"order {order}" if box is parts["boxes"][0] else None)
        for point in parts["fliers"]:
            point.set(markersize=2, markeredgecolor="#777777")
    axis.axhline(0, color="#777777", linewidth=0.8)
    axis.set(xlabel=f"group of {name}", ylabel="attention / mean size", xticks=range(values.shape[1]))
    if len(orders) > 1:
        axis.legend(fontsize=7, frameon=False)
