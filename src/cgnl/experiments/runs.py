"""A run of a row with a seed: what it is told, and what its folder says once it has ended."""

import csv
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..engine.atomic_io import write_text
from ..engine.config import Config, build, read_recipe
from ..engine.folder import check_same
from ..engine.predictions import Prediction, read_predictions
from .tables import METRICS

RIGHT, DIAGNOSIS, FAILED = "right.txt", "diagnosis.csv", "failed.txt"


@dataclass(frozen=True)
class Run:
    """What is to be run."""

    row: str
    """The row's name."""
    label: str
    config: Config
    diagnosed: bool = False
    """Whether its attention is diagnosed: what happens with something else in its place."""

    @property
    def folder(self) -> Path:
        return Path(self.config.runs) / str(self.config.name)

    @property
    def finished(self) -> bool:
        files = ["results.json", *([] if self.config.data.dataset == "coco" else [RIGHT])]
        return all((self.folder / name).exists() for name in [*files, *([DIAGNOSIS] if self.diagnosed else [])])

    def check(self) -> None:
        """Refuse a run that was begun with other settings than these; how fast it was is no matter."""
        if (self.folder / "config.yaml").exists():
            before = read_recipe(self.folder / "config.yaml")
            fast = {name: before.get(name, getattr(self.config, name)) for name in ("compile", "precision")}
            try:
                check_same(replace(self.config, **fast), {"cgnl": {"config": before}}, self.folder)
            except ValueError as error:
                raise ValueError(f"{error}: give the same settings, or another --output") from None


@dataclass(frozen=True)
class Outcome:
    """What came out of a run."""

    seed: int
    split: int
    numbers: dict[str, float]
    """By the names of ``METRICS``, in per cent."""
    seconds: float
    config: Config
    right: str = ""
    """1 for each test sample that was named correctly, else 0; nothing where objects are found."""
    samples: str = ""
    """Which samples these are."""
    diagnosis: tuple[dict[str, str], ...] = ()


def run_name(row: str, seed: int, split: int | None = None) -> str:
    return f"{row}{f'_split{split}' if split else ''}_seed{seed}"


def outcomes(folder: Path, row: str) -> Iterator[Outcome]:
    """The runs of a row that have ended, by seed and split."""
    found = [read_outcome(path.parent, seed) for seed, path in files(folder, row, "results.json")]
    yield from sorted(found, key=lambda o: (o.seed, o.split))


def files(folder: Path, row: str, name: str) -> Iterator[tuple[int, Path]]:
    """The files of a name in the folders of a row's runs, with their seeds."""
    for path in sorted(folder.glob(f"{row}_*seed*/{name}")):
        if found := re.fullmatch(rf"{re.escape(row)}(?:_split\d+)?_seed(\d+)", path.parent.name):
            yield int(found[1]), path


def read_outcome(folder: Path, seed: int) -> Outcome:
    """What the folder of a run that has ended says."""
    try:
        results = json.loads((folder / "results.json").read_text())
        config = build(read_recipe(folder / "config.yaml"))
        numbers = {name: 100 * results[f"test_{name}"] for name in METRICS if f"test_{name}" in results}
        samples, right = (folder / RIGHT).read_text().split() if (folder / RIGHT).exists() else ("", "")
        if right:  # older results.json broke ties of half precision in another way than the predictions
            numbers["top1"] = 100 * right.count("1") / len(right)
        lines = (folder / DIAGNOSIS).read_text().splitlines() if (folder / DIAGNOSIS).exists() else []
        diagnosis = tuple(csv.DictReader(lines))
        return Outcome(seed, config.data.split, numbers, results["seconds"], config, right, samples, diagnosis)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged ({error}): remove it, and it will be run again") from None


def save_right(folder: Path) -> None:
    """Which test samples were named correctly, in a line that can be kept where all predictions would be too much."""
    if predictions := read_predictions(folder):
        right = "".join("01"[prediction.right] for prediction in predictions)
        write_text(folder / RIGHT, f"{digest(predictions)}\n{right}\n")


def digest(predictions: Sequence[Prediction]) -> str:
    """Which samples these are, wherever their files are."""
    names = "\n".join(f"{'/'.join(Path(a.name).parts[-2:])} {a.label}" for a in predictions)
    return hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=8).hexdigest()
