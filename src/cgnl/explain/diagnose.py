"""``cgnl diagnose``: do the attention and the second-order head of a trained network matter?"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..engine.atomic_io import make_folder, write_csv
from ..engine.config import SYNTHETIC
from ..engine.evaluate import Test
from ..extras import need
from ..heads import second_order_pools
from .diagnosis import Diagnosis, diagnose_blocks, frames_shuffled
from .maps import blocks_of, find_block


def run(test: Test, block: str | None = None) -> Diagnosis:
    """The diagnosis of a network on the samples of its test."""
    network, videos = test.trained.network, test.dataset.kind == "videos"
    known, heads = blocks_of(network), second_order_pools(network)
    name = find_block(known, block) if block or not (heads or videos) else ""

    def outcomes() -> list[bool]:
        test.run()
        return [prediction.right for prediction in test.task.predictions]

    data = test.config.data
    views = data.test_clips * data.test_crops if videos and test.dataset.name not in SYNTHETIC else 1
    shuffled = {"frames in random order": lambda: frames_shuffled(network)} if videos and not block else {}
    blocks = {name: known[name]} if block else known
    return diagnose_blocks(blocks, outcomes, views, None if block else heads, shuffled)


def table(result: Diagnosis, samples: int) -> list[str]:
    """The diagnosis in lines of text."""
    lines = [f"{f'replaced, {samples:,} samples':34}   top-1   change  lost   won         p"]
    for o in result.outcomes:
        line = f"{o.attention:34} {o.top1:6.2f}%"
        if o is not result.outcomes[0]:
            line += f" {o.change:+8.2f} {o.lost:5} {o.won:5} {o.p:9.2g}"
        lines.append(line)
    lines += ["lost, won: samples that become wrong, right. p: McNemar's exact test.", ""]
    for name, (of_all, median) in result.added.items():
        lines.append(f"what {name} adds to its input: {of_all:.3g} % of its size; {median:.3g} % in the median sample")
    if not result.spreads and not result.added:
        return lines[:-1]
    if not result.spreads:
        return [*lines, "A non-local block's attention is a matrix: it has no number for each group."]
    lines += ["", "attention by group            order        mean   deviation  negative  deviation / |mean|"]
    for s in result.spreads:
        name = f"{s.block}, group {s.group}"
        lines.append(f"{name:28} {s.order:>6} {s.mean:11.4g} {s.deviation:11.4g} {s.negative:9.1%} {s.variation:19.3g}")
    return lines


def write(result: Diagnosis, output: Path, title: str) -> list[Path]:
    """Both tables as CSV and the plot; returns their names."""
    output = output.with_suffix("") if output.suffix in (".csv", ".png") else output
    make_folder(output.parent)
    paths = [output.with_name(f"{output.name}{end}") for end in (".csv", "_groups.csv", ".png")]
    write_rows(result.outcomes, paths[0])
    plot(result, title).savefig(paths[2], dpi=160)
    if not result.spreads:
        return [paths[0], paths[2]]
    write_rows(result.spreads, paths[1])
    return paths


def write_rows(rows: Sequence[Any], path: Path) -> None:
    """Dataclasses of one type as CSV."""
    write_csv(path, list(asdict(rows[0])), (list(asdict(row).values()) for row in rows))


def plot(result: Diagnosis, title: str) -> Any:
    """Accuracy by what is in the attention's place, and the attention of each group over the samples."""
    figures = need("matplotlib.figure", "explain")
    names, count = list(result.values), 1 + len(result.values)
    figure = figures.Figure(figsize=(3.6 + 3.6 * count, 3.2), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    bars = result.outcomes[::-1]
    axes[0].barh([o.attention for o in bars], [o.top1 for o in bars], color=["#8c8c8c"] * (len(bars) - 1) + ["#2b6cb0"])
    for place, o in enumerate(bars):
        change = f" ({o.change:+.2f}, p = {o.p:.2g})" if place < len(bars) - 1 else ""
        text = f"{o.top1:.2f}{change}"
        axes[0].annotate(text, (o.top1, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes[0].set_xlabel("top-1, %")
    axes[0].set_xlim(0, 175)
    axes[0].set_xticks(range(0, 101, 25))
    for axis, name in zip(axes[1:], names, strict=True):
        _spread_plot(axis, result, name)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}: what is in the attention's place", fontsize=9)
    return figure


def _spread_plot(axis: Any, result: Diagnosis, name: str) -> None:
    """Boxes of each group and order, in units of the mean size."""
    values, orders = result.values[name], result.orders[name]
    width = 0.8 / len(orders)
    scaled = values / values.abs().mean(0).clamp_min(1e-300)  # [samples, G, K]
    for k, order in enumerate(orders):
        places = [group + (k - (len(orders) - 1) / 2) * width for group in range(values.shape[1])]
        boxes = axis.boxplot(
            scaled[..., k].numpy(), positions=places, widths=0.8 * width, patch_artist=True, sym=".", manage_ticks=False
        )
        for box in boxes["boxes"]:
            box.set(facecolor=f"C{k}", alpha=0.6, label=f"order {order}" if box is boxes["boxes"][0] else None)
        for point in boxes["fliers"]:
            point.set(markersize=2, markeredgecolor="#777777")
    axis.axhline(0, color="#777777", linewidth=0.8)
    axis.set_xticks(range(values.shape[1]))
    axis.set(xlabel=f"group of {name}", ylabel="attention / mean size")
    if len(orders) > 1:
        axis.legend(fontsize=7, frameon=False)
