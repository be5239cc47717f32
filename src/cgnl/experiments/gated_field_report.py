"""The gated field's table, as CSV and as a page."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.atomic_io import write_csv
from .markdown import grid

TITLES = ("block", "contrast", "accuracy, %", "deviation", "at most, %", "by seed", "rate", "seconds a run")

TASK = """A map of 24 x 24 positions has 18 channels: a, b and u_1 to u_16, each N(0, 1), with corr(a, b) = 0.12 s for
a sign s of each sample. The target at each position is the sign of s u_c for each of the 16. Stem and head are linear
(1 x 1, 64 channels between them), the block stands in the middle: 250 steps of Adam, 24 new samples each, with the
learning rate of 0.003, 0.01 and 0.03 that was best on other draws. Tested on 2,000 samples. With contrast, each sample
is multiplied by exp(contrast z), z from N(0, 1)."""

CAVEAT = """This is what one block computes in one step between a linear stem and a linear head, and no more. Behind a
convolutional stem with ReLU, and before a head of several layers, the separation is gone: in trials that are not in
this table, CGNL was no better there than dot-NL. It is not what networks cannot do."""

NOTES = """What is possible "at most" is derived in docs/mathematics.md; that of NL is for N without end. Group norm
leaves the sign of s, which would be enough, and next to no gradient for phi and g: compare the row where they stay as
they were drawn."""


@dataclass(frozen=True)
class Result:
    """What a network reached."""

    network: str
    contrast: float
    accuracy: float
    """Per cent, the mean of the seeds."""
    deviation: float | None
    """Of one seed."""
    bound: float | None
    """The most that can be reached, per cent, where that is known."""
    by_seed: tuple[float, ...]
    rate: float
    seconds: float
    """Of a training with its test."""

    @property
    def cells(self) -> list[str]:
        """As they stand in the table."""
        deviation, bound = ("-" if v is None else f"{v:.2f}" for v in (self.deviation, self.bound))
        each = " ".join(f"{value:.2f}" for value in self.by_seed)
        numbers = [f"{self.accuracy:.2f}", deviation, bound, each, f"{self.rate:g}", f"{self.seconds:.1f}"]
        return [self.network, f"{self.contrast:g}" if self.contrast else "-", *numbers]

    @property
    def line(self) -> str:
        """What came out, in a line."""
        contrast = f", contrast {self.contrast:g}" if self.contrast else ""
        return f"{self.network + contrast:48} {self.accuracy:6.2f} % ({', '.join(f'{v:.2f}' for v in self.by_seed)})"


def write_results(results: Sequence[Result], path: Path) -> None:
    write_csv(path, TITLES, [result.cells for result in results])


def read_results(path: Path) -> list[Result]:
    with path.open(newline="") as file:
        titles, *rows = csv.reader(file)
    if tuple(titles) != TITLES or not rows:
        raise ValueError(f"{path} is no table of the gated field")
    results = []
    for name, contrast, accuracy, deviation, bound, each, rate, seconds in rows:
        size, spread, most = (None if v == "-" else float(v) for v in (contrast, deviation, bound))
        by_seed = tuple(map(float, each.split()))
        results.append(Result(name, size or 0.0, float(accuracy), spread, most, by_seed, float(rate), float(seconds)))
    return results


def markdown(results: Sequence[Result]) -> str:
    table = grid(TITLES, [result.cells for result in results])
    return "\n\n".join(["# The gated field", TASK, table, *filter(None, [conclusion(results)]), CAVEAT, NOTES]) + "\n"


def conclusion(results: Sequence[Result]) -> str:
    """The blocks of the table in a sentence, where it has both kinds."""
    alike = [r for r in results if not r.contrast]
    ours = [r.accuracy for r in alike if r.network.startswith("CGNL") and "norm" not in r.network]
    others = {r.accuracy: r.network for r in alike if not r.network.startswith("CGNL")}
    if not ours or not others:
        return ""
    best = max(others)
    return (
        f"One CGNL block with batch norm is right at {min(ours):.1f} to {max(ours):.1f} % of the targets; of the other "
        f"blocks the best, {others[best]}, at {best:.1f} %, where guessing is 50 %."
    )
