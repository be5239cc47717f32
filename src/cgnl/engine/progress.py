"""One progress bar for the whole run: loss, accuracy, samples a second, time left."""

import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .tasks.base import Sums

SHOWN = {"loss": "loss {:.3f}", "top1": "top-1 {:.1%}"}


class Bar:
    """A bar on a terminal, updated twice a second at most."""

    def __init__(self, console: Console, epochs: int, steps_per_epoch: int, unit: str, step: int = 0):
        self.epochs, self.steps_per_epoch, self.unit = epochs, steps_per_epoch, unit
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        total = epochs * steps_per_epoch
        self.task = self.progress.add_task("", total=total, completed=step, epoch="", state="")
        self._values: torch.Tensor | None = None

    def __enter__(self) -> None:
        self.restart()
        self.progress.start()

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def restart(self) -> None:
        """Count samples a second from now on."""
        self._shown_at, self._samples = time.perf_counter(), 0

    def update(self, step: int, samples: int, sums: Sums) -> None:
        """Note samples, and show the state of half a second ago: nobody waits for the device."""
        self._samples += samples
        passed = time.perf_counter() - self._shown_at
        if passed < 0.5:
            return
        if self._values is not None:
            values = dict(zip(sums.names, self._values.tolist(), strict=True))
            shown = {name: text for name, text in SHOWN.items() if name in values}
            means = [text.format(values[name] / max(values["count"], 1)) for name, text in shown.items()]
            speed = f"{self._samples / passed:,.0f} {self.unit}/s"
            epoch = f"{max(-(-step // self.steps_per_epoch), 1)}/{self.epochs}"
            self.progress.update(self.task, completed=step, epoch=epoch, state="  ".join([*means, speed]))
        self._values = sums.values.to("cpu", non_blocking=True, copy=True)
        self.restart()
