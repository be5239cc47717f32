"""Begin two trainings of one name together, and resume one run twice at once: nothing may be mixed.

    python -m benchmarks.same_name [--pairs 40] [--seed 0] [--output benchmarks/results/same_name.txt]

The two trainings of a pair differ in their seeds. Each must end in a folder of its own, whose files are, bit by bit,
those of a run that was alone. Of two commands that resume a run, one goes on to the same end, and the other is refused.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cgnl.engine.config import read_recipe
from tests.engine.conftest import options
from tests.engine.forks import prepare, start_command, wait
from tests.engine.kills import CLOCK, RUN, differences, table, train

from .harness import make_parser, report

SEEDS = (0, 1)
"""Of the two trainings of a pair."""
APART = 0.05
"""Seconds within which the second command begins after the first."""
LONGEST = 300.0
"""Seconds that a run may take."""


@dataclass
class Figures:
    """What came of it."""

    trained: Counter[str] = field(default_factory=Counter)
    """Pairs of trainings, by the folders there are afterwards."""
    resumed: Counter[str] = field(default_factory=Counter)
    """Pairs that resume one run, by what the second command did."""
    faults: list[str] = field(default_factory=list)


def command(runs: Path, seed: int) -> list[str]:
    return ["train", "parts", *options(**RUN | {"seed": seed, "runs": runs})]


def alone(runs: Path, seed: int) -> Path:
    """The folder of a run that was alone."""
    runs.mkdir(parents=True)
    if status := wait(start_command(command(runs, seed), runs / "alone"), LONGEST):
        raise RuntimeError(f"a run that was alone ended with {status}: {(runs / 'alone.err').read_text()}")
    return runs / "run"


def stopped(runs: Path) -> Path:
    """The folder of a run that was killed in the middle."""
    runs.mkdir(parents=True)
    child, last = start_command(command(runs, SEEDS[0]), runs / "stopped"), runs / "run" / "metrics.csv"
    while not last.exists():  # its first epoch
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    if wait(child) != -signal.SIGKILL:
        raise RuntimeError("a run that was to be killed ended before")
    return runs / "run"


def together(rng: random.Random, output: Path, *commands: Sequence[str]) -> list[tuple[int | None, str]]:
    """Begin commands one shortly after another: how each ended, and what it said to stderr."""
    children = []
    for number, words in enumerate(commands):
        time.sleep(rng.uniform(0, APART) if number else 0)
        children.append(start_command(words, output / f"{number}"))
    return [(wait(child, LONGEST), (output / f"{n}.err").read_text()) for n, child in enumerate(children)]


def train_pair(rng: random.Random, folder: Path, expected: Sequence[Path], figures: Figures) -> Iterator[str]:
    """Two trainings of one name."""
    runs = folder / "runs"
    runs.mkdir(parents=True)
    for status, said in together(rng, folder, *(command(runs, seed) for seed in SEEDS)):
        if status or said:
            yield f"it ended with {status}: {said!r}"
    found = sorted(runs.iterdir())
    figures.trained[" and ".join(path.name for path in found)] += 1
    seeds = [read_recipe(path / "config.yaml")["seed"] for path in found]
    if sorted(seeds) != list(SEEDS):
        yield f"the folders are of seeds {seeds}"
    for path, seed in zip(found, seeds, strict=True):
        yield from faults(path, expected[seed])


def resume_pair(rng: random.Random, folder: Path, begun: Path, whole: Path, figures: Figures) -> Iterator[str]:
    """Two commands that resume one run, by its folder or by its name."""
    run = folder / "runs" / "run"
    shutil.copytree(begun, run)
    ways = [["train", "--resume", str(run)], [*command(run.parent, SEEDS[0]), "--resume"]]
    (first, said), (second, also) = together(rng, folder, rng.choice(ways), rng.choice(ways))
    refused = [words for status, words in ((first, said), (second, also)) if status == 2]
    figures.resumed["was refused" if refused else "came when the first had ended"] += 1
    if {first, second} - {0, 2} or len(refused) == 2:
        yield f"they ended with {first} and {second}: {said!r}, {also!r}"
    for words in refused:
        if words.count("\n") != 1 or str(run) not in words or "is being trained by process" not in words:
            yield f"it was refused with {words!r}"
    yield from faults(run, whole)
    if others := [path.name for path in run.parent.iterdir() if path != run]:
        yield f"there is also {others}"


def faults(run: Path, whole: Path) -> Iterator[str]:
    """What is not as in the run that was alone, or was not written by one process."""
    yield from (f"{run.name}: {fault}" for fault in differences(whole, run))
    if extra := {path.name for path in run.iterdir()} ^ {path.name for path in whole.iterdir()}:
        yield f"{run.name}: {sorted(extra)} is in one folder alone"
    results, rows = json.loads((run / "results.json").read_text()), table((run / "metrics.csv").read_text())
    for name in CLOCK & results.keys() & rows[-1].keys():
        if results[name] < float(rows[-1][name]):
            yield f"{run.name}: {name} in results.json and metrics.csv are of two runs"


def measure(pairs: int, seed: int, folder: Path) -> Figures:
    """Begin so many pairs of each kind."""
    rng, figures = random.Random(seed), Figures()
    train(folder / "first")  # in this process: what is imported on the way is then imported for all
    whole, begun = [alone(folder / f"alone {one}", one) for one in SEEDS], stopped(folder / "stopped")
    for number in range(pairs):
        trained = train_pair(rng, folder / f"train {number}", whole, figures)
        figures.faults += [f"training {number}: {fault}" for fault in trained]
        resumed = resume_pair(rng, folder / f"resume {number}", begun, whole[0], figures)
        figures.faults += [f"resuming {number}: {fault}" for fault in resumed]
        print(f"{number + 1} pairs, {len(figures.faults)} faults", file=sys.stderr, flush=True)
    return figures


def describe(figures: Figures, pairs: int, seed: int, seconds: float) -> list[str]:
    return [
        f"{pairs} pairs of trainings of one name begun together (seed {seed}, torch {torch.__version__})",
        *(f"  {count:4} ended as {names}, each as if it were alone" for names, count in figures.trained.items()),
        f"{pairs} pairs of commands that resume one run, of which one went on to the same end",
        *(f"  {count:4} times the other {what}" for what, count in figures.resumed.items()),
        f"{len(figures.faults)} faults",
        f"{seconds:.0f} seconds",
    ]


def main() -> int:
    parser = make_parser(__doc__, "pairs", 40, "of each kind")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    prepare()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.pairs, args.seed, Path(folder))
    return report(describe(figures, args.pairs, args.seed, time.perf_counter() - began), figures.faults, args.output)


if __name__ == "__main__":
    sys.exit(main())
