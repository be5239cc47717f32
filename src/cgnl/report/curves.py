"""Curves of ``metrics.csv`` as an SVG that takes the colours of its page."""

import io
import re
from collections.abc import Sequence
from typing import Any

from ..extras import need
from .html import Markup
from .run import Run

NOT_DRAWN = ("epoch", "step", "seconds", "unreadable", "skipped", "test_count", "test_views")
INK = "#010203"
"""Stands for the page's own colour until the SVG is written."""
COLUMNS = 3
SPREAD = 10
"""A loss that was once this many times its median has a logarithmic axis, or the rest of it would lie flat."""
DETAIL = re.compile(r"(box|mask)_(ap_|ap75|ar_)")
"""Numbers of COCO's twelve that stand in the table of results alone."""


def panels(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What is drawn: ``train_loss`` and ``test_loss`` share a panel, everything else has one of its own."""
    names = dict.fromkeys(
        n for run in runs for row in run.rows for n in row if n not in NOT_DRAWN and not DETAIL.search(n)
    )
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.removeprefix("train_").removeprefix("test_"), []).append(name)
    return dict(sorted(found.items(), key=lambda item: item[0] in ("lr", "samples_per_second")))  # results first


def is_share(name: str) -> bool:
    """Whether a number is a share, to be said in per cent."""
    return re.search(r"top[15]$|(box|mask)_a[pr]", name) is not None


def words(name: str) -> str:
    """The name of a number in words."""
    known = {"lr": "learning rate", "seconds": "time"}
    known |= {f"best_{n}": f"best test {n.replace('_', ' ')} between epochs, best.ckpt" for n in ("top1", "box_ap")}
    text = re.sub(r"top([15])", r"top-\1", known.get(name, name.replace("_", " ")))
    return re.sub(r"(box|mask) (a[pr])", lambda found: f"{found[1]} {found[2].upper()}", text)


def draw_curves(runs: Sequence[Run]) -> Markup | None:
    """All curves of some runs; nothing where no epoch has ended."""
    shown = panels(runs)
    if not shown:
        return None
    matplotlib, figures = need("matplotlib", "explain"), need("matplotlib.figure", "explain")
    ink = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    style = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10, **ink}
    with matplotlib.rc_context(style):
        lines = -(-len(shown) // COLUMNS)
        figure = figures.Figure(figsize=(10.6, 2.5 * lines + 0.4 * (len(runs) > 1)), layout="constrained")
        axes = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
        for axis, (title, names) in zip(axes, shown.items(), strict=False):
            _panel(axis, title, names, runs)
        for axis in axes[len(shown) :]:
            axis.set_visible(False)
        if len(runs) > 1:
            looks = [{"color": f"C{i}", "label": run.title} for i, run in enumerate(runs)]
            if any(len(names) > 1 for names in shown.values()):
                looks += [{"color": INK, "label": "test"}, {"color": INK, "label": "training", "linestyle": "--"}]
            handles = [need("matplotlib.lines", "explain").Line2D([], [], **look) for look in looks]
            figure.legend(
                handles=handles, loc="outside upper left", ncols=len(looks) if len(looks) <= 6 else 4, frameon=False
            )
        return svg(figure)


def _panel(axis: Any, title: str, names: Sequence[str], runs: Sequence[Run]) -> None:
    """One panel: colours tell runs apart, or what is drawn where there is only one; training is dashed."""
    for i, run in enumerate(runs):
        for name in sorted(names, reverse=True):  # training before testing
            points = [(row["epoch"], row[name] * (100 if is_share(name) else 1)) for row in run.rows if name in row]
            if points:
                training = name.startswith("train_")
                look = {"marker": "." if len(points) < 30 else "", "label": "training" if training else "test"}
                colour = f"C{i if len(runs) > 1 else int(training)}"
                line = "--" if training else "-"
                axis.plot(*zip(*points, strict=True), line, color=colour, clip_on=False, **look)  # 0 is on the edge
    axis.set_title(f"{words(title)}{', %' if is_share(title) else ''}", loc="left")
    axis.set_xlabel("epoch")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#888888", alpha=0.25)
    axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    values = [value for line in axis.get_lines() for value in line.get_ydata()]
    if "loss" in title and min(values) > 0 and max(values) > SPREAD * sorted(values)[len(values) // 2]:
        axis.set_yscale("log")
    elif title != "lr" and axis.dataLim.ymin >= 0:
        axis.update_datalim([(1, 0)], updatex=False)  # before the margin above the points is made
        axis.autoscale_view()
        axis.set_ylim(bottom=0)
    if len(names) > 1 and len(runs) == 1:
        axis.legend(frameon=False, fontsize=8)


def svg(figure: Any) -> Markup:
    """A figure for a page: without a background, in the colour of its text, and naming no address."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue().decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)  # a page knows them
    return Markup(text[text.index("<svg") :].replace(INK, "currentColor"))
