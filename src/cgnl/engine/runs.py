"""The files of a run, found and read in its folder, whether the run has ended or not. Nothing heavy is imported."""

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..data.index import require_file
from .config import build, read_recipe, recipes
from .predictions import Prediction, read_predictions
from .settings import Config

EXPORTED = (".onnx", ".pt2", ".safetensors")
"""Files of ``cgnl export``; its folders have a ``config.json``."""


@dataclass(frozen=True)
class Run:
    """A run by its folder; each file is read when it is first asked for, and empty where it is missing."""

    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / "results.json").exists()

    @cached_property
    def config(self) -> Config:
        """Of ``config.yaml``."""
        return build(read_recipe(require_run(self.folder) / "config.yaml"))

    @cached_property
    def rows(self) -> tuple[dict[str, float], ...]:
        """Of ``metrics.csv``, one for each epoch; a row lacks what it has no value for."""
        path = self.folder / "metrics.csv"
        if not path.exists():
            return ()
        try:
            with path.open(newline="") as file:
                table = csv.DictReader(file)
                if "epoch" not in (table.fieldnames or ("epoch",)):
                    raise ValueError("another table")
                return tuple({name: float(value) for name, value in row.items() if value} for row in table)
        except (csv.Error, TypeError, ValueError):
            raise ValueError(f"{path} is not a table of epochs") from None

    @cached_property
    def results(self) -> dict[str, float]:
        """Of ``results.json``."""
        content = self._json("results.json")
        try:
            return {name: float(value) for name, value in content.items()}
        except (OverflowError, TypeError, ValueError):
            raise ValueError(f"{self.folder / 'results.json'} must hold numbers") from None

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Of ``environment.json``."""
        return self._json("environment.json")

    @cached_property
    def predictions(self) -> tuple[Prediction, ...]:
        """Of ``predictions.csv``."""
        return read_predictions(self.folder)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_text())
        except (ValueError, RecursionError):
            raise ValueError(f"{path} is not JSON") from None
        return content if isinstance(content, dict) else {}


def find_checkpoint(path: Path | str) -> Path:
    """The checkpoint at a path: of a run folder, its ``last.ckpt``."""
    path = Path(path)
    if path.exists() and (path.suffix in EXPORTED or (path / "config.json").is_file()):
        also = "cgnl predict also reads .onnx, which cgnl export last.ckpt model.onnx writes"
        raise ValueError(f"{path} is an export and no checkpoint (.ckpt); {also}")
    if not path.is_dir():
        return require_file(path)
    if not (path / "last.ckpt").exists():
        inside = sorted(path.glob("*.ckpt"))
        hint = f"; name a checkpoint, such as {inside[-1]}" if inside else ""
        raise ValueError(f"{path} is a folder without a last.ckpt{hint}")
    return path / "last.ckpt"


def find_run(word: str, runs: str) -> Path | None:
    """The folder of the run that is to be resumed, by its path, its name or its ``last.ckpt``; None for a recipe."""
    path = Path(word)
    if word in recipes() or path.suffix in (".yaml", ".yml"):
        return None
    if path.is_file() and path.name != "last.ckpt":
        where = path.parent if is_run(path.parent) else "FOLDER"
        raise ValueError(f"{path} cannot be resumed, only the last.ckpt of a run: cgnl train --resume {where}")
    folder = path.parent if path.is_file() else path
    for found in (folder, Path(runs) / folder):
        if is_run(found):
            return found
    raise ValueError(f"{path} is neither a run to resume nor a recipe{list_runs(runs)}")


def is_run(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / "config.yaml").is_file()


def require_run(folder: Path) -> Path:
    """Return the folder, or raise if no run was begun in it."""
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run folder: it has no config.yaml")
    return folder


def list_runs(runs: str) -> str:
    """The runs there are, for a message."""
    files = [*Path(runs).glob("*/config.yaml"), *Path(runs).glob("*/*/config.yaml")]
    return f"; there is {', '.join(sorted(str(file.parent) for file in files))}" if files else f"; {runs} has no runs"
