"""``cgnl train``: from settings to a folder with a trained network."""

import copy
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ..data.index import name_some
from ..data.sources import CachedSource
from ..text import counted
from .checkpoint import load_network, read
from .classes import CLASSES, CONFUSION, save_classes
from .config import build, to_dict
from .datasets import Dataset, dataset_name, open_dataset, view_in_training, with_defaults
from .distributed import connect, find_accelerator, is_rank_zero, restarted, with_remaining_nodes
from .folder import begin_folder, check_same, log_to_console, take_folder
from .loop import Loop, Stopped, shares_norms, validate
from .messages import log_setup, write_results
from .network import build_network, check_input, with_measured_head
from .optimizer import freeze, lr_factor, peak_lr
from .predictions import save_predictions
from .progress import Bar, Lines
from .settings import SYNTHETIC, Config, Optim
from .tasks import TASKS

log = logging.getLogger("cgnl")


class Result(NamedTuple):
    """What came out of a run."""

    folder: Path
    test: dict[str, float]
    """After the last epoch, by the full protocol."""
    best: float
    """The best test between epochs, by the metric of the task."""
    rows: tuple[dict[str, Any], ...]
    """One for each epoch, as in ``metrics.csv``."""
    unreadable: int
    seconds: float


def train(
    config: Config,
    resume: bool | Path = False,
    repeat: str | None = None,
    *,
    silent: bool = False,
    cache: dict[str, CachedSource] | None = None,
    on_end: Callable[[Path], None] | None = None,
) -> Result:
    """Train a network and test it.

    Args:
        config: the settings.
        resume: resume a run of this name, or the one in this folder; it may be given more epochs.
        repeat: the command that repeats the run, for its readers.
        silent: write to the log file alone.
        cache: decoded samples by split, which runs of one process may share where ``data.cache`` is set.
        on_end: called with the run's folder when all its files are written.
    """
    resume = resume or restarted()
    with log_to_console(silent) as console:
        dataset = open_dataset(config.data)
        config = resolve(config, dataset)
        with take_folder(config, resume) as folder:
            loop = setup(config, dataset, folder, resume, repeat, cache)
            with loop.loggers:
                fit(loop, console)
                return finish(loop, on_end)


def setup(
    config: Config,
    dataset: Dataset,
    folder: Path,
    resume: bool | Path,
    repeat: str | None,
    cache: dict[str, CachedSource] | None,
) -> Loop:
    """Network, task and loop of a run, at its first step or where its last checkpoint ends."""
    task, batch_size = TASKS[dataset.kind], choose_batch_size(config, len(dataset.train))
    last = folder / "last.ckpt" if resume and (folder / "last.ckpt").exists() else None
    network = new_network(config, dataset, batch_size, load=last is None)
    checkpoint = None if last is None else read_resumable(last, config, dataset, network)
    if is_rank_zero():
        begin_folder(folder, config, repeat)
    lr = peak_lr(config.optim, batch_size, config.model.weights is not None, task.default_lr)
    log_setup(config, dataset, network, batch_size, lr, folder)
    device = connect(config, folder)
    loop = Loop(task(network, config, dataset, device, batch_size, cache), folder, lr, batch_size)
    if checkpoint is not None:
        loop.load(checkpoint, folder / "last.ckpt")
        extend(loop, build(checkpoint["cgnl"]["config"]).optim)
    log_start(loop, resume, last is not None)
    if is_rank_zero():
        loop.loggers.start(config.loggers, str(config.name), to_dict(config), folder)
    return loop


def new_network(config: Config, dataset: Dataset, batch_size: int, load: bool = True) -> nn.Module:
    """The network; raises if it cannot take its inputs, or if ``optim.freeze`` leaves nothing to train."""
    torch.manual_seed(config.seed)
    network = build_network(config.model, len(dataset.classes), load=load)
    outline, ranks = copy.deepcopy(network).to("meta"), config.world if shares_norms(config) else 1
    samples = config.micro_batch(batch_size) * ranks
    check_input(outline, config.model.name, view_in_training(config.data), TASKS[dataset.kind], samples)
    freeze(outline, config.optim.freeze)
    return network


def extend(loop: Loop, before: Optim) -> None:
    """Continue with the schedule of more epochs, if the settings ask for more."""
    optim, steps = loop.config.optim, loop.steps_per_epoch
    if optim.epochs == before.epochs:
        return
    loop.stopped_early, loop.wait_count = False, 0
    for name in ("results.json", "predictions.csv", CLASSES, CONFUSION) if is_rank_zero() else ():
        (loop.folder / name).unlink(missing_ok=True)  # results of the shorter run
    old = loop.lr * lr_factor(before, steps, max(loop.step - 1, 0))
    new = loop.lr * lr_factor(optim, steps, loop.step)
    log.info(
        f"optim.epochs is now {optim.epochs}, not {before.epochs}: the learning rate goes from {old:.4g} to {new:.4g}"
    )


def fit(loop: Loop, console: Any) -> None:
    """Train, and exit as a shell expects it when asked to stop."""
    task, bar = loop.task, None
    if is_rank_zero() and not console.quiet:
        size = loop.epochs, loop.steps_per_epoch, f"{task.sample}s"
        bar = Bar(console, *size, loop.step) if console.is_terminal else Lines(*size)
    first, tests = loop.step * loop.config.optim.accumulate, task.test_batches(full=False)
    try:
        loop.fit(task.train_batches(loop.batch_size, loop.epochs, first), tests, bar)
    except Stopped:
        log.info(f"stopped and saved at step {loop.step:,}: the same command with --resume continues it")
        raise SystemExit(130) from None
    except RuntimeError:
        if not loop.signals.asked:  # a signal has also ended the workers of the loader
            raise
        log.info("stopped: the same command with --resume continues from the last checkpoint")
        raise SystemExit(130) from None
    if loop.step < loop.total_steps:
        log.info(f"stopped early: {counted(loop.config.patience or 0, 'test')} without a better result")
    if f"test_{task.metric}" not in loop.rows[-1]:
        loop.test(tests)
    elif not task.predictions and task.classifies:  # a finished run is resumed: checkpoints hold no predictions
        validate(task, loop.tested, tests, loop.bar)


def finish(loop: Loop, on_end: Callable[[Path], None] | None) -> Result:
    """Test videos by the full protocol, and write the results."""
    task, dataset = loop.task, loop.task.dataset
    data = loop.config.data
    if task.view_in_test(data) != task.view_in_test(data, full=False):
        loop.pass_time()  # the time to repeat a test does not count
        validate(task, loop.tested, task.test_batches(full=True), loop.bar)
    loop.pass_time()
    result = Result(loop.folder, task.results, loop.best, tuple(loop.rows), len(task.problems), loop.seconds)
    if later := {name: value for name, value in task.results.items() if loop.rows[-1].get(name) != value}:
        loop.loggers.log(later, loop.step)
    if is_rank_zero():
        if task.predictions:
            save_predictions(loop.folder, dataset, task.predictions)
            save_classes(loop.folder, dataset.classes, task.predictions)
        write_results(dataset, result)
        if on_end is not None:
            on_end(loop.folder)
    return result


def log_start(loop: Loop, resume: bool | Path, resumed: bool) -> None:
    """Log what a run starts from."""
    config, named = loop.config, Path(loop.config.runs) / str(loop.config.name)
    if loop.folder != named and resume is True:
        log.info(f"--resume takes the newest run of this name with these settings, stopped ones first: {loop.folder}")
    elif loop.folder != named and not resume:
        log.info(f"there is a run {named} already")
    if resumed and loop.ended:
        log.info(f"the run has ended already, at step {loop.step:,}: it is only tested again")
    elif resumed:
        log.info(f"resumed at step {loop.step:,}")
    elif resume:
        log.info("there is no checkpoint yet: training starts from the first step")
    elif config.model.weights is None and loop.task.dataset.name not in SYNTHETIC:
        log.info("training starts from random weights; model.weights=FILE starts from others")


def read_resumable(last: Path, config: Config, dataset: Dataset, network: nn.Module) -> dict[str, Any]:
    """The checkpoint, if it is of these settings, samples and network."""
    checkpoint = read(last)
    check_same(config, checkpoint, last)
    if "optimizer_states" not in checkpoint:
        raise ValueError(f"{last} holds weights alone, as best.ckpt does, and cannot be resumed")
    about, counts = checkpoint["cgnl"], [len(dataset.train), len(dataset.test)]
    if (tuple(about["classes"]), about["kind"]) != (dataset.classes, dataset.kind):
        raise ValueError(f"{last} was begun with other classes than those of {dataset.name} now")
    if about["counts"] != counts:
        raise ValueError(f"{last} was begun with {about['counts']} samples to train and test on, not {counts}")
    load_network(network, checkpoint, last)
    return checkpoint


def resolve(config: Config, dataset: Dataset) -> Config:
    """The settings with all defaults resolved; raises if this machine cannot train with them."""
    task, config = TASKS[dataset.kind], with_remaining_nodes(config)
    find_accelerator(config)
    micro_batch = config.micro_batch(choose_batch_size(config, len(dataset.train)))
    for name in ("mixup", "cutmix") if micro_batch == 1 else ():
        if alpha := getattr(config.data, name):
            need = "two samples at a time: make optim.batch_size larger, or optim.accumulate smaller"
            raise ValueError(f"data.{name} = {alpha} needs at least {need}")
    if len(dataset.test) < config.world:
        few = counted(len(dataset.test), "test sample")
        raise ValueError(f"there must be at least one test sample for each of {config.world} processes, not {few}")
    model = dataclasses.replace(config.model, name=config.model.name or task.default_network)
    if not task.fits(str(model.name)):
        fits = f"{dataset.name}, which has {task.kind}: {task.default_network} is one that does"
        raise ValueError(f"model.name = {model.name} does not fit {fits}")
    if task.classifies and len(dataset.classes) == 1:
        raise ValueError(f"{config.data.root} has one class, {dataset.classes[0]}, and nothing to tell it from")
    if dataset.untrained:
        missing = name_some(dataset.untrained)
        raise ValueError(f"{config.data.root} is not usable: no training sample of class {missing}")
    for name, refused in {"compile": config.compile, "data.cache=gpu": config.data.cache == "gpu"}.items():
        if refused and not task.fixed_size:
            raise ValueError(f"{name} is not possible for {model.name}: its images have no fixed size")
    data = dataclasses.replace(config.data, dataset=dataset.name)
    config = with_defaults(with_measured_head(dataclasses.replace(config, model=model, data=data), dataset.kind))
    block = f"{model.block}{model.blocks}" if model.block else "plain"
    name = config.name or f"{dataset_name(config.data)}_{str(model.name).replace('/', '_')}_{block}"
    return dataclasses.replace(config, name=name)


def choose_batch_size(config: Config, count: int) -> int:
    """The global batch size: as set, or for a small dataset the largest that ranks and accumulated parts can share."""
    parts, asked = config.world * config.optim.accumulate, config.optim.batch_size
    if asked % parts:
        shares = f"{config.world} devices x {config.optim.accumulate} parts"
        raise ValueError(f"optim.batch_size = {asked} does not divide into {shares}")
    if count < parts:
        raise ValueError(f"{counted(count, 'training sample')} cannot be divided into {parts} shares of a step")
    return min(asked, count // parts * parts)
