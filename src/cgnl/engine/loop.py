"""The training loop: step, check, log, test, save. Everything random follows from (seed, step, rank)."""

import logging
import math
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..atomic_io import write_csv
from ..data.loading import read_again
from ..data.transforms import generator
from ..surgery import in_eval_mode
from . import distributed, sharding
from .checkpoint import PREFIX, load_network, write
from .config import to_dict
from .loggers import Loggers
from .messages import at_chance, describe_epoch
from .nonfinite import ADVICE, IN_A_ROW, Snapshot, Watch, find_cause
from .optimizer import Average, freeze, lr_factor, make_optimizer, set_lr
from .progress import Lines
from .settings import Config
from .tasks import Task

log = logging.getLogger("cgnl")

PROGRESS = ("rows", "seconds", "best", "wait_count")
"""What a checkpoint keeps of the loop by its name."""


class Stopped(Exception):
    """The run was asked to stop, and has saved itself."""


class StopSignals:
    """Delays Ctrl-C and SIGTERM until the current step has ended; a second signal acts at once."""

    def __init__(self):
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._ask)
            except ValueError:  # signals reach the main thread alone
                return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: Any) -> None:
        self.asked = True
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


class Loop:
    """The training loop and its state."""

    def __init__(self, task: Task, folder: Path, lr: float, batch_size: int):
        self.task, self.config, self.device = task, task.config, task.device
        self.folder, self.lr, self.batch_size = folder, lr, batch_size
        self.epochs = self.config.optim.total_epochs
        self.steps_per_epoch = len(task.dataset.train) // batch_size
        self.total_steps = self.epochs * self.steps_per_epoch
        self.rows: list[dict[str, Any]] = []
        """One for each epoch, as in ``metrics.csv``."""
        self.step, self.seconds, self.best, self.wait_count, self.skipped = 0, 0.0, -1.0, 0, 0
        self.saved: int | None = None
        """The step of ``last.ckpt``."""
        self.stopped_early = False
        self.signals, self.skips = StopSignals(), self.config.optim.on_nan == "skip"
        self.bar: Lines | None = None
        self._since: float | None = None
        self._samples = 0

        set_backends(task)
        optim, scaled = self.config.optim, self.device.type == "cuda" and self.config.precision == "16"
        if shares_norms(self.config):
            task.network = nn.SyncBatchNorm.convert_sync_batchnorm(task.network)
        self.network = task.network.train()
        freeze(self.network, optim.freeze)
        self.scaler = torch.amp.GradScaler("cuda") if scaled else None
        self.average = Average(self.network, optim.ema) if optim.ema else None
        self.divided = self.config.parallel == "fsdp" and distributed.world_size() > 1
        for each in dict.fromkeys((self.network, self.tested)) if self.divided else ():
            sharding.divide(each, self.device)
        self.optimizer: Any = make_optimizer(self.network, optim, lr, fused=not scaled)
        self.watch = Watch(self.device, IN_A_ROW if self.skips else 0)
        self.loggers = Loggers()
        if self.config.compile:
            self.network.compile()
        self.model: Any = self.network
        if distributed.world_size() > 1 and not self.divided:
            # Without SyncBatchNorm, every rank keeps its own statistics until a test.
            self.model = DistributedDataParallel(self.network, broadcast_buffers=False, gradient_as_bucket_view=True)

    def fit(self, batches: Any, tests: Iterable[Any], bar: Lines | None = None) -> None:
        """Train until the last step, or until the tests get no better."""
        self.batches, self.bar = batches, bar
        if self.ended:
            return
        self._since = time.perf_counter()
        with self.signals, bar or nullcontext():
            parts = enumerate(batches, self.step * self.config.optim.accumulate)
            while not self.ended:
                self.make_step(parts)
                self.check_steps(now=self.device.type == "cpu")  # on a CPU there is nothing to wait for
                if self.step % self.steps_per_epoch == 0:
                    self.end_epoch()
                if tested := self.step % (self.steps_per_epoch * self.config.test_every) == 0:
                    self.test(tests)
                stop = self.stop_asked(now=tested)
                if not tested and (stop or self.step % self.config.save_every == 0):
                    self.save("last.ckpt")
                if stop:
                    raise Stopped

    @property
    def ended(self) -> bool:
        """Whether all steps are made, or early stopping has ended the run."""
        return self.stopped_early or self.step == self.total_steps

    def make_step(self, parts: Iterator[tuple[int, Any]]) -> None:
        """Make a step from the next numbered batches."""
        accumulate = self.config.optim.accumulate
        for number, batch in islice(parts, accumulate):
            last_part, samples = (number + 1) % accumulate == 0, len(batch.samples) * self.config.world
            self.backward(batch.to(self.device), number, last_part)
            self._samples += samples
            if self.bar:
                self.bar.update(self.step + last_part, samples, self.task.sums)
        self.update()

    def backward(self, batch: Any, number: int, last_part: bool) -> None:
        """Add the gradient of a batch, one of the parts that a step is accumulated from."""
        self.task.note(batch)
        if len(batch.samples) < self.task.micro_batch:  # unreadable samples are replaced by readable ones
            raise ValueError(f"nothing can be read in place of a sample any more: {batch.problems[0]}")
        self.seed(number)
        if self.skips and number % self.config.optim.accumulate == 0:
            self.before = Snapshot(self.changed_by_steps())
        with nullcontext() if last_part or self.model is self.network else self.model.no_sync():
            with autocast(self.config, self.device):
                loss = self.watch.check_loss(self.task.loss(self.model, batch)) / self.config.optim.accumulate
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self) -> None:
        """Make the optimizer's step, which it skips where the gradient is not finite."""
        set_lr(self.optimizer, self.lr_factor(self.step))
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.divided:
            sharding.take_gradients(self.network)
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in trained])
        norm = sharding.total_norm(norm) if self.divided else norm
        if self.config.optim.clip_norm:
            clip_grads_with_norm_(trained, self.config.optim.clip_norm, norm)
        bad = self.watch.check_gradient(norm, self.step, scaled=self.scaler is not None)
        if self.skips:
            self.before.restore(if_=bad)
        if self.scaler is None:
            self.optimizer.found_inf = bad.float()
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.network)
        self.step += 1

    def lr_factor(self, step: int) -> float:
        return lr_factor(self.config.optim, self.steps_per_epoch, step)

    def check_steps(self, now: bool = True) -> None:
        """Name the steps that were not finite; stop there, unless they may be skipped."""
        if not (found := self.watch.read(now)):
            return
        reason = self.find_cause(found[0])
        if not self.skips:
            raise ValueError(f"step {found[0]}: {reason}: {ADVICE}")
        for step in found:
            log.warning("step %d is skipped: %s", step, reason if step == found[0] else "it is not finite either")
        if self.watch.in_a_row > IN_A_ROW:
            raise ValueError(f"step {found[-1]}: more than {IN_A_ROW} steps one after another are not finite: {reason}")
        self.skipped += len(found)

    def find_cause(self, step: int) -> str:
        """Why a step was not finite, found by repeating it; everything it changes is restored."""
        before, reason, parts = Snapshot(self.changed_by_steps()), None, self.config.optim.accumulate
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
        with eager, autocast(self.config, self.device), sharding.gathered(self.network):
            for number in range((step - 1) * parts, step * parts):
                batch = read_again(self.batches, number).to(self.device)
                self.seed(number)
                reason = reason or find_cause(self.network, partial(self.task.loss, self.network, batch))
        before.restore(if_=torch.ones((), dtype=torch.bool, device=self.device))
        return reason or "its gradient was not finite, but is finite when the step is repeated"

    def seed(self, number: int) -> None:
        """Seed dropout by the number of the batch, so that a resumed run draws the same."""
        torch.manual_seed(generator(self.config.seed, number, distributed.current_rank().rank).initial_seed())

    def changed_by_steps(self) -> list[torch.Tensor]:
        """Tensors that a step changes besides the weights: statistics of norms, and the sums."""
        return [*self.network.buffers(), self.task.sums.values]

    def end_epoch(self) -> None:
        """Add a row for the epoch. If a test follows, the row is logged with its results."""
        self.check_steps()
        self.task.gather_problems()
        sums = self.task.sums.means()
        self.task.sums.values.zero_()
        speed = self._samples / self.pass_time()
        self._samples = 0
        row = {
            "epoch": self.step // self.steps_per_epoch,
            "step": self.step,
            "lr": self.lr * self.lr_factor(self.step - 1),
            **{f"train_{name}": sums[name] if sums["count"] else math.nan for name in self.task.train_columns},
            "samples_per_second": speed,
            "seconds": self.seconds,
            "unreadable": len(self.task.problems),
            "skipped": self.skipped,
        }
        self.rows.append(row)
        self.log_numbers(row, whole_row=row["epoch"] % self.config.test_every != 0)
        losses = [row["train_loss"] for row in self.rows]
        if self.task.classifies and (warning := at_chance(losses, len(self.task.dataset.classes))):
            log.warning("%s", warning)

    def test(self, tests: Iterable[Any]) -> None:
        """Test, log and save."""
        results = validate(self.task, self.tested, tests, self.bar)
        self.pass_time()
        self.rows[-1].update(results, seconds=self.seconds, unreadable=len(self.task.problems))
        self.log_numbers(results, whole_row=True)
        result = results[f"test_{self.task.metric}"]
        self.wait_count = 0 if result > self.best else self.wait_count + 1
        self.stopped_early = self.config.patience is not None and self.wait_count >= self.config.patience
        if result >= self.best:
            self.best = result
            self.save("best.ckpt", chosen=True)
        self.save("last.ckpt")

    @property
    def tested(self) -> nn.Module:
        """The network that is tested and saved: the average of the weights, if there is one."""
        return self.network if self.average is None else self.average.module

    def log_numbers(self, numbers: dict[str, float], whole_row: bool) -> None:
        """Pass numbers on to the loggers and, once a row is whole, write ``metrics.csv`` and the log."""
        self.loggers.log(numbers, self.step)
        if whole_row and distributed.is_rank_zero():
            columns = list(dict.fromkeys(name for row in self.rows for name in row))
            rows = ([row.get(name) for name in columns] for row in self.rows)
            write_csv(self.folder / "metrics.csv", columns, rows)
            log.info("%s", describe_epoch(self.rows[-1], self.epochs))

    def pass_time(self) -> float:
        """Add the seconds since the last call to those of the run, and return them."""
        now = time.perf_counter()
        passed = 0.0 if self._since is None else now - self._since
        self.seconds, self._since = self.seconds + passed, now
        return passed

    def stop_asked(self, now: bool) -> bool:
        """Whether any rank was asked to stop; they agree on it every ten steps, and after a test."""
        if self.config.world == 1:
            return self.signals.asked
        return (now or self.step % 10 == 0) and any(distributed.all_gather(self.signals.asked))

    def save(self, name: str, chosen: bool = False) -> None:
        """Save a checkpoint: all that is needed to resume, or the weights alone of one ``chosen`` by its test."""
        self.check_steps()
        task, dataset, sums = self.task, self.task.dataset, self.task.sums.read()
        state = sharding.read_state(self.optimizer, self.network) if self.divided else self.optimizer.state_dict()
        checkpoint: dict[str, Any] = {"state_dict": weights(self.tested), "global_step": self.step}
        if not chosen and self.average is not None:
            checkpoint["current_model_state"] = weights(self.network)
            checkpoint["averaging_state"] = {"n_averaged": self.average.updates}
        if not distributed.is_rank_zero():
            return
        about = {"config": to_dict(self.config), "classes": list(dataset.classes), "kind": task.kind}
        about |= {"ids": list(dataset.ids), "counts": [len(dataset.train), len(dataset.test)], "tally": sums}
        about["fingerprint"] = dict(dataset.fingerprint)
        about |= {"results": dict(task.results), "problems": sorted(task.problems), "chosen": chosen}
        about |= {"skipped": self.skipped, "skipped_in_a_row": self.watch.in_a_row, "finished": self.stopped_early}
        checkpoint["cgnl"] = about
        if not chosen:
            checkpoint["progress"] = {name: getattr(self, name) for name in PROGRESS}
            checkpoint["optimizer_states"] = [state]
            checkpoint["scaler"] = self.scaler.state_dict() if self.scaler else None
        last = self.folder / "last.ckpt"
        try:
            write(checkpoint, self.folder / name)
        except OSError as error:
            kept = "there is none to resume yet" if self.saved is None else f"{last} is that of step {self.saved:,}"
            raise OSError(f"{error}; {kept}") from error
        if not chosen:
            self.saved = self.step

    def load(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint. Those of Lightning's trainer keep the progress in the states of callbacks."""
        about, callbacks = checkpoint["cgnl"], checkpoint.get("callbacks", {}).values()
        progress = checkpoint.get("progress") or {name: state[name] for state in callbacks for name in state}
        for name in PROGRESS:
            setattr(self, name, progress.get(name, getattr(self, name)))
        self.step, self.stopped_early = checkpoint["global_step"], about["finished"]
        self.saved, self.skipped = self.step, about.get("skipped", 0)
        if self.skips:
            self.watch = Watch(self.device, IN_A_ROW, about.get("skipped_in_a_row", 0))
        load_network(self.tested, checkpoint, path)
        if self.average is not None:
            load_network(self.network, {"state_dict": checkpoint["current_model_state"]}, path)
            self.average.updates = int(checkpoint["averaging_state"]["n_averaged"])
        (state,) = checkpoint["optimizer_states"]
        state = sharding.divide_state(state, self.optimizer, self.network) if self.divided else state
        self.optimizer.load_state_dict(state)
        for parameter, entry in self.optimizer.state.items():  # fused kernels need the parameter's memory format
            for name, value in entry.items():
                if value is not None and value.shape == parameter.shape:
                    entry[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)
        if self.scaler and (state := checkpoint.get("scaler") or checkpoint.get("MixedPrecision")):
            self.scaler.load_state_dict(state)
        self.task.problems, self.task.results = set(about["problems"]), dict(about["results"])
        if distributed.is_rank_zero():  # the sums are those of all ranks
            self.task.sums.values.copy_(torch.tensor(about["tally"], dtype=torch.float64))


def weights(network: nn.Module) -> dict[str, torch.Tensor]:
    """The weights, by the names they have in checkpoints."""
    return {f"{PREFIX}{name}": sharding.whole(value) for name, value in network.state_dict().items()}


@torch.inference_mode()
def validate(task: Task, network: nn.Module, tests: Iterable[Any], bar: Lines | None = None) -> dict[str, float]:
    """Test a network on every sample once."""
    shown = bar.testing(len(task.dataset.test)) if bar else nullcontext()
    with in_eval_mode(network), sharding.gathered(network), shown:
        task.start_test(network)
        for batch in tests:
            task.note(batch)
            if len(batch.samples):
                with autocast(task.config, task.device):
                    task.test_step(network, batch.to(task.device))
            if bar:
                bar.update_test(len(batch.samples) * task.config.world)
    return task.end_test()


def autocast(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    """The context of the forward pass in the precision of the settings."""
    on_gpu = device.type == "cuda"
    precision = ("bf16" if on_gpu else "32") if config.precision == "auto" else config.precision
    dtype = (
        torch.float16 if precision == "16" and on_gpu else torch.bfloat16
    )  # CPUs have no float16 kernels to speak of
    return torch.autocast(device.type, dtype, enabled=precision != "32")


def set_backends(task: Task) -> None:
    """Set what PyTorch's backends may do."""
    config = task.config
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(config.deterministic)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = task.fixed_size and not config.deterministic  # each size is measured anew
    if task.device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def shares_norms(config: Config) -> bool:
    """Whether batch norms are synchronised over the ranks."""
    return config.sync_batchnorm and config.world > 1 and distributed.find_accelerator(config) == "cuda"
