"""Kill one of two ranks at random moments: the other must end by itself, and the resumed run like an undisturbed one.

    python -m benchmarks.rank_kills [--kills 40] [--seed 0] [--output benchmarks/results/rank_kills.txt]

Either rank of a training by ``devices=2`` on CPUs is killed (SIGKILL) at a random moment: some milliseconds after it
has begun the n-th of all that it does, or in start-up. The survivor has ``LIMIT`` seconds to end with status 2 and one
sentence. Then two ranks resume, and everything except the clock is compared, bit by bit, with the run that nobody
disturbed.
"""

import ctypes
import json
import mmap
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from cgnl.engine import distributed
from tests.engine.conftest import options
from tests.engine.forks import prepare, run_command, start, wait
from tests.engine.kills import PHASES, RUN, Blow, Undisturbed, differences, tell_phases, train

from .harness import make_parser, report

LIMIT = 20.0
"""Seconds in which the survivor must have ended."""
LONGEST = 300.0
"""Seconds that a run may take which nobody kills."""
ADOPT = 36
"""PR_SET_CHILD_SUBREAPER of Linux."""
START_UP = 0.2
"""Share of the kills that come in start-up."""
DELAY, DELAY_IN_START_UP = 0.03, 0.5
"""Seconds within which a kill comes, after what the rank has begun."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""What the command sets in its environment."""
NOBODY = Undisturbed(Path(), 0.0, 0, 0)
"""Whose checkpoints are not hit."""


class Ranks(NamedTuple):
    """Two ranks of one training, rank 1 a child of rank 0."""

    pids: tuple[int, int]
    phases: mmap.mmap
    """What each is about, as an index of PHASES."""
    counts: mmap.mmap
    """How many things each has begun."""
    output: Path

    def said(self, rank: int) -> str:
        """What a rank printed to stderr."""
        path = self.output / f"{rank}.err"
        return path.read_text() if path.exists() else ""


@dataclass
class Figures:
    """What came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    """By rank and by what was under way."""
    seconds: list[float] = field(default_factory=list)
    """From each kill to the end of the survivor."""
    finished: int = 0
    """Survivors that had done their part, or had not been started."""
    identical: int = 0
    faults: list[str] = field(default_factory=list)


@contextmanager
def adopting() -> Iterator[None]:
    """Be the parent of ranks whose own was killed, so as to know how they end."""
    prctl = ctypes.CDLL(None).prctl
    prctl(ADOPT, 1)
    try:
        yield
    finally:
        prctl(ADOPT, 0)


class Spare:
    """Rank 1 in a fork of rank 0 that was made before anything was opened; it waits to be started by ``Popen``."""

    def __init__(self, run: Any):
        self.status: int | None = None
        asked, self.ask = os.pipe()
        self.pid = start(lambda: self._wait(asked, run))
        os.close(asked)

    def _wait(self, asked: int, run: Any) -> int:
        os.close(self.ask)
        with os.fdopen(asked) as pipe:
            environment = pipe.read()
        if not environment:  # rank 0 was killed before: there was no rank 1 yet
            return 0
        os.environ.update(json.loads(environment))
        return run()

    def popen(self, _: list[str], env: dict[str, str]) -> "Spare":
        with suppress(BrokenPipeError), os.fdopen(self.ask, "w") as pipe:  # it may have been killed
            json.dump(env, pipe)
        return self

    def poll(self) -> int | None:
        if self.status is None:
            self.status = wait(self.pid, 0)
        return self.status


def start_ranks(runs: Path, output: Path, resume: bool = False) -> Ranks:
    """Start a training of two ranks."""
    words = ["train", "parts", *options(**RUN | {"devices": 2, "runs": runs}), *(["--resume"] if resume else [])]
    phases, counts, pids = mmap.mmap(-1, 2), mmap.mmap(-1, 2), mmap.mmap(-1, 8)
    output.mkdir(parents=True, exist_ok=True)

    def run(rank: int) -> int:
        def tell(name: str) -> None:
            phases[rank] = PHASES.index(name)
            counts[rank] += 1

        tell_phases(tell, Blow(), NOBODY)
        return run_command(words, output / str(rank))

    def first() -> int:
        spare = Spare(lambda: run(1))
        pids[:] = spare.pid.to_bytes(8)
        distributed.subprocess = SimpleNamespace(Popen=spare.popen)
        return run(0)

    pid = start(first)
    while not any(pids[:]):
        time.sleep(0.001)
    return Ranks((pid, int.from_bytes(pids[:])), phases, counts, output)


def end(ranks: Ranks, seconds: float = LONGEST) -> tuple[int | None, int | None]:
    """How both end; None for one that has not in time, or that rank 0 has waited for itself."""
    return wait(ranks.pids[0], seconds), wait_adopted(ranks.pids[1], seconds)


def wait_adopted(pid: int, seconds: float) -> int | None:
    try:
        return wait(pid, seconds)
    except ChildProcessError:  # rank 0 has seen it end
        return None


def undisturbed(folder: Path) -> tuple[Path, bytes]:
    """The folder of a run of two ranks that nobody disturbs, and how many things each of them does."""
    ranks = start_ranks(folder / "whole", folder)
    status, _ = end(ranks)
    if status != 0:
        raise RuntimeError(f"the undisturbed run ended with {status}: {ranks.said(0)}")
    return folder / "whole" / "run", ranks.counts[:]


def reached(ranks: Ranks, victim: int, number: int) -> bool:
    """Wait until a rank has begun so many things; False where rank 0 has ended before."""
    while ranks.counts[victim] < number:
        if wait(ranks.pids[0], 0.0005) is not None:
            return False
    return True


def experiment(rng: random.Random, folder: Path, whole: Path, counts: bytes, figures: Figures) -> None:
    """Kill one rank, wait for the other, resume and compare."""
    runs, victim = folder / "runs", rng.randrange(2)
    number = 0 if rng.random() < START_UP else rng.randrange(1, counts[victim])
    ranks = start_ranks(runs, folder)
    if not reached(ranks, victim, number):
        raise RuntimeError(f"a run that was to be killed ended before: {ranks.said(0)}")
    time.sleep(rng.uniform(0, DELAY if number else DELAY_IN_START_UP))
    os.kill(ranks.pids[victim], signal.SIGKILL)
    killed = time.perf_counter()
    figures.kills[f"rank {victim} in {PHASES[ranks.phases[victim]]}"] += 1
    if victim == 0:
        wait(ranks.pids[0])
    status = wait_adopted(ranks.pids[1 - victim], LIMIT)
    figures.seconds.append(time.perf_counter() - killed)
    figures.faults += [f"{folder.name}: {fault}" for fault in judge(status, ranks, 1 - victim, figures)]
    if victim == 1:
        wait_adopted(ranks.pids[1], 0)
    again = start_ranks(runs, folder / "again", resume=(runs / "run").exists())
    status, _ = end(again)
    found = [f"resumed, it ended with {status}"] if status else list(differences(whole, runs / "run"))
    figures.identical += not found
    figures.faults += [f"{folder.name}: {fault}" for fault in found]


def judge(status: int | None, ranks: Ranks, survivor: int, figures: Figures) -> Iterator[str]:
    """What is wrong with how a survivor ended."""
    said = ranks.said(survivor)
    if status is None:
        os.kill(ranks.pids[survivor], signal.SIGKILL)
        wait_adopted(ranks.pids[survivor], LIMIT)
        yield f"rank {survivor} was still there after {LIMIT:.0f} seconds"
    elif status == 0:
        figures.finished += 1
        if said:
            yield f"rank {survivor} ended well, and said {said!r}"
    elif status != 2:
        yield f"rank {survivor} ended with {status}: {said!r}"
    elif said.count("\n") != 1 or distributed.LOST not in said:
        yield f"rank {survivor} said {said!r}"


def describe(figures: Figures, seed: int, seconds: float) -> list[str]:
    count = len(figures.seconds)
    median, longest = statistics.median(figures.seconds), max(figures.seconds)
    return [
        f"one of two ranks killed {count} times (seed {seed}, torch {torch.__version__})",
        *(f"  {figures.kills[name]:4} {name}" for name in sorted(figures.kills)),
        f"the other ended by itself after {median:.1f} seconds (median), {longest:.1f} (longest)",
        f"  {figures.finished:4} of them had done their part, or had not been started",
        f"{figures.identical} of {count} resumed runs ended identical",
        f"{seconds:.0f} seconds",
    ]


def measure(kills: int, seed: int, folder: Path) -> Figures:
    """Kill so many times."""
    rng, figures = random.Random(seed), Figures()
    with adopting():
        train(folder / "first")  # in this process: what is imported on the way is then imported for all
        whole, counts = undisturbed(folder)
        for number in range(kills):
            experiment(rng, folder / f"kill {number}", whole, counts, figures)
            print(f"{figures.identical} of {number + 1} identical", file=sys.stderr, flush=True)
    return figures


def main() -> int:
    parser = make_parser(__doc__, "kills", 40, "times that one of two ranks is killed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if QUIET.items() - os.environ.items():  # it must be there before torch is imported
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | QUIET)  # noqa: S606
    prepare()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.kills, args.seed, Path(folder))
    return report(describe(figures, args.seed, time.perf_counter() - began), figures.faults, args.output)


if __name__ == "__main__":
    sys.exit(main())
