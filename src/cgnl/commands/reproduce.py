"""``cgnl reproduce``."""

from pathlib import Path
from typing import Annotated, Any, Literal

from ..engine.values import PositiveFloat, PositiveInt
from ..experiments.tables import MEASURED, TABLES, select_rows
from ..extras import need
from ..text import counted, format_duration, say


def reproduce(
    table: str | None = None,
    *,
    scale: Literal["paper", "small", "embedded"] = "paper",
    rows: str | None = None,
    seeds: Annotated[int, "> 0", "<= 1000"] | None = None,
    budget: PositiveFloat | None = None,
    jobs: PositiveInt = 1,
    output: str | None = None,
    keep: bool = False,
    dry: bool = False,
    device: str | None = None,
    fill: str | None = None,
    **settings: Any,
) -> None:
    """Train the rows of a table with several seeds, and compare them with the paper's numbers.

    The same command resumes what was stopped, and may run several times at once.

    Args:
        table: name of a table, or all; without one, tables are listed.
        scale: paper, its own protocol; small, an hour on one GPU; embedded, synthetic data on a laptop.
        rows: names of rows separated by commas; * matches any letters.
        seeds: runs of each row. If not given: 5, and 3 for gated-field.
        budget: minutes; runs in progress are then saved, and resumed by the next call.
        jobs: runs at a time on each GPU, or on the CPU.
        output: (-o) folder of runs and tables. If not given: reproduce/SCALE, and reproduce/TABLE for complexity and
            gated-field.
        keep: keep the checkpoints of finished runs; 400 MB for a ResNet-50.
        dry: print the plan and how long it takes, and run nothing; for complexity and gated-field, write again what
            was measured.
        device: where complexity is measured: cpu, cuda or cuda:1. If not given: a GPU if there is one.
        fill: documents separated by commas, in which tables are written again from finished runs.
        settings: for all rows, such as data.root=CUB_200_2011 or model.weights=resnet50.pth.
    """
    seeds = seeds or (3 if table == "gated-field" else 5)
    need("scipy", "reproduce")
    folder = Path(output or Path("reproduce") / (table if table in MEASURED else scale))
    if table in MEASURED:
        say(f"{_join(_measure(table, folder, seeds, device, dry))} written")
    elif table is not None:
        from ..experiments.plan import estimate_durations, plan_tables
        from ..experiments.work import STOPPED, make_workers, work

        selected = select_rows(table, rows)
        runs = plan_tables(selected, scale, seeds, folder, settings)
        left = [run for run in runs if not run.finished]
        seconds = sum(estimate_durations(left, folder, jobs).values())
        workers = make_workers(runs, budget, jobs, keep)
        if left:
            about = format_duration(seconds / len(workers))
            say(f"still to do: {counted(len(left), 'run')}, about {about}")
        if not dry:
            finished = work(workers)
            _write(list(selected), folder)
            if not finished:
                say("not all runs have ended: the same command continues")
                raise SystemExit(STOPPED)
    elif fill is None:
        _list_tables()
    if fill:
        from ..experiments.write import fill as fill_document

        for document in fill.split(","):
            say(f"{document}: {counted(fill_document(Path(document)), 'table')} written anew")


def _measure(table: str, folder: Path, seeds: int, device: str | None, dry: bool) -> list[Path]:
    """Measure, or write again what was measured."""
    if table == "complexity":
        from ..bench import complexity

        return complexity.from_csv(folder / "complexity.csv") if dry else complexity.complexity(folder, device=device)
    from ..experiments import gated_field

    return gated_field.from_csv(folder / "gated_field.csv") if dry else gated_field.gated_field(folder, seeds=seeds)


def _write(tables: list[str], folder: Path) -> None:
    """Write and print the results so far."""
    from filelock import FileLock

    from ..experiments.summary import summarize
    from ..experiments.write import rows_markdown, sentences, write

    for name in tables:
        summary = summarize(name, TABLES[name], folder)
        with FileLock(folder / ".tables.lock"):
            paths = write(summary, folder)
        say("", *rows_markdown(summary).splitlines(), "")
        say(*sentences(summary), f"{_join(paths)} written")


def _list_tables() -> None:
    width = max(map(len, [*TABLES, *MEASURED]))
    for name, table in TABLES.items():
        rows = counted(len(table.rows), "row")
        say(f"{name:{width}}  {table.title} ({rows}{', not in the paper' if table.ours else ''})")
    for name, title in MEASURED.items():
        say(f"{name:{width}}  {title}")


def _join(paths: list[Path]) -> str:
    return ", ".join(map(str, paths))
