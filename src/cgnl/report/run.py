"""A run as a report shows it, finished or not."""

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..engine import runs
from ..engine.predictions import Prediction


@dataclass(frozen=True)
class Run(runs.Run):
    """A run folder with a title."""

    title: str

    @cached_property
    def results(self) -> dict[str, float]:
        """Of a finished run ``results.json``, otherwise the last test between epochs."""
        tests = [{name: v for name, v in row.items() if name.startswith("test_")} for row in self.rows]
        return super().results or next(filter(None, reversed(tests)), {})

    @property
    def speeds(self) -> list[float]:
        """Training samples per second in each epoch."""
        return [row["samples_per_second"] for row in self.rows if "samples_per_second" in row]

    @property
    def speed(self) -> float | None:
        """Their median."""
        return statistics.median(self.speeds) if self.speeds else None

    @property
    def seconds(self) -> float | None:
        return self.results.get("seconds", self.rows[-1].get("seconds") if self.rows else None)

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        return self.environment.get("command") or shlex.join(["cgnl", "train", str(self.folder / "config.yaml")])


def read_run(folder: Path | str, title: str | None = None) -> Run:
    """Read a run folder; raise for a damaged one."""
    run = Run(Path(folder), title or Path(folder).resolve().name)
    run.config  # noqa: B018  read first, so that what is no run folder is named as such
    for name, kind in {"gpus": list, "packages": dict}.items():
        if not isinstance(given := run.environment.get(name, kind()), kind):
            raise ValueError(f"{run.folder / 'environment.json'}: {name} = {given!r} must be a {kind.__name__}")
    if _has_few_classes((*run.rows, run.results), run.predictions):
        for numbers in (*run.rows, run.results):
            numbers.pop("test_top5", None)
    return run


def read_runs(folders: Sequence[str]) -> list[Run]:
    """Read several runs, each with its own title."""
    names = [Path(folder).resolve().name for folder in folders]
    titles = names if len(set(names)) == len(names) else [str(Path(folder)) for folder in folders]
    if len(set(titles)) < len(titles):
        raise ValueError(f"{next(t for t in titles if titles.count(t) > 1)} is named twice")
    return [read_run(folder, title) for folder, title in zip(folders, titles, strict=True)]


def _has_few_classes(tests: Sequence[dict[str, float]], predictions: Sequence[Prediction]) -> bool:
    """Whether there seem to be five classes at most: then top-5 is always 1 and says nothing."""
    named = {name for prediction in predictions for name in (prediction.label, prediction.predicted)}
    return len(named) <= 5 and all(numbers.get("test_top5", 1) == 1 for numbers in tests)
