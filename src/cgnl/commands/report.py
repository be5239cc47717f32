"""``cgnl report``: what came out of a run, or of several side by side, as a page."""

from pathlib import Path

from ..engine.atomic_io import make_folder
from ..extras import need
from ..report.run import read_runs
from ..report.write import with_predictions, write


def report(run: str, *more: str, output: str | None = None, test: bool = False) -> None:
    """Write a report: curves, results, classes, confusions, attention, settings.

    Args:
        run: the folder of a run, such as runs/first.
        more: further runs, to be put side by side.
        output: (-o) where it goes. If not given: RUN/report.html; of several, comparison.html beside the first.
        test: test the last checkpoint of a run that has not finished, too.
    """
    need("matplotlib", "explain")
    if output and Path(output).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{output} must end in .html")
    runs = [with_predictions(r, test) for r in read_runs([run, *more])]
    usual = runs[0].folder.parent / "comparison.html" if more else runs[0].folder / "report.html"
    target = Path(output) if output else usual
    make_folder(target.parent)
    write(runs, target)
    print(f"{target} written")
