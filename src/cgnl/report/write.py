"""``cgnl report``: what came out of a run, or of several side by side, as a page."""

import logging
from pathlib import Path

from ..engine.atomic_io import write_text
from ..engine.predictions import save_predictions
from ..models import is_detector
from ..spelling import first_line
from .html import page
from .run import Run, read_run
from .sections import SECTIONS

log = logging.getLogger("cgnl")


def try_to_report(folder: Path) -> None:
    """The report at the end of a run, which has been worth its time without one too."""
    try:
        write([read_run(folder)], folder / "report.html")
    except Exception as error:  # whatever it is, the network is trained and saved
        log.warning("there is no report: %s; cgnl report %s tries again", first_line(error), folder)
    else:
        log.info("a report: %s", folder / "report.html")


def write(runs: list[Run], target: Path) -> None:
    """Write the report of some runs."""
    content = page(", ".join(run.title for run in runs), *(section(runs) for section in SECTIONS))
    write_text(target, content, errors="replace")


def with_predictions(run: Run, test: bool) -> Run:
    """The run with what its network says of each test sample. It is tested if that was not written down.

    A run that is not finished may be under way: its network is tested only when that is asked for.
    """
    checkpoint = run.folder / "last.ckpt"
    names = not is_detector(run.config.model.name or "")  # what finds objects has no prediction for a sample
    if run.predictions or not names or not checkpoint.exists() or not (run.finished or test):
        return run
    from ..engine.evaluate import prepare

    print(f"{checkpoint} is tested, for there is no predictions.csv")
    ready = prepare(checkpoint, {"devices": 1})
    ready.run()
    save_predictions(run.folder, ready.dataset, ready.task.predictions)
    return read_run(run.folder, run.title)
