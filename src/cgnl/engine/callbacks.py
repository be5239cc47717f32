"""What happens around the steps: checkpoints, the table of epochs, the progress bar, stopping."""

import logging
import math
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from .atomic_io import write_csv
from .checkpoint import read, write
from .config import Config
from .messages import at_chance, epoch_in_words
from .schedule import factor, total_epochs
from .tasks import TASKS

log = logging.getLogger("cgnl")

WEIGHTS_ALONE = ("state_dict", "global_step", "cgnl")
"""What a checkpoint needs to be used; the rest, of which the optimizer is most, is needed to resume."""


class Stopped(Exception):
    """The run was asked to stop, and has saved itself."""


class WholeFiles(TorchCheckpointIO):
    """Lightning's checkpoints, written and read as ours are; ``storage_options`` names the parts that are kept."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write({name: checkpoint[name] for name in storage_options or checkpoint}, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:  # noqa: ARG002
        return read(path)


class Clock(pl.Callback):
    """Where a step stands in its epoch."""

    def __init__(self, config: Config, steps_per_epoch: int):
        self.config, self.steps_per_epoch = config, steps_per_epoch
        self.epochs = total_epochs(config.optim)

    def stepped(self, batch_idx: int) -> bool:
        """Whether the optimizer has just made a step, and not only taken up gradients."""
        return (batch_idx + 1) % self.config.optim.accumulate == 0

    def epoch(self, trainer: pl.Trainer) -> int:
        """The epoch the last step belongs to, from 1 on."""
        return math.ceil(trainer.global_step / self.steps_per_epoch)

    def ends_epoch(self, trainer: pl.Trainer) -> bool:
        return trainer.global_step % self.steps_per_epoch == 0

    def tests(self, trainer: pl.Trainer) -> bool:
        """Whether a test follows this step."""
        return trainer.global_step % (self.steps_per_epoch * self.config.test_every) == 0


class Table(Clock):
    """One row for each epoch, in ``metrics.csv``. It lives in the checkpoint, so a run that goes on keeps it."""

    def __init__(self, config: Config, steps_per_epoch: int, folder: Path):
        super().__init__(config, steps_per_epoch)
        self.file = folder / "metrics.csv"
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._samples, self._began = 0, 0.0
        self._since: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        self._samples = 0
        self._since = self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._samples += len(batch.samples) * trainer.world_size
        if not self.stepped(batch_idx) or not self.ends_epoch(trainer):
            return
        pl_module.check_steps()
        pl_module.gather_problems()
        results = pl_module.train_tally.compute()
        pl_module.train_tally.reset()
        now = self.pass_time()
        row = {
            "epoch": self.epoch(trainer),
            "step": trainer.global_step,
            "lr": pl_module.lr * factor(self.config.optim, self.steps_per_epoch, trainer.global_step - 1),
            **{f"train_{name}": results[name] if results["count"] else math.nan for name in pl_module.TRAIN_COLUMNS},
            "samples_per_second": self._samples / (now - self._began),
            "seconds": self.seconds,
            "unreadable": len(pl_module.problems),
            "skipped": pl_module.skipped,
        }
        self._samples, self._began = 0, now
        self.rows.append(row)
        if trainer.logger is not None:
            trainer.logger.log_metrics(row, step=trainer.global_step)
        if not self.tests(trainer):
            self.tell(trainer)
        losses = [row["train_loss"] for row in self.rows]
        if TASKS[pl_module.kind].classifies and (warning := at_chance(losses, len(pl_module.classes))):
            log.warning("%s", warning)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self.note_test(trainer, pl_module)

    def note_test(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Add the results of a test to the epoch's row."""
        self._began = self.pass_time()
        self.rows[-1].update(pl_module.results, seconds=self.seconds, unreadable=len(pl_module.problems))
        if trainer.logger is not None:
            trainer.logger.log_metrics(pl_module.results, step=trainer.global_step)
        self.tell(trainer)

    def pass_time(self) -> float:
        """Count the seconds since the last time, if there was one, over all sessions of the run; return the clock."""
        now = time.perf_counter()
        self.seconds += 0.0 if self._since is None else now - self._since
        self._since = now
        return now

    def tell(self, trainer: pl.Trainer) -> None:
        """Write the table and say its last row."""
        if trainer.is_global_zero:
            self.save()
            log.info("%s", epoch_in_words(self.rows[-1], self.epochs))

    def save(self) -> None:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        write_csv(self.file, columns, ([row.get(name) for name in columns] for row in self.rows))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows], "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.seconds = state_dict["rows"], state_dict["seconds"]


class Saver(Clock):
    """``last.ckpt``, which can be resumed, after every test and every so many steps; ``best.ckpt``, which holds the
    weights alone, after the best test, or the last of equals.

    Ctrl-C and SIGTERM are answered after the step that is under way: it saves and stops. A second one does not wait.
    """

    def __init__(self, config: Config, steps_per_epoch: int, folder: Path):
        super().__init__(config, steps_per_epoch)
        self.folder, self.best, self.asked = folder, -1.0, False
        self._before: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        def ask(number: int, _: Any) -> None:
            self.asked = True
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, ask)
            except ValueError:  # not in the main thread: whoever runs us there stops us there
                return

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if not self.stepped(batch_idx) or self.tests(trainer):
            return
        stop = self._stop_here(trainer)
        if stop or trainer.global_step % self.config.save_every == 0:
            trainer.save_checkpoint(self.folder / "last.ckpt")
        if stop:
            raise Stopped

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.state.fn == "fit":
            self.note_test(trainer, pl_module)

    def note_test(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Save after a test."""
        result = pl_module.results[pl_module.metric]
        if result >= self.best:
            self.best, pl_module.chosen = result, True
            trainer.save_checkpoint(self.folder / "best.ckpt", storage_options=WEIGHTS_ALONE)
            pl_module.chosen = False
        trainer.save_checkpoint(self.folder / "last.ckpt")
        if self._stop_here(trainer, now=True):
            raise Stopped

    def _stop_here(self, trainer: pl.Trainer, now: bool = False) -> bool:
        """Whether any process was asked to stop; they agree on it every few steps."""
        if trainer.world_size == 1:
            return self.asked
        if not now and trainer.global_step % 10:
            return False
        return trainer.strategy.reduce_boolean_decision(self.asked, all=False)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]


class Bar(Clock):
    """One progress bar for the whole run: loss, accuracy, samples a second, time left."""

    WORDS: ClassVar = {"loss": "loss {:.3f}", "top1": "top-1 {:.1%}"}

    def __init__(self, config: Config, steps_per_epoch: int, console: Console, unit: str):
        super().__init__(config, steps_per_epoch)
        self.unit = unit
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self._values: Tensor | None = None
        self._shown_at, self._samples = 0.0, 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        total = self.epochs * self.steps_per_epoch
        self.task = self.progress.add_task("", total=total, completed=trainer.global_step, epoch="", state="")
        self._shown_at, self._samples = time.perf_counter(), 0
        self.progress.start()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._samples += len(batch.samples) * trainer.world_size
        passed = time.perf_counter() - self._shown_at
        if passed < 0.5:
            return
        if self._values is not None:
            *sums, count = self._values.tolist()  # copied half a second ago: nobody waits for the device
            means = dict(zip(pl_module.train_tally.SHOWN, (value / max(count, 1) for value in sums), strict=True))
            state = "  ".join(self.WORDS[name].format(mean) for name, mean in means.items())
            epoch = f"{max(self.epoch(trainer), 1)}/{self.epochs}"
            speed = f"{self._samples / passed:,.0f} {self.unit}/s"
            self.progress.update(self.task, completed=trainer.global_step, epoch=epoch, state=f"{state}  {speed}")
        tally = pl_module.train_tally
        sums = [getattr(tally, name) for name in (*tally.SHOWN, "count")]
        self._values = torch.stack(sums).to("cpu", non_blocking=True)
        self._shown_at, self._samples = time.perf_counter(), 0

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        self._shown_at, self._samples = time.perf_counter(), 0

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        self.progress.stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        self.progress.stop()
