"""Summarize the runs of a table: numbers of each row, differences of each pair, diagnoses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from ..engine.settings import Config
from .runs import FAILED, Outcome, find_files, read_outcomes
from .statistics import Discordance, Estimate, compare_samples, estimate
from .tables import Row, Table, reported_gain

REASONS = "not_run.json"
NOT_YET = "not yet"
"""Reason given for a run that can be made and has not been."""


@dataclass(frozen=True)
class Line:
    """A row of a table with its results.

    Attributes:
        seeds: results by seed, averaged over splits.
        config: settings of one of the runs, if there are any.
        reason: why runs are missing.
    """

    row: Row
    seeds: Mapping[int, Outcome]
    config: Config | None
    reason: str

    @cached_property
    def numbers(self) -> dict[str, Estimate]:
        names = next(iter(self.seeds.values())).numbers if self.seeds else {}
        return {name: estimate([seed.numbers[name] for seed in self.seeds.values()]) for name in names}

    @property
    def network(self) -> str:
        """Rows with the same network are compared; it may have the weights of either variant."""
        return str((self.config or self.row.config()).model.name).removesuffix("_caffe")


@dataclass(frozen=True)
class Pair:
    """Two rows on the same seeds.

    Attributes:
        differences: after less before for each seed, in points of the first metric.
        paper: the difference the paper reports.
        samples: None if the test samples differ or are unknown.
    """

    before: Row
    after: Row
    differences: tuple[float, ...]
    paper: float | None = None
    samples: Discordance | None = None

    @cached_property
    def difference(self) -> Estimate:
        return estimate(self.differences)

    @property
    def names(self) -> tuple[str, str]:
        return self.before.name, self.after.name

    @property
    def label(self) -> str:
        return f"{self.after.label} against {self.before.label}"


class Replacement(NamedTuple):
    """A row with its attention replaced.

    ``numbers`` are top1 and change; of unchanged attention also added and added_median, per cent that blocks add to
    their input.
    """

    row: Row
    attention: str
    numbers: dict[str, Estimate]
    lost: int
    won: int


@dataclass(frozen=True)
class Summary:
    """A table with its results."""

    name: str
    table: Table
    lines: tuple[Line, ...]
    pairs: tuple[Pair, ...]
    replacements: tuple[Replacement, ...]

    @property
    def metric(self) -> str:
        """Metric by which rows are compared."""
        return next((name for line in self.lines for name in line.numbers), "top1")

    @property
    def first(self) -> dict[str, Row]:
        """Network -> the first row that has it."""
        return {line.network: line.row for line in reversed(self.lines)}


def summarize(name: str, table: Table, folder: Path) -> Summary:
    """Summarize the runs in a folder."""
    reasons = json.loads((folder / REASONS).read_text()) if (folder / REASONS).exists() else {}
    lines = tuple(_summarize_row(table, row, folder, reasons.get(row.name, "")) for row in table.rows)
    alike = [(a, b) for a, b in combinations(lines, 2) if a.network == b.network]
    pairs = tuple(_compare(a, b) for a, b in alike if a.seeds.keys() & b.seeds.keys())
    return Summary(name, table, lines, pairs, tuple(entry for line in lines for entry in _replacements(line)))


def _summarize_row(table: Table, row: Row, folder: Path, reason: str) -> Line:
    by_seed: dict[int, list[Outcome]] = {}
    outcomes = read_outcomes(folder, row.name)
    for outcome in outcomes:
        by_seed.setdefault(outcome.seed, []).append(outcome)
    wanted = set(table.splits or (1,))
    seeds = {n: _average(splits) for n, splits in by_seed.items() if {o.split for o in splits} >= wanted}
    failed = [path.read_text().strip() for _, path in find_files(folder, row.name, FAILED)]
    reason = (failed or [reason])[0] or ("" if seeds else NOT_YET)
    return Line(row, seeds, outcomes[0].config if outcomes else None, reason)


def _average(splits: Sequence[Outcome]) -> Outcome:
    """Average the splits of one seed; their samples are joined."""
    return replace(
        splits[0],
        numbers={name: sum(o.numbers[name] for o in splits) / len(splits) for name in splits[0].numbers},
        seconds=sum(o.seconds for o in splits),
        correct="".join(o.correct for o in splits),
        samples="".join(o.samples for o in splits),
    )


def _compare(before: Line, after: Line) -> Pair:
    common = sorted(before.seeds.keys() & after.seeds.keys())
    old, new = ([line.seeds[n] for n in common] for line in (before, after))
    metric = next(iter(old[0].numbers))
    differences = tuple(b.numbers[metric] - a.numbers[metric] for a, b in zip(old, new, strict=True))
    same = len({seed.samples for seed in (*old, *new)}) == 1 and old[0].correct
    samples = compare_samples([seed.correct for seed in old], [seed.correct for seed in new]) if same else None
    return Pair(before.row, after.row, differences, reported_gain(before.row, after.row, metric), samples)


def _replacements(line: Line) -> list[Replacement]:
    """Diagnoses of a row over its seeds."""
    tests = [{entry["attention"]: entry for entry in s.diagnosis} for s in line.seeds.values() if s.diagnosis]
    found = []
    for attention in tests[0] if tests else ():
        entries = [test[attention] for test in tests]
        measured = [n for n in ("top1", "change", "added", "added_median") if all(entry.get(n) for entry in entries)]
        numbers = {name: estimate([float(entry[name]) for entry in entries]) for name in measured}
        lost, won = (sum(int(entry[name]) for entry in entries) for name in ("lost", "won"))
        found.append(Replacement(line.row, attention, numbers, lost, won))
    return found
