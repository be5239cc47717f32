"""What the folder of a run says, whether the run has ended or not."""

import csv
import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..engine.config import Config, build, read_recipe
from ..engine.predictions import Prediction, read_predictions
from .examples import Samples


@dataclass(frozen=True)
class Run:
    """A run by its files."""

    folder: Path
    title: str
    config: Config
    rows: tuple[dict[str, float], ...]
    """Of ``metrics.csv``, one for each epoch; what a row has no value for is left out."""
    results: dict[str, float]
    """Of ``results.json``, which is there once a run has ended; else of the last test between epochs."""
    finished: bool
    environment: dict[str, Any]
    predictions: tuple[Prediction, ...]
    """What the network said of each test sample; none where that was not written, or where a task has no classes."""

    @cached_property
    def samples(self) -> Samples:
        """What it was tested on; found once, for that takes a while with a large dataset."""
        return Samples(self.config)

    @property
    def speeds(self) -> list[float]:
        """Samples in a second of training, epoch by epoch."""
        return [row["samples_per_second"] for row in self.rows if "samples_per_second" in row]

    @property
    def speed(self) -> float | None:
        """The median of them."""
        return statistics.median(self.speeds) if self.speeds else None

    @property
    def seconds(self) -> float | None:
        return self.results.get("seconds", self.rows[-1].get("seconds") if self.rows else None)

    @property
    def command(self) -> str:
        """What repeats the run: the command it was begun by, or else its settings."""
        return self.environment.get("command") or shlex.join(["cgnl", "train", str(self.folder / "config.yaml")])


def read_run(folder: Path | str, title: str | None = None) -> Run:
    """The run in a folder."""
    folder = Path(folder)
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is no folder of a run: it has no config.yaml")
    rows, results, predictions = (
        _rows(folder / "metrics.csv"),
        _numbers(folder / "results.json"),
        read_predictions(folder),
    )
    if _few_classes((*rows, results), predictions):
        for numbers in (*rows, results):
            numbers.pop("test_top5", None)
    tested = [row for row in rows if any(name.startswith("test_") for name in row)]
    between = {name: value for name, value in tested[-1].items() if name.startswith("test_")} if tested else {}
    return Run(
        folder,
        title or folder.resolve().name,
        build(read_recipe(folder / "config.yaml")),
        rows,
        results or between,
        bool(results),
        _environment(folder / "environment.json"),
        predictions,
    )


def read_runs(folders: list[str]) -> list[Run]:
    """Several runs, each with a title of its own."""
    names = [Path(folder).resolve().name for folder in folders]
    titles = names if len(set(names)) == len(names) else [str(Path(folder)) for folder in folders]
    if len(set(titles)) < len(titles):
        raise ValueError(f"{next(t for t in titles if titles.count(t) > 1)} is named twice")
    return [read_run(folder, title) for folder, title in zip(folders, titles, strict=True)]


def _few_classes(tests: Sequence[dict[str, float]], predictions: Sequence[Prediction]) -> bool:
    """Whether there are five at most, as far as can be told: then the top-5 is always right and says nothing."""
    named = {name for prediction in predictions for name in (prediction.label, prediction.predicted)}
    return len(named) <= 5 and all(numbers.get("test_top5", 1) == 1 for numbers in tests)


def _rows(path: Path) -> tuple[dict[str, float], ...]:
    if not path.exists():
        return ()
    try:
        with path.open(newline="") as file:
            table = csv.DictReader(file)
            if "epoch" not in (table.fieldnames or ("epoch",)):
                raise ValueError
            return tuple({name: float(v) for name, v in row.items() if v} for row in table)
    except (csv.Error, TypeError, ValueError):
        raise ValueError(f"{path} is no table of epochs") from None


def _numbers(path: Path) -> dict[str, float]:
    content = _json(path)
    try:
        return {name: float(value) for name, value in content.items()}
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{path} holds something other than numbers") from None


def _environment(path: Path) -> dict[str, Any]:
    content = _json(path)
    for name, kind in {"gpus": list, "packages": dict}.items():
        if not isinstance(content.get(name, kind()), kind):
            raise ValueError(f"{path} does not say which {name} there were: {content[name]!r}")
    return content


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON") from None
    return content if isinstance(content, dict) else {}
