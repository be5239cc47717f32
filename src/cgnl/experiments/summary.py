"""What the runs of a table came to: numbers of each row, differences of each pair, and whether attention matters."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from ..engine.config import Config
from .runs import FAILED, Outcome, files, outcomes
from .statistics import Estimate, Sides, changed_sides, estimate
from .tables import Row, Table, gain
from .verdict import over_samples

REASONS = "not_run.json"


@dataclass(frozen=True)
class Seed:
    """A row with one seed: the mean of its splits."""

    numbers: dict[str, float]
    right: str
    samples: str
    seconds: float
    diagnosis: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Line:
    """A row of a table, with what was measured."""

    row: Row
    seeds: Mapping[int, Seed]
    config: Config | None
    """Of a run; nothing where there is none."""
    reason: str
    """Why there is none, or fewer than there should be."""

    @property
    def numbers(self) -> dict[str, Estimate]:
        names = next(iter(self.seeds.values())).numbers if self.seeds else {}
        return {name: estimate([seed.numbers[name] for seed in self.seeds.values()]) for name in names}

    @property
    def group(self) -> str:
        """Rows of one network are compared."""
        return str((self.config or self.row.config()).model.name)


@dataclass(frozen=True)
class Pair:
    """Two rows on the same seeds."""

    before: Row
    after: Row
    difference: Estimate
    """In points of the first number, after less before."""
    sides: Sides | None
    paper: float | None = None
    """The difference of the numbers it reports."""
    each: tuple[float, ...] = ()
    """The difference of each seed."""
    over_samples: tuple[float, float] | None = None
    """The difference, and half of its 95 % interval, over test samples."""


@dataclass(frozen=True)
class Replacement:
    """A row's accuracy with something else in the attention's place."""

    row: Row
    attention: str
    top1: Estimate
    change: Estimate
    lost: int
    won: int
    added: Estimate | None
    """What its blocks add, in percent of the size of their inputs; of the attention as it is."""
    added_median: Estimate | None = None
    """The same of the median sample."""


@dataclass(frozen=True)
class Summary:
    """A table, filled in."""

    name: str
    table: Table
    lines: tuple[Line, ...]
    pairs: tuple[Pair, ...]
    replacements: tuple[Replacement, ...]

    @property
    def metric(self) -> str:
        """The number by which rows are compared."""
        return next((name for line in self.lines for name in line.numbers), "top1")


def summarize(name: str, table: Table, folder: Path) -> Summary:
    """What the folder of a table's runs says."""
    reasons = json.loads((folder / REASONS).read_text()) if (folder / REASONS).exists() else {}
    lines = tuple(_line(table, row, folder, reasons.get(row.name, "")) for row in table.rows)
    pairs = tuple(
        _pair(a, b) for a, b in combinations(lines, 2) if a.group == b.group and a.seeds.keys() & b.seeds.keys()
    )
    return Summary(name, table, lines, pairs, tuple(entry for line in lines for entry in _replacements(line)))


def _line(table: Table, row: Row, folder: Path, reason: str) -> Line:
    found = list(outcomes(folder, row.name))
    wanted = set(table.splits or (1,))
    by_seed: dict[int, list[Outcome]] = {}
    for outcome in found:
        by_seed.setdefault(outcome.seed, []).append(outcome)
    whole = {n: _mean(parts) for n, parts in by_seed.items() if {o.split for o in parts} >= wanted}
    failed = [path.read_text().strip() for _, path in files(folder, row.name, FAILED)]
    return Line(row, whole, found[0].config if found else None, (failed or [reason])[0] or ("" if whole else "not yet"))


def _mean(parts: Sequence[Outcome]) -> Seed:
    """Of the splits of a dataset, or of the only run."""
    first = parts[0]
    numbers = {name: sum(o.numbers[name] for o in parts) / len(parts) for name in first.numbers}
    right, samples = "".join(o.right for o in parts), "".join(o.samples for o in parts)
    return Seed(numbers, right, samples, sum(o.seconds for o in parts), first.diagnosis)


def _pair(before: Line, after: Line) -> Pair:
    common = sorted(before.seeds.keys() & after.seeds.keys())
    old, new = ([line.seeds[n] for n in common] for line in (before, after))
    metric = next(iter(old[0].numbers))
    each = tuple(b.numbers[metric] - a.numbers[metric] for a, b in zip(old, new, strict=True))
    difference = estimate(each)
    same = len({s.samples for s in (*old, *new)}) == 1 and bool(old[0].right)
    right = [s.right for s in old], [s.right for s in new]
    sides, by_sample = (changed_sides(*right), over_samples(*right)) if same else (None, None)
    return Pair(before.row, after.row, difference, sides, gain(before.row, after.row, metric), each, by_sample)


def _replacements(line: Line) -> list[Replacement]:
    """The diagnoses of a row over its seeds."""
    tests = [{entry["attention"]: entry for entry in s.diagnosis} for s in line.seeds.values() if s.diagnosis]
    found = []
    for attention in tests[0] if tests else ():
        entries = [test[attention] for test in tests]
        top1, change = (estimate([float(entry[name]) for entry in entries]) for name in ("top1", "change"))
        lost, won = (sum(int(entry[name]) for entry in entries) for name in ("lost", "won"))
        added, median = (_of_all(entries, name) for name in ("added", "added_median"))
        found.append(Replacement(line.row, attention, top1, change, lost, won, added, median))
    return found


def _of_all(entries: Sequence[Mapping[str, str]], name: str) -> Estimate | None:
    """A number of diagnoses; none where one of them was made before it was measured."""
    values = [float(entry[name]) for entry in entries if entry.get(name)]
    return estimate(values) if len(values) == len(entries) else None
