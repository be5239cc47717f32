"""The tables of the paper and our own, read from ``tables.yaml``: rows, settings and the paper's numbers."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any

from ..engine.config import load
from ..engine.settings import Config
from ..safe_yaml import parse
from ..text import nearest
from .statistics import TWO_LOOKS

METRICS = ("top1", "top5", "box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")


@dataclass(frozen=True)
class Row:
    """A recipe and how the row differs from it.

    Attributes:
        alias: name of a row whose settings differ from the recipe's.
        counterpart: recipe of the paper's row with the same network, if this one is trained differently.
    """

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    alias: str = ""
    counterpart: str = ""

    @property
    def name(self) -> str:
        """Rows with the same name are the same row, in whichever tables they stand."""
        return self.alias or self.recipe

    def config(self, settings: Mapping[str, Any] | None = None) -> Config:
        """Settings of the row, overridden by others."""
        return load(self.recipe, {**self.settings, **settings}) if settings else self._own

    @cached_property
    def _own(self) -> Config:
        return load(self.recipe, self.settings)

    @property
    def reported(self) -> dict[str, float]:
        """Numbers of the paper in per cent; empty if it has no such row."""
        numbers = PAPER.get(self.counterpart or ("" if self.settings else self.recipe), ())
        names = METRICS[:2] if len(numbers) == 2 else METRICS[2:]
        return dict(zip(names, numbers, strict=False))


def reported_gain(before: Row, after: Row, metric: str) -> float | None:
    """Difference that the paper reports between two rows."""
    old, new = before.reported.get(metric), after.reported.get(metric)
    return None if old is None or new is None else new - old


@dataclass(frozen=True)
class Table:
    """Rows to compare; rows with the same network are compared in pairs.

    Attributes:
        ours: whether the paper has no such table.
        splits: of the dataset, over which results are averaged.
        diagnose: whether to diagnose the attention of trained blocks.
        shuffled: whether to test every network with shuffled frames too.
        primary: names of rows that the table was made to compare -> ``looks`` of ``statistics.find``.
    """

    title: str
    rows: tuple[Row, ...]
    note: str = ""
    ours: bool = False
    splits: tuple[int, ...] = ()
    diagnose: bool = False
    shuffled: bool = False
    primary: Mapping[tuple[str, str], Mapping[int, float]] = field(default_factory=dict)

    def select(self, patterns: str | None) -> tuple[Row, ...]:
        """Rows whose names match any of the patterns, such as ``cub_r50*,*nl1``."""
        if patterns is None:
            return self.rows
        names, chosen = [row.name for row in self.rows], set[str]()
        for pattern in map(str.strip, patterns.split(",")):
            if not (found := fnmatch.filter(names, pattern)):
                raise ValueError(f"there is no row {pattern!r}{nearest(pattern, names)}")
            chosen.update(found)
        return tuple(row for row in self.rows if row.name in chosen)

    def diagnoses(self, row: Row) -> bool:
        """Whether the table needs a diagnosis of this row."""
        model = row.config().model
        attends = model.block in ("cgnl", "cgnlx", "nl") or model.head in ("covariance", "bilinear")
        return self.shuffled or (self.diagnose and attends)


def _read(name: str) -> dict[str, Any]:
    return parse((resources.files("cgnl") / "experiments" / name).read_text(encoding="utf-8"), name)


def _read_tables() -> tuple[dict[str, Table], dict[str, list[float]]]:
    """The tables by name, and the paper's numbers by recipe."""
    tables, numbers, content = {}, {}, _read("tables.yaml")
    for name, table in (content["paper"] | content["ours"]).items():
        recipe, common, rows = table.pop("recipe", ""), table.pop("settings", {}), []
        for row_name, row in table.pop("rows").items():
            if isinstance(row, list):
                rows.append(Row(row[0], row_name))
                numbers.setdefault(row_name, row[1:])
            else:
                settings = common | row.pop("settings", {})
                rows.append(Row(**{"recipe": recipe, "alias": row_name, "settings": settings} | row))
        primary = {(pair["before"], pair["after"]): pair.get("looks", TWO_LOOKS) for pair in table.pop("primary", ())}
        splits = tuple(table.pop("splits", ()))
        ours = name in content["ours"]
        tables[name] = Table(rows=tuple(rows), ours=ours, primary=primary, splits=splits, **table)
    return tables, numbers


TABLES, PAPER = _read_tables()
"""Tables by the name that ``cgnl reproduce`` takes, and the paper's numbers by recipe, in per cent."""
SCALES = _read("scales.yaml")
MEASURED = {
    "complexity": "Time and memory of GNL and CGNL against N and C, measured",
    "gated-field": "What one block computes between a linear stem and a linear head, measured (not in the paper)",
}
"""Tables without training runs, and their titles."""


def is_diagnosed(name: str) -> bool:
    """Whether runs of this row are diagnosed, in whichever table it stands."""
    return any(table.diagnoses(row) for table in TABLES.values() for row in table.rows if row.name == name)


def select_rows(table: str, patterns: str | None = None) -> dict[str, tuple[Row, ...]]:
    """Rows to run by table, for the name of a table or ``all``."""
    if table == "all" and patterns is None:
        return {name: t.rows for name, t in TABLES.items()}
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}{nearest(table, [*TABLES, *MEASURED, 'all'])}")
    return {table: TABLES[table].select(patterns)}
