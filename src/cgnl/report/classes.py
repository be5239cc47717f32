"""Draw the confusion matrix and the reliability diagram as SVGs in the colours of their page."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from ..engine.classes import Bin, calibrate, calibration_error, count_confusions
from ..engine.predictions import Prediction
from ..extras import need
from ..text import escape
from .curves import INK, page_style, to_svg

MAX_CLASSES, MAX_COUNTED = 50, 20  # most classes of a matrix, and of one with its counts written
MAX_NAME = 28  # most characters of a class's name
RIGHT, WRONG = "#2b6cb0", "#d9534f"


def draw_matrix(predictions: Sequence[Prediction]) -> Markup | None:
    """The confusion matrix, each cell as strong as its share of the class; None where there are too many classes."""
    counts = count_confusions(predictions)
    names = sorted({str(name) for pair in counts for name in pair})
    if not 0 < len(names) <= MAX_CLASSES:
        return None
    totals = {row: sum(counts[row, column] for column in names) for row in names}
    with page_style():
        axis, figure = _new_axis(2.2 + 0.26 * len(names), 1.9 + 0.26 * len(names))
        patches = need("matplotlib.patches", "explain")
        for y, row in enumerate(names):
            for x, column in enumerate(names):
                if count := counts[row, column]:
                    share, colour = count / totals[row], RIGHT if row == column else WRONG
                    axis.add_patch(
                        patches.Rectangle((x - 0.5, y - 0.5), 1, 1, color=colour, alpha=0.1 + 0.6 * share, lw=0)
                    )
                    if len(names) <= MAX_COUNTED:
                        axis.text(x, y, f"{count}", ha="center", va="center", fontsize=7)
        titles = [_title(name) for name in names]
        axis.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
        axis.set_xticks(range(len(names)), titles, rotation=90, fontsize=7)
        axis.set_yticks(range(len(names)), titles, fontsize=7)
        axis.set(xlabel="taken for", ylabel="class")
        axis.tick_params(length=0)
        return to_svg(figure)


def draw_reliability(predictions: Sequence[Prediction]) -> tuple[Markup, float] | None:
    """How often predictions of each score are right, and the expected calibration error."""
    bins = calibrate(predictions)
    if not predictions or not math.isfinite(error := calibration_error(bins)):
        return None
    with page_style():
        axis, figure = _new_axis(4.4, 3.6)
        _bars(axis, bins)
        axis.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="perfectly calibrated")
        axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="score of the prediction, %", ylabel="right, %")
        axis.legend(frameon=False, fontsize=8, loc="upper left")
        axis.grid(color="#888888", alpha=0.25)
        return to_svg(figure), error


def _bars(axis: Any, bins: Sequence[Bin]) -> None:
    """A bar for each bin, as strong as it is full, and a mark at its mean score."""
    width, most = 100 / len(bins), max(b.samples for b in bins)
    for number, b in enumerate(bins):
        if b.samples:
            share = 0.25 + 0.6 * b.samples / most
            axis.bar((number + 0.5) * width, 100 * b.right, 0.94 * width, color=RIGHT, alpha=share)
            axis.plot(100 * b.score, 100 * b.right, ".", color=WRONG, clip_on=False)
    axis.plot([], [], ".", color=WRONG, label="mean score of a bar; stronger: more samples")


def _new_axis(width: float, height: float) -> tuple[Any, Any]:
    figure = need("matplotlib.figure", "explain").Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return axis, figure


def _title(name: str) -> str:
    """The name of a class, short and without what matplotlib would take for mathematics."""
    text = escape(name)
    return (text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}...").replace("$", r"\$")
