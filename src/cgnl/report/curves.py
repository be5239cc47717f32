"""Draw the curves of ``metrics.csv`` as an SVG in the colours of its page."""

import io
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from markupsafe import Markup

from ..extras import need
from .run import Run

NOT_DRAWN = ("epoch", "step", "seconds", "unreadable", "skipped", "test_count", "test_views")
INK = "#010203"  # stands for the page's text colour
COLUMNS = 3
SPREAD = 10  # a loss with a maximum above this many medians gets a logarithmic axis
DETAIL = re.compile(r"(box|mask)_(ap_|ap75|ar_)")  # those of COCO's numbers that only the table of results shows


def panels(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Columns by panel: ``train_loss`` and ``test_loss`` share one, everything else has its own.

    A panel needs a curve: one whose columns have a single epoch in every run is left out.
    """
    counts = [Counter(name for row in run.rows for name in row) for run in runs]
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for count in counts for name in count):
        if name not in NOT_DRAWN and not DETAIL.search(name):
            found.setdefault(name.removeprefix("train_").removeprefix("test_"), []).append(name)
    found = {title: names for title, names in found.items() if any(c[n] > 1 for c in counts for n in names)}
    return dict(sorted(found.items(), key=lambda item: item[0] in ("lr", "samples_per_second")))  # results first


def is_share(name: str) -> bool:
    """Whether a number is a share, shown in percent."""
    return re.search(r"top[15]$|(box|mask)_a[pr]|macro_f1$|ece$", name) is not None


def words(name: str) -> str:
    """Spell out the name of a number."""
    known = {"lr": "learning rate", "seconds": "time", "macro_f1": "macro F1", "ece": "calibration error"}
    known |= {f"test_{n}": f"test {known[n]}" for n in ("macro_f1", "ece")}
    known |= {f"best_{n}": f"best test {n.replace('_', ' ')} between epochs, best.ckpt" for n in ("top1", "box_ap")}
    text = re.sub(r"top([15])", r"top-\1", known.get(name, name.replace("_", " ")))
    return re.sub(r"(box|mask) (a[pr])", lambda found: f"{found[1]} {found[2].upper()}", text)


def draw_curves(runs: Sequence[Run]) -> Markup | None:
    """Draw all curves; None before the end of the second epoch."""
    shown = panels(runs)
    if not shown:
        return None
    with page_style():
        lines = -(-len(shown) // COLUMNS)
        figure = need("matplotlib.figure", "explain").Figure(
            figsize=(10.6, 2.5 * lines + 0.4 * (len(runs) > 1)), layout="constrained"
        )
        axes = figure.subplots(lines, COLUMNS, squeeze=False).ravel()
        for axis, (title, names) in zip(axes, shown.items(), strict=False):
            _panel(axis, title, names, runs)
        for axis in axes[len(shown) :]:
            axis.set_visible(False)
        if len(runs) > 1:
            entries = [{"color": f"C{i}", "label": run.title.replace("$", r"\$")} for i, run in enumerate(runs)]
            if any(len(names) > 1 for names in shown.values()):
                entries += [{"color": INK, "label": "test"}, {"color": INK, "label": "training", "linestyle": "--"}]
            handles = [need("matplotlib.lines", "explain").Line2D([], [], **entry) for entry in entries]
            columns = len(entries) if len(entries) <= 6 else 4
            figure.legend(handles=handles, loc="outside upper left", ncols=columns, frameon=False)
        return to_svg(figure)


def page_style() -> AbstractContextManager[Any]:
    """How figures of a page are drawn: text as text, in its colour."""
    ink = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    style = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10, **ink}
    return need("matplotlib", "explain").rc_context(style)


def _panel(axis: Any, title: str, names: Sequence[str], runs: Sequence[Run]) -> None:
    """Draw one panel; colours tell runs apart, or training (always dashed) from test if there is one run."""
    for i, run in enumerate(runs):
        for name in sorted(names, reverse=True):  # training before testing
            scale, training = 100 if is_share(name) else 1, name.startswith("train_")
            points = [(row["epoch"], row[name] * scale) for row in run.rows if name in row]
            if points:
                style = {"linestyle": "--" if training else "-", "label": "training" if training else "test"}
                colour, marker = f"C{i if len(runs) > 1 else int(training)}", "." if len(points) < 30 else ""
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, clip_on=False, **style)
    axis.set_title(f"{words(title)}{', %' if is_share(title) else ''}", loc="left")
    axis.set_xlabel("epoch")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#888888", alpha=0.25)
    axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    values = [value for line in axis.get_lines() for value in line.get_ydata()]
    if "loss" in title and min(values) > 0 and max(values) > SPREAD * sorted(values)[len(values) // 2]:
        axis.set_yscale("log")
    elif title != "lr" and axis.dataLim.ymin >= 0:
        axis.update_datalim([(1, 0)], updatex=False)  # before the margin above the points is added
        axis.autoscale_view()
        axis.set_ylim(bottom=0)
    if is_share(title):
        axis.set_ylim(top=min(axis.get_ylim()[1], 100))
    if len(names) > 1 and len(runs) == 1:
        axis.legend(frameon=False, fontsize=8)


def to_svg(figure: Any) -> Markup:
    """Convert a figure to an SVG element without a background or any address, in the page's text colour."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)  # HTML knows them
    return Markup(text[text.index("<svg") :].replace(INK, "currentColor"))  # noqa: S704  matplotlib escapes
