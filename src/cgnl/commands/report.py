"""``cgnl report``."""

from pathlib import Path

from ..atomic_io import make_folder
from ..engine.runs import require_run
from ..extras import need
from ..text import say


def report(run: str, *more: str, output: str | None = None, test: bool = False) -> None:
    """Write a page about a run: results, curves, classes, confusions, attention, settings.

    Args:
        run: the folder of a run, such as runs/first.
        more: further runs, to be shown side by side.
        output: (-o) the page. If not given: RUN/report.html, or comparison.html next to the first of several runs.
        test: also test the last checkpoint of a run that has not finished.
    """
    if output and Path(output).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{output} must end in .html")
    for folder in (run, *more):
        require_run(Path(folder))
    need("matplotlib", "explain")
    from ..report.run import read_runs
    from ..report.write import with_predictions, write_report

    runs = [with_predictions(r, test) for r in read_runs([run, *more])]
    first = runs[0].folder
    usual = first.parent / "comparison.html" if more else first / "report.html"
    target = Path(output) if output else usual
    make_folder(target.parent)
    write_report(runs, target)
    say(f"{target} written")
