"""The page about the gated field."""

import csv
from collections.abc import Sequence
from pathlib import Path

from ..spelling import markdown_table

TITLES = ("block", "contrast", "accuracy, %", "deviation", "at most, %", "by seed", "rate", "seconds a run")

TASK = """A map of 24 x 24 positions has 18 channels: a, b and u_1 to u_16, each N(0, 1), with corr(a, b) = 0.12 s for
a sign s of each sample. The target at each position is the sign of s u_c for each of the 16. Stem and head are linear
(1 x 1, 64 channels between them), the block stands in the middle: 250 steps of Adam, 24 new samples each, with the
learning rate of 0.003, 0.01 and 0.03 that was best on other draws. Tested on 2,000 samples. With contrast, each sample
is multiplied by exp(contrast z), z from N(0, 1)."""

CAVEAT = """This is what one block computes in one step between a linear stem and a linear head, and no more. Behind a
convolutional stem with ReLU, and before a head of several layers, the separation is gone: in trials that are not in
this table, CGNL was no better there than dot-NL. It is not what networks cannot do."""

NOTES = """What is possible "at most" is derived in docs/mathematics.md; that of NL is for infinitely many positions.
Group norm leaves the sign of s, which would be enough, and next to no gradient for phi and g: compare the row where
they stay as they were drawn."""


def read_rows(path: Path) -> list[list[str]]:
    """Read the rows of a measured table."""
    with path.open(newline="") as file:
        titles, *rows = csv.reader(file)
    if tuple(titles) != TITLES or not rows or any(len(row) != len(TITLES) for row in rows):
        raise ValueError(f"{path} is no table of the gated field")
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Task, table, conclusion and caveats."""
    parts = ["# The gated field", TASK, markdown_table(TITLES, rows), conclude(rows), CAVEAT, NOTES]
    return "\n\n".join(part for part in parts if part) + "\n"


def conclude(rows: Sequence[Sequence[str]]) -> str:
    """Compare CGNL with the other blocks; empty if the table lacks either."""
    accuracies = {row[0]: float(row[2]) for row in rows if row[1] == "-"}  # without contrast
    cgnl = [value for name, value in accuracies.items() if name.startswith("CGNL") and "norm" not in name]
    others = {name: value for name, value in accuracies.items() if not name.startswith("CGNL")}
    if not cgnl or not others:
        return ""
    best = max(others, key=lambda name: others[name])
    return (
        f"One CGNL block with batch norm is right at {min(cgnl):.1f} to {max(cgnl):.1f} % of the targets; of the other "
        f"blocks the best, {best}, at {others[best]:.1f} %, where guessing is 50 %."
    )
