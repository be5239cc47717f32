"""Draw the difference of every measured network to the plain one.

``python -m benchmarks.summary docs/figures/summary.png``
"""

import sys
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

from cgnl.experiments.summary import Pair, summarize
from cgnl.experiments.tables import TABLES

ROOT = Path(__file__).parents[1]
MEASURED = {
    "CUB, 224 px": ("small", ("cub-blocks", "cub-kernels", "cub-groups-r50")),
    "CUB, 224 px, held-out training pictures": ("small", ("cub-tries",)),
    "CUB, 448 px": ("cub-448", ("cub-blocks",)),
    "CUB, 448 px, original files": ("heads", ("cub-heads",)),
    "Pets, 448 px": ("heads", ("pets-heads",)),
    "Gestures": ("small", ("gestures",)),
}
"""Dataset -> folder under benchmarks/results, and the tables whose runs are there."""
LIMIT = 6.0
"""Points shown to either side; longer intervals end in an arrow."""


@cache
def differences(folder: str, tables: tuple[str, ...]) -> dict[str, Pair]:
    """Row -> its difference to the first row of its table, where there are two seeds or more."""
    found: dict[str, Pair] = {}
    for name in tables:
        summary = summarize(name, TABLES[name], ROOT / "benchmarks" / "results" / folder)
        plain = summary.lines[0].row.name
        for pair in summary.pairs:
            if pair.before.name == plain and pair.difference.half_width is not None:
                found.setdefault(pair.after.name, pair)
    return found


def draw() -> Figure:
    """One line for each network, one block of lines for each dataset."""
    groups = {title: list(differences(*where).values()) for title, where in MEASURED.items()}
    heights = [len(pairs) for pairs in groups.values()]
    figure = Figure(figsize=(8.6, 1.2 + 0.27 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(groups), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    for axis, (title, pairs) in zip(axes, groups.items(), strict=True):
        for place, pair in enumerate(reversed(pairs)):
            mean, half = pair.difference.mean, pair.difference.half_width or 0.0
            low, high = max(mean - half, -LIMIT), min(mean + half, LIMIT)
            axis.plot([low, high], [place, place], color="#2b6cb0", linewidth=1.6)
            for end, marker, beyond in ((low, "<", mean - half < -LIMIT), (high, ">", mean + half > LIMIT)):
                axis.plot(end, place, marker if beyond else "|", color="#2b6cb0", markersize=5, clip_on=False)
            axis.plot(mean, place, "o", color="#2b6cb0", markersize=5)
            if pair.paper is not None:
                axis.plot(pair.paper, place, "D", color="#c44e52", fillstyle="none", markersize=6)
        labels = [f"{pair.after.label}, {pair.difference.count} seeds" for pair in reversed(pairs)]
        axis.set_yticks(range(len(pairs)), labels, fontsize=8)
        axis.set_ylim(-0.7, len(pairs) - 0.3)
        axis.set_xlim(-LIMIT, LIMIT)
        axis.axvline(0, color="#bbbbbb", zorder=0)
        axis.set_title(title, fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("top-1, points above the plain network; 95 % interval over seeds")
    axes[0].plot([], [], "o-", color="#2b6cb0", label="measured")
    axes[0].plot([], [], "D", color="#c44e52", fillstyle="none", label="paper")
    axes[0].legend(frameon=False, fontsize=8, loc="lower right", ncols=2, bbox_to_anchor=(1, 1))
    return figure


if __name__ == "__main__":
    draw().savefig(sys.argv[1], dpi=130)
