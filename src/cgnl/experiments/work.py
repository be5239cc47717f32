"""Runs are made one after the other, or by several workers; none is made twice, and any may be stopped."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from ..data.sources import CachedSource
from ..engine.evaluate import prepare
from ..engine.train import train
from ..explain.diagnose import run as diagnose
from ..explain.diagnose import write_rows
from ..spelling import first_line
from .runs import DIAGNOSIS, FAILED, Run, read_outcome, save_right


@dataclass(frozen=True)
class Worker:
    """Makes the runs that nobody else makes, until they or the time run out."""

    runs: Sequence[Run]
    deadline: float | None = None
    """Seconds since the epoch."""
    gpu: str | None = None
    """The one it sees, where there are several workers."""
    keep: bool = False
    """Whether checkpoints outlive their runs."""

    def __call__(self) -> bool:
        """Whether it came to the end, and was not stopped before."""
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        if any(run.config.compile for run in self.runs):  # a row's networks share what was compiled; rows are many
            torch._dynamo.config.recompile_limit = 64
        held: dict[str, CachedSource] = {}
        try:
            with interrupted_at(self.deadline):
                for number, run in enumerate(self.runs, 1):
                    if self.deadline is not None and time.time() >= self.deadline:
                        return False
                    with alone(run.folder) as first:
                        if first and not run.finished:
                            title = f"{number} of {len(self.runs)}: {run.label}, seed {run.config.seed}"
                            self._make(run, title, held)
        except (KeyboardInterrupt, SystemExit):  # it has saved itself
            return False
        return True

    def _make(self, run: Run, title: str, held: dict[str, CachedSource]) -> None:
        (run.folder / FAILED).unlink(missing_ok=True)
        try:
            make(run, self.keep, held)
        except (ValueError, OSError, RuntimeError) as error:
            run.folder.mkdir(parents=True, exist_ok=True)
            reason = first_line(error)
            (run.folder / FAILED).write_text(f"{reason}\n")
            print(f"{title}: {reason}", flush=True)
            return
        outcome = read_outcome(run.folder, run.config.seed)
        name, value = next(iter(outcome.numbers.items()))
        print(f"{title}: {name} {value:.2f}, {in_minutes(outcome.seconds)}", flush=True)


def make(run: Run, keep: bool, held: dict[str, CachedSource]) -> None:
    """Train a network, or go on where it stopped, and write down what a table needs."""
    train(run.config, resume=True, silent=True, cache=held)
    gc.collect()
    save_right(run.folder)
    if run.diagnosed:
        test = prepare(run.folder / "last.ckpt", {"devices": 1, "data.cache": run.config.data.cache}, held)
        write_rows(diagnose(test).outcomes, run.folder / DIAGNOSIS)
    for checkpoint in () if keep else run.folder.glob("*.ckpt"):
        checkpoint.unlink()


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Whether nobody else works in a folder; a lock of the system's, which ends with the process that has it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def interrupted_at(deadline: float | None) -> Iterator[None]:
    """Ctrl-C by the clock: the run that is under way saves itself and stops."""
    if deadline is None:
        yield
        return
    timer = threading.Timer(max(0.0, deadline - time.time()), os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    with answering_interrupts():
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@contextmanager
def answering_interrupts() -> Iterator[None]:
    """Let Ctrl-C stop this process, also where a shell has told it not to, as in the background of a script."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def workers(runs: Sequence[Run], budget: float | None, jobs: int, keep: bool) -> list[Worker]:
    """``jobs`` for each GPU, or as many where there is none."""
    deadline = None if budget is None else time.time() + 60 * budget
    gpus: list[str | None] = [str(i) for i in range(torch.cuda.device_count())]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        gpus = list(visible.split(","))
    places = (gpus or [None]) * jobs
    if len(places) == 1:
        return [Worker(runs, deadline, keep=keep)]
    return [Worker(runs, deadline, gpu, keep) for gpu in places]


def work(team: Sequence[Worker]) -> bool:
    """Let the workers work, side by side where there are several; whether all came to their end."""
    if len(team) == 1:
        return team[0]()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(worker,)) for worker in team]
    for process in processes:
        process.start()
    for process in processes:
        while process.is_alive():
            with suppress(KeyboardInterrupt):  # they are told too, and save themselves
                process.join()
    return all(process.exitcode == 0 for process in processes)


def _work(worker: Worker) -> None:
    with answering_interrupts():
        threading.Thread(target=_end_with_parent, daemon=True).start()
        sys.exit(0 if worker() else STOPPED)


def _end_with_parent() -> None:
    """Ctrl-C when the command is no more, or its workers would go on unseen."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


STOPPED = 130
"""The exit status of a worker that was stopped, as a shell's."""


def in_minutes(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if seconds >= 90 else f"{round(seconds)} s"
