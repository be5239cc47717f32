"""Write the report of a run, or of several side by side. Imports torch only when a report is written."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic_io import write_text
from ..text import first_line, say

if TYPE_CHECKING:
    from .run import Run

log = logging.getLogger("cgnl")


def try_to_report(folder: Path) -> None:
    """Say whether a finished run uses its blocks, and write its report; without them, the training has not failed."""
    try:
        from ..explain.verdict import judge_run
        from .run import read_run

        if verdict := judge_run(folder):
            log.info(verdict.words())
        write_report([read_run(folder)], folder / "report.html")
    except Exception as error:  # whatever it is, the network is trained and saved
        log.warning("there is no report: %s; cgnl report %s tries again", first_line(error), folder)
    else:
        log.info("a report: %s", folder / "report.html")


def write_report(runs: "Sequence[Run]", target: Path) -> None:
    """Write the report of some runs."""
    write_text(target, render(runs), errors="replace")


def render(runs: "Sequence[Run]") -> str:
    """The whole page."""
    import jinja2

    from .sections import collect

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cgnl.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2").render(collect(runs))


def with_predictions(run: "Run", test: bool) -> "Run":
    """Test the network of a run that has no predictions, and read the run again.

    A run that is not finished may still be training: it is tested only if ``test`` is set. Detectors have no prediction
    for a whole sample.
    """
    from ..engine.evaluate import prepare
    from ..engine.predictions import save_predictions
    from ..models import is_detector
    from .run import read_run

    checkpoint = run.folder / "last.ckpt"
    if run.predictions or not (run.finished or test) or not checkpoint.exists():
        return run
    if is_detector(run.config.model.name or ""):
        return run
    say(f"{checkpoint} is tested, because there is no predictions.csv")
    ready = prepare(checkpoint, {"devices": 1})
    ready.run()
    save_predictions(run.folder, ready.dataset, ready.task.predictions)
    return read_run(run.folder, run.title)
