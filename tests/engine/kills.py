"""Kills training at random moments, resumes it, and compares its end with that of a run nobody disturbed.

One process imports everything and has run once; each training that may be killed happens in a fork of it.
"""

import csv
import itertools
import json
import math
import mmap
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import torch

from cgnl.engine import checkpoint, loop
from cgnl.engine import train as training
from cgnl.engine.config import load
from cgnl.engine.tasks import Images
from tests.engine.conftest import SETTINGS
from tests.engine.forks import start, wait

RUN = SETTINGS | {"optim.epochs": 5, "model.dropout": 0.5, "save_every": 1}
"""Fifteen steps and five tests, with a checkpoint after each."""
PHASES = ("start-up", "a step", "a test", "checkpoint writing", "the end")
MOMENTS = ("within the bytes", "before fsync", "before the renaming", "after the renaming")
SLOWER = 2.0
"""How many times as long as the undisturbed run others may take; a blow that comes too late is dealt again."""
CLOCK = {"seconds", "samples_per_second", "runs"}
"""What two runs may differ in: how long they took, and where they are."""


class Blow(NamedTuple):
    """When a process is killed: at a share of an undisturbed run's time, or while it writes a checkpoint."""

    after: float = math.inf
    write: int = -1
    """Which checkpoint, in the order they are written."""
    moment: str = ""
    share: float = 0.0
    """Of its bytes."""


def draw(rng: random.Random, writes: int) -> Blow:
    """A blow at any time, or one in the middle of writing: as often one as the other."""
    if rng.random() < 0.5:
        return Blow(after=rng.uniform(0, SLOWER))
    return Blow(write=rng.randrange(writes), moment=rng.choice(MOMENTS), share=rng.random())


class Undisturbed(NamedTuple):
    """The run that all others are compared with."""

    folder: Path
    seconds: float
    writes: int
    """Checkpoints it wrote."""
    bytes: int
    """Of its largest one."""


@dataclass
class Figures:
    """What came of it."""

    endings: int = 0
    identical: int = 0
    readable: int = 0
    """Checkpoints found after kills."""
    unreadable: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By what was under way."""
    faults: list[str] = field(default_factory=list)

    def add(self, other: "Figures") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def train(runs: Path, resume: bool = False) -> Path:
    os.environ.pop("CGNL_RUN_FOLDER", None)
    resume = resume and (runs / "run").exists()  # it may have been killed before it had a folder
    return training.train(load("parts", RUN | {"runs": str(runs)}), resume, silent=True).folder


def undisturbed(runs: Path) -> Undisturbed:
    """Train without a kill, in this process. The second time shows how long it takes where nothing is done first."""
    sizes: list[int] = []
    original = loop.write

    def write(content: Any, path: Path) -> None:
        original(content, path)
        sizes.append(path.stat().st_size)

    train(runs / "first")
    loop.write = write
    try:
        began = time.perf_counter()
        folder = train(runs / "whole")
        return Undisturbed(folder, time.perf_counter() - began, len(sizes), max(sizes))
    finally:
        loop.write = original


def experiment(seed: int, number: int, runs: Path, whole: Undisturbed) -> Figures:
    """One run that is killed, sometimes more than once, and resumed to its end."""
    rng, figures, begun = random.Random(f"{seed} {number}"), Figures(), False
    while not begun or rng.random() < 0.25:
        phase = killed(runs, begun, draw(rng, whole.writes), whole)
        if phase is None:  # it ended before
            continue
        begun = True
        figures.kills[phase] += 1
        for path in (runs / "run").glob("*.ckpt"):
            try:
                checkpoint.read(path)
                figures.readable += 1
            except ValueError as error:
                figures.unreadable += 1
                figures.faults.append(f"experiment {number}: {error}")
    status = fork(lambda: train(runs, resume=True))
    found = [f"the resumed run ended with {status}"] if status else list(differences(whole.folder, runs / "run"))
    figures.endings, figures.identical = 1, int(not found)
    figures.faults += [f"experiment {number}: {fault}" for fault in found]
    return figures


def killed(runs: Path, resume: bool, blow: Blow, whole: Undisturbed) -> str | None:
    """Train until the blow falls: what was under way then, or nothing where the run ended first."""
    if not resume and (runs / "run").exists():  # a run that ended: begin anew
        os.rename(runs, runs.with_name(f"{runs.name}-ended-{time.monotonic_ns()}"))
    phase = mmap.mmap(-1, 1)  # shared with the fork

    def child() -> None:
        tell_phases(lambda name: phase.__setitem__(0, PHASES.index(name)), blow, whole)
        train(runs, resume)

    status = fork(child, kill_after=blow.after * whole.seconds)
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a run that was to be killed ended with {status}")
    return PHASES[phase[0]] if status else None


def fork(function: Callable[[], object], kill_after: float = math.inf) -> int:
    """Call a function in a fork of this process, which may be killed: how it ended."""

    def call() -> None:
        function()

    child = start(call)
    status = wait(child, kill_after)
    if status is None:
        os.kill(child, signal.SIGKILL)
        status = wait(child)
    assert status is not None
    return status


def tell_phases(tell: Callable[[str], None], blow: Blow, whole: Undisturbed) -> None:
    """Have this process tell what it is about, and kill itself where a checkpoint is hit."""

    def around(owner: Any, name: str, before: str, after: str | None = None) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            tell(before)
            result = original(*args, **options)
            if after:
                tell(after)
            return result

        setattr(owner, name, call)

    original, count = loop.write, itertools.count()

    def write(content: Any, path: Path) -> None:
        hit = next(count) == blow.write
        if hit:
            arm(blow, whole)
        original(content, path)
        if hit:
            die()

    loop.write = write
    around(loop, "write", "checkpoint writing", "a step")
    around(loop.Loop, "backward", "a step")
    around(Images, "start_test", "a test")
    around(training, "save_predictions", "the end")


def arm(blow: Blow, whole: Undisturbed) -> None:
    """Let the next checkpoint be the last thing this process does."""
    save: Any = torch.save
    share = int(blow.share * whole.bytes)
    if blow.moment == "within the bytes":
        torch.save = lambda content, file: save(content, Deadly(file, share))
    elif blow.moment == "before fsync":
        os.fsync = lambda _: die()
    elif blow.moment == "before the renaming":
        setattr(Path, "replace", lambda *_: die())  # noqa: B010


class Deadly:
    """A file that takes so many bytes."""

    def __init__(self, file: BinaryIO, count: int):
        self.file, self.left = file, count

    def write(self, content: Any) -> int:
        content = bytes(content)
        self.file.write(content[: self.left])
        if len(content) >= self.left:
            self.file.flush()
            die()
        self.left -= len(content)
        return len(content)

    def flush(self) -> None:
        """Everything was written: this one is smaller than others."""
        self.file.flush()
        die()


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


def differences(one: Path, other: Path) -> Iterator[str]:
    """What is not the same, to the last bit, in the folders of two runs."""
    for name in ("last.ckpt", "best.ckpt"):
        yield from unequal(checkpoint.read(one / name), checkpoint.read(other / name), name)
    for name, parse in {"metrics.csv": table, "results.json": json.loads}.items():
        yield from unequal(parse((one / name).read_text()), parse((other / name).read_text()), name)
    if (one / "predictions.csv").read_bytes() != (other / "predictions.csv").read_bytes():
        yield "predictions.csv"


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def unequal(one: Any, other: Any, where: str) -> Iterator[str]:
    """Where two values differ, but for the clock."""
    if type(one) is not type(other):
        yield where
    elif isinstance(one, dict):
        for key in {**one, **other}:
            if key not in CLOCK:
                yield from unequal(one.get(key), other.get(key), f"{where}: {key}")
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            yield where
        for number, pair in enumerate(zip(one, other, strict=False)):
            yield from unequal(*pair, f"{where}: {number}")
    elif isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape or one.numpy().tobytes() != other.numpy().tobytes():
            yield where
    elif one != other:
        yield where
