"""A run of a row with one seed: its settings, and what its folder holds when it has finished."""

import csv
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..atomic_io import write_text
from ..engine.config import read_recipe
from ..engine.folder import check_same
from ..engine.predictions import Prediction, read_predictions
from ..engine.runs import Run
from ..engine.settings import Config
from .tables import METRICS

CORRECT, DIAGNOSIS, FAILED = "right.txt", "diagnosis.csv", "failed.txt"


@dataclass(frozen=True)
class PlannedRun:
    """A run to make: of a row by its name, and whether its attention is to be diagnosed."""

    row: str
    label: str
    config: Config
    diagnosed: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.config.runs) / str(self.config.name)

    @property
    def finished(self) -> bool:
        needed = {"results.json": True, CORRECT: self.config.data.dataset != "coco", DIAGNOSIS: self.diagnosed}
        return all((self.folder / name).exists() for name in needed if needed[name])

    def check(self) -> None:
        """Refuse to resume with other settings, except those that only change the speed."""
        if (self.folder / "config.yaml").exists():
            before = read_recipe(self.folder / "config.yaml")
            fast = {name: before.get(name, getattr(self.config, name)) for name in ("compile", "precision")}
            try:
                check_same(replace(self.config, **fast), {"cgnl": {"config": before}}, self.folder)
            except ValueError as error:
                raise ValueError(f"{error}: give the same settings, or another --output") from None


@dataclass(frozen=True)
class Outcome:
    """Results of a finished run.

    Attributes:
        numbers: metric -> per cent.
        correct: 1 for each correctly classified test sample, else 0; empty for detectors.
        samples: digest of the test samples.
        diagnosis: lines of the diagnosis.
    """

    seed: int
    split: int
    numbers: dict[str, float]
    seconds: float
    config: Config
    correct: str = ""
    samples: str = ""
    diagnosis: tuple[dict[str, str], ...] = ()


def read_outcomes(folder: Path, row: str) -> list[Outcome]:
    """Finished runs of a row, by seed and split."""
    found = [read_outcome(path.parent, seed) for seed, path in find_files(folder, row, "results.json")]
    return sorted(found, key=lambda o: (o.seed, o.split))


def find_files(folder: Path, row: str, name: str) -> Iterator[tuple[int, Path]]:
    """Files of this name in the run folders of a row, with their seeds."""
    for path in sorted(folder.glob(f"{row}_*seed*/{name}")):
        if found := re.fullmatch(rf"{re.escape(row)}(?:_split\d+)?_seed(\d+)", path.parent.name):
            yield int(found[1]), path


def read_outcome(folder: Path, seed: int) -> Outcome:
    """Read the folder of a finished run."""
    try:
        run = Run(folder)
        results, config = run.results, run.config
        numbers = {name: 100 * results[f"test_{name}"] for name in METRICS if f"test_{name}" in results}
        samples, correct = (folder / CORRECT).read_text().split() if (folder / CORRECT).exists() else ("", "")
        if correct:  # older results.json broke ties of half precision differently
            numbers["top1"] = 100 * correct.count("1") / len(correct)
        lines = (folder / DIAGNOSIS).read_text().splitlines() if (folder / DIAGNOSIS).exists() else []
        diagnosis = tuple(csv.DictReader(lines))
        return Outcome(seed, config.data.split, numbers, results["seconds"], config, correct, samples, diagnosis)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged ({error}): remove it, and it will be run again") from None


def save_correct(folder: Path) -> None:
    """Write which test samples were classified correctly: small enough to keep when predictions are not."""
    if predictions := read_predictions(folder):
        correct = "".join("01"[prediction.right] for prediction in predictions)
        write_text(folder / CORRECT, f"{digest(predictions)}\n{correct}\n")


def digest(predictions: Sequence[Prediction]) -> str:
    """Identify test samples, wherever their files are."""
    names = "\n".join(f"{'/'.join(Path(a.name).parts[-2:])} {a.label}" for a in predictions)
    return hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=8).hexdigest()
