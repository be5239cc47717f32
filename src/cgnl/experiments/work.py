"""Make runs one after another or by several workers; none is made twice, and any can be stopped and resumed."""

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
from ..text import first_line, format_duration, say
from .runs import DIAGNOSIS, FAILED, PlannedRun, read_outcome, save_correct

STOPPED = 130
"""Exit status of an interrupted worker, as in a shell."""


@dataclass(frozen=True)
class Worker:
    """Makes all runs that no other worker is making, until the deadline in seconds since the epoch.

    ``gpu`` is the only one that it sees, if there are several workers; ``keep``: keep checkpoints of finished runs.
    """

    runs: Sequence[PlannedRun]
    deadline: float | None = None
    gpu: str | None = None
    keep: bool = False

    def __call__(self) -> bool:
        """Return whether it reached the end without being stopped."""
        if self.gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu
        if any(run.config.compile for run in self.runs):  # one compilation for each row
            torch._dynamo.config.recompile_limit = 64
        held: dict[str, CachedSource] = {}
        try:
            with interrupt_at(self.deadline):
                for number, run in enumerate(self.runs, 1):
                    if self.deadline is not None and time.time() >= self.deadline:
                        return False
                    with suppress(Timeout), lock(run.folder):
                        if not run.finished:
                            title = f"{number} of {len(self.runs)}: {run.label}, seed {run.config.seed}"
                            say(f"{title}: {self._attempt(run, held)}")
        except (KeyboardInterrupt, SystemExit):  # the run has saved itself
            return False
        return True

    def _attempt(self, run: PlannedRun, held: dict[str, CachedSource]) -> str:
        """Make a run and say how it went."""
        failed = run.folder / FAILED
        failed.unlink(missing_ok=True)
        try:
            make_run(run, self.keep, held)
        except (ValueError, OSError, RuntimeError) as error:
            run.folder.mkdir(parents=True, exist_ok=True)
            failed.write_text(f"{first_line(error)}\n")
            return first_line(error)
        outcome = read_outcome(run.folder, run.config.seed)
        name, value = next(iter(outcome.numbers.items()))
        return f"{name} {value:.2f}, {format_duration(outcome.seconds)}"


def make_run(run: PlannedRun, keep: bool, held: dict[str, CachedSource]) -> None:
    """Train a network, or resume, and save what a table needs."""
    train(run.config, resume=run.folder.exists(), silent=True, cache=held)
    gc.collect()
    save_correct(run.folder)
    if run.diagnosed:
        test = prepare(run.folder / "last.ckpt", {"devices": 1, "data.cache": run.config.data.cache}, held)
        write_rows(diagnose(test).outcomes, run.folder / DIAGNOSIS)
    for checkpoint in () if keep else run.folder.glob("*.ckpt"):
        checkpoint.unlink()


def lock(folder: Path) -> FileLock:
    """The lock of a run folder, which raises ``Timeout`` if another worker has it; a process loses it when it ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0)


@contextmanager
def interrupt_at(deadline: float | None) -> Iterator[None]:
    """Press Ctrl-C at the deadline: the current run saves itself and stops."""
    if deadline is None:
        yield
        return
    timer = threading.Timer(max(0.0, deadline - time.time()), os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    with interruptible():
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C stop this process even if a shell disabled it, as in the background of a script."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def make_workers(runs: Sequence[PlannedRun], budget: float | None, jobs: int, keep: bool) -> list[Worker]:
    """``jobs`` workers for each GPU, or ``jobs`` in all without one."""
    deadline = None if budget is None else time.time() + 60 * budget
    gpus: list[str | None] = [str(i) for i in range(torch.cuda.device_count())]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        gpus = list(visible.split(","))
    places = (gpus or [None]) * jobs
    return [Worker(runs, deadline, gpu if len(places) > 1 else None, keep) for gpu in places]


def work(workers: Sequence[Worker]) -> bool:
    """Run the workers, in parallel if there are several; return whether all reached their end."""
    if len(workers) == 1:
        return workers[0]()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_work, args=(worker,)) for worker in workers]
    for process in processes:
        process.start()
    for process in processes:
        while process.is_alive():
            with suppress(KeyboardInterrupt):  # the workers get it too, and save their runs
                process.join()
    return all(process.exitcode == 0 for process in processes)


def _work(worker: Worker) -> None:
    with interruptible():
        threading.Thread(target=_end_with_parent, daemon=True).start()
        sys.exit(0 if worker() else STOPPED)


def _end_with_parent() -> None:
    """Interrupt this worker when the command has died, so that it does not continue unseen."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)
