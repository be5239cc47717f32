"""Read the folder of a run, finished or not."""

import csv
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.config import Config, build, read_recipe
from ..engine.predictions import Prediction, read_predictions


@dataclass(frozen=True)
class Run:
    """The files of a run."""

    folder: Path
    title: str
    config: Config
    rows: tuple[dict[str, float], ...]  # epochs of metrics.csv, without empty cells
    results: dict[str, float]  # results.json of a finished run, otherwise the last test between epochs
    finished: bool
    environment: dict[str, Any]
    predictions: tuple[Prediction, ...]  # for each test sample; empty if there is no predictions.csv

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
    """Read a run folder."""
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run folder: it has no config.yaml")
    config = build(read_recipe(folder / "config.yaml"))
    rows, results = _read_epochs(folder / "metrics.csv"), _read_numbers(folder / "results.json")
    environment, predictions = _read_json(folder / "environment.json"), read_predictions(folder)
    for name, kind in {"gpus": list, "packages": dict}.items():
        if not isinstance(environment.get(name, kind()), kind):
            raise ValueError(f"{folder / 'environment.json'}: {name} = {environment[name]!r} must be a {kind.__name__}")
    if _has_few_classes((*rows, results), predictions):
        for numbers in (*rows, results):
            numbers.pop("test_top5", None)
    tests = [{name: v for name, v in row.items() if name.startswith("test_")} for row in rows]
    latest = next(filter(None, reversed(tests)), {})
    title = title or folder.resolve().name
    return Run(folder, title, config, rows, results or latest, bool(results), environment, predictions)


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


def _read_epochs(path: Path) -> tuple[dict[str, float], ...]:
    if not path.exists():
        return ()
    try:
        with path.open(newline="") as file:
            table = csv.DictReader(file)
            if "epoch" not in (table.fieldnames or ("epoch",)):
                raise ValueError
            return tuple({name: float(v) for name, v in row.items() if v} for row in table)
    except (csv.Error, TypeError, ValueError):
        raise ValueError(f"{path} is not a table of epochs") from None


def _read_numbers(path: Path) -> dict[str, float]:
    content = _read_json(path)
    try:
        return {name: float(value) for name, value in content.items()}
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{path} must hold numbers") from None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON") from None
    return content if isinstance(content, dict) else {}
