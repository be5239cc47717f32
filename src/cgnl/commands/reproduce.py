"""``cgnl reproduce``: fill in a table of the paper."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..engine.atomic_io import make_folder, write_text
from ..experiments.plan import Reasons, durations, plan
from ..experiments.runs import Run
from ..experiments.scales import Scale, words
from ..experiments.summary import REASONS, summarize
from ..experiments.tables import TABLES, Row
from ..experiments.work import STOPPED, in_minutes, work, workers
from ..experiments.write import fill as fill_document
from ..experiments.write import rows_markdown, sentences, write
from ..extras import need
from ..spelling import counted, nearest

MEASURED = {
    "complexity": "Time and memory of GNL and CGNL against N and C, measured",
    "gated-field": "What one block computes between a linear stem and a linear head, measured (not in the paper)",
}
"""Tables that are not made of runs, and what they are about."""


def reproduce(
    table: str | None = None,
    *,
    scale: Scale = "paper",
    rows: str | None = None,
    seeds: int | None = None,
    budget: float | None = None,
    jobs: int = 1,
    output: str | None = None,
    keep: bool = False,
    dry: bool = False,
    device: str | None = None,
    fill: str | None = None,
    **settings: Any,
) -> None:
    """Run the rows of a table with several seeds, and put what comes out beside what the paper reports.

    The same command goes on where it stopped, and may be started several times at once.

    Args:
        table: its name, or all; without one, they are listed.
        scale: paper, its own protocol; small, one that fits one GPU for an hour; embedded, without any data, on a
            laptop.
        rows: names of rows, with * for any letters, divided by commas.
        seeds: how many runs of each row; 5 unless given, of gated-field 3.
        budget: minutes; what is under way then is saved and goes on the next time.
        jobs: how many runs at once on each GPU, or on the processor.
        output: (-o) folder of the runs and of what is written; reproduce/SCALE unless given, or reproduce/TABLE for
            complexity and gated-field.
        keep: keep the checkpoints of runs that have ended; a ResNet-50's are 400 MB.
        dry: show the plan and the time it takes, and run nothing; of complexity and gated-field, write anew what was
            measured.
        device: complexity is measured on: cpu, cuda or cuda:1; a GPU if there is one.
        fill: documents, divided by commas, whose tables are written anew from runs that have ended.
        settings: of all rows, such as data.root=CUB_200_2011 or model.weights=resnet50.pth.
    """
    seeds = (3 if table == "gated-field" else 5) if seeds is None else seeds
    if seeds < 1 or jobs < 1 or (budget is not None and budget <= 0):
        raise ValueError(f"seeds = {seeds}, jobs = {jobs} and budget = {budget} must be more than 0")
    need("scipy", "reproduce")
    folder = Path(output or Path("reproduce") / (table if table in MEASURED else scale))
    if table == "complexity":
        _complexity(folder, device, dry)
    elif table == "gated-field":
        _gated_field(folder, seeds, dry)
    elif table is not None:
        chosen = _chosen(table, rows)
        runs = _plan(chosen, scale, seeds, folder, settings)
        left = [run for run in runs if not run.finished]
        times = durations(left, folder)
        team = workers(runs, budget, jobs, keep)
        if left:
            about = in_minutes(sum(times.values()) / len(team))
            print(f"still to do: {counted(len(left), 'run')}, about {about}", flush=True)
        if not dry:
            ended = work(team)
            _write(chosen, folder)
            if not ended:
                print("not all runs have ended: the same command goes on")
                raise SystemExit(STOPPED)
    elif fill is None:
        _list()
    for document in fill.split(",") if fill else ():
        print(f"{document}: {counted(fill_document(Path(document)), 'table')} written anew")


def _chosen(table: str, patterns: str | None) -> dict[str, Sequence[Row]]:
    """The tables, with the rows that are wanted of each."""
    if table == "all" and patterns is None:
        return {name: t.rows for name, t in TABLES.items()}
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}{nearest(table, [*TABLES, *MEASURED, 'all'])}")
    return {table: TABLES[table].chosen(patterns)}


def _plan(
    chosen: Mapping[str, Sequence[Row]], scale: Scale, seeds: int, folder: Path, settings: Mapping[str, Any]
) -> list[Run]:
    """The runs of some tables, each once, and what there is to say about them."""
    runs: dict[str, Run] = {}
    for name, rows in chosen.items():
        made, reasons = plan(TABLES[name], rows, scale, seeds, folder, settings)
        for run in made:
            run.check()
        runs |= {str(run.config.name): run for run in made}
        _keep(reasons, rows, folder)
        _tell(name, rows, made, reasons)
    if not runs:
        print("data.root=FOLDER says where the data is; --scale embedded needs none")
    return list(runs.values())


def _write(tables: Iterable[str], folder: Path) -> None:
    """Write what has come out so far, and say it."""
    for name in tables:
        summary = summarize(name, TABLES[name], folder)
        with FileLock(folder / ".tables.lock"):
            paths = write(summary, folder)
        print(f"\n{rows_markdown(summary)}\n")
        print("\n".join([*sentences(summary), f"{', '.join(map(str, paths))} written"]))


def _tell(name: str, rows: Sequence[Row], runs: Sequence[Run], reasons: Reasons) -> None:
    """The plan of a table."""
    print(f"{name}: {TABLES[name].title}")
    for protocol in dict.fromkeys(words(run.config) for run in runs):
        print(f"  {protocol}")
    width = max(len(row.name) for row in rows)
    for row in rows:
        mine = [run for run in runs if run.row == row.name]
        ended = f"{sum(run.finished for run in mine)} of {counted(len(mine), 'run')} ended"
        print(f"  {row.name:{width}}  {f'not run: {reasons[row.name]}' if row.name in reasons else ended}")


def _keep(reasons: Reasons, rows: Sequence[Row], folder: Path) -> None:
    """Write down why rows cannot be run, for whoever reads the table."""
    path = folder / REASONS
    make_folder(folder)
    with FileLock(folder / ".tables.lock"):
        before = json.loads(path.read_text()) if path.exists() else {}
        names = {row.name for row in rows}
        now = {name: reason for name, reason in before.items() if name not in names} | reasons
        write_text(path, json.dumps(now, indent=2, sort_keys=True) + "\n")


def _list() -> None:
    """The tables there are."""
    width = max(map(len, [*TABLES, *MEASURED]))
    for name, table in TABLES.items():
        rows = counted(len(table.rows), "row")
        print(f"{name:{width}}  {table.title} ({rows}{', not in the paper' if table.ours else ''})")
    for name, title in MEASURED.items():
        print(f"{name:{width}}  {title}")


def _complexity(folder: Path, device: str | None, dry: bool) -> None:
    """Measure, or write anew what was measured."""
    from ..bench.complexity import complexity, from_csv

    paths = from_csv(folder / "complexity.csv") if dry else complexity(folder, device=device)
    print(f"{', '.join(map(str, paths))} written")


def _gated_field(folder: Path, seeds: int, dry: bool) -> None:
    """Measure, or write anew what was measured."""
    from ..experiments.gated_field import from_csv, gated_field

    paths = from_csv(folder / "gated_field.csv") if dry else gated_field(folder, seeds=seeds)
    print(f"{', '.join(map(str, paths))} written")
