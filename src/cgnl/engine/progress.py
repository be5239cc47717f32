"""How far a run has come: loss, accuracy, samples a second, time left. A bar on a terminal, else lines in the log."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..text import format_duration
from .tasks.base import Sums

log = logging.getLogger("cgnl")

SHOWN = {"loss": "loss {:.3f}", "top1": "top-1 {:.1%}"}


class Lines:
    """A line in the log every half minute, for output that goes to a file or a pipe."""

    every = 30.0
    """Seconds between what is shown."""

    def __init__(self, epochs: int, steps_per_epoch: int, unit: str, say: Callable[[str], object] = log.info):
        self.epochs, self.steps_per_epoch, self.unit, self.say = epochs, steps_per_epoch, unit, say
        self.total = epochs * steps_per_epoch
        self.restart()

    def __enter__(self) -> None:
        self.restart()

    def __exit__(self, *_: object) -> None:
        pass

    def restart(self) -> None:
        """Count samples a second from now on."""
        self._shown_at, self._samples, self._first = time.perf_counter(), 0, None

    def update(self, step: int, samples: int, sums: Sums) -> None:
        """Note samples of training."""
        self._samples += samples
        self._first = step - 1 if self._first is None else self._first
        passed = time.perf_counter() - self._shown_at
        if passed < self.every:
            return
        epoch = f"{max(-(-step // self.steps_per_epoch), 1)}/{self.epochs}"
        left = (self.total - step) * passed / (step - self._first) if step > self._first else math.inf
        self.show(step, epoch, f"{self._samples / passed:,.0f} {self.unit}/s", left, sums)
        self.restart()

    def show(self, step: int, epoch: str, speed: str, left: float, sums: Sums) -> None:
        """Show the state of the training."""
        words = [f"epoch {epoch}", f"step {step:,} of {self.total:,}", *in_words(sums, sums.values), speed]
        self.say(f"{', '.join(words)}, {format_duration(left)} left")

    @contextmanager
    def testing(self, total: int) -> Iterator[None]:
        """Show how far a test of so many samples has come."""
        self._tested, self._to_test = 0, total
        self.restart()
        yield
        self.restart()

    def update_test(self, samples: int) -> None:
        """Note samples of a test."""
        self._tested = min(self._tested + samples, self._to_test)
        self._samples += samples
        passed = time.perf_counter() - self._shown_at
        if passed >= self.every and self._samples:
            left = format_duration((self._to_test - self._tested) * passed / self._samples)
            self.say(f"test: {self._tested:,} of {self._to_test:,} {self.unit}, {left} left")
            self.restart()


class Bar(Lines):
    """A bar on a terminal, updated twice a second at most; tests have one of their own."""

    every = 0.5

    def __init__(self, console: Console, epochs: int, steps_per_epoch: int, unit: str, step: int = 0):
        super().__init__(epochs, steps_per_epoch, unit)
        self.progress = Progress(
            TextColumn("{task.description} {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self.task = self.progress.add_task("epoch", total=self.total, completed=step, epoch="", state="")
        self._values: torch.Tensor | None = None

    def __enter__(self) -> None:
        self.restart()
        self.progress.start()

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, step: int, epoch: str, speed: str, left: float, sums: Sums) -> None:  # noqa: ARG002
        """Show the numbers of the update before, so that the host does not wait for the device."""
        if self._values is not None:
            state = "  ".join([*in_words(sums, self._values), speed])
            self.progress.update(self.task, completed=step, epoch=epoch, state=state)
        self._values = sums.values.to("cpu", non_blocking=True, copy=True)

    @contextmanager
    def testing(self, total: int) -> Iterator[None]:
        """Show the bar of a test in place of that of the training, which may have ended."""
        started = self.progress.live.is_started
        self.progress.update(self.task, visible=False)
        self.test = self.progress.add_task("test", total=total, epoch="", state="")
        self.progress.start()
        try:
            yield
        finally:
            self.progress.remove_task(self.test)
            self.progress.update(self.task, visible=True)
            if not started:
                self.progress.stop()
            self.restart()

    def update_test(self, samples: int) -> None:
        """Note samples of a test."""
        self.progress.advance(self.test, samples)
        shown = self.progress.tasks[-1]
        self.progress.update(self.test, state=f"{int(shown.completed):,} of {int(shown.total or 0):,} {self.unit}")


def in_words(sums: Sums, values: torch.Tensor) -> list[str]:
    """The means of what is shown."""
    named = dict(zip(sums.names, values.tolist(), strict=True))
    return [text.format(named[name] / max(named["count"], 1)) for name, text in SHOWN.items() if name in named]
