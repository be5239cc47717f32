"""``cgnl train``: from settings to a folder with a trained network."""

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..data.index import name_some
from ..data.sources import CachedSource
from ..models import is_detector, is_video
from ..spelling import counted
from . import schedule
from .checkpoint import load_network, read
from .config import SYNTHETIC, Config
from .datasets import Dataset, dataset_name, decided, open_dataset, view_in_training
from .folder import begin_folder, check_same, run_folder, shared, start_log, stop_log, warnings_as_sentences
from .loaders import Loaders
from .messages import conclude, introduce
from .network import build_network, check_input
from .predictions import save_predictions

log = logging.getLogger("cgnl")


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    test: dict[str, float]
    """After the last epoch: top-1, top-5 and loss; for videos over all views; for objects COCO's numbers."""
    best: float
    """Highest top-1, or average precision of boxes, of the tests between epochs."""
    rows: tuple[dict[str, Any], ...]
    """One for each epoch, as in ``metrics.csv``."""
    unreadable: int
    seconds: float


class Start(NamedTuple):
    """Where a run begins."""

    step: int = 0
    finished: bool = False
    """Whether it has run out of patience."""


def train(
    config: Config,
    resume: bool = False,
    repeat: str | None = None,
    *,
    silent: bool = False,
    held: dict[str, CachedSource] | None = None,
    on_end: Callable[[Path], None] | None = None,
) -> Result:
    """Train a network and test it.

    Args:
        config: the settings.
        resume: go on with a run of this name that was stopped.
        repeat: the command that does it again, for whoever reads about the run.
        silent: speak to the log alone.
        held: samples that are decoded already, and room for those that will be, where ``data.cache`` asks for it.
        on_end: called with the run's folder when all its files are written.
    """
    from .ddp import noticing
    from .trainer import check_machine, is_rank_zero

    dataset = open_dataset(config.data)
    config = resolved(config, dataset)
    check_machine(config)
    batch_size = fitting_batch(config, len(dataset.train))
    if len(dataset.test) < config.world:
        few = counted(len(dataset.test), "test sample")
        raise ValueError(f"there must be at least one test sample for each of {config.world} processes, not {few}")
    folder = run_folder(config, resume)
    try:
        console = start_log(is_rank_zero(), silent)
        with noticing(), warnings_as_sentences():
            return _train(
                config, dataset, batch_size, folder, console, resume, repeat, {} if held is None else held, on_end
            )
    finally:
        stop_log()


def _train(
    config: Config,
    dataset: Dataset,
    batch_size: int,
    folder: Path,
    console: Any,
    resume: bool,
    repeat: str | None,
    held: dict[str, CachedSource],
    on_end: Callable[[Path], None] | None,
) -> Result:
    from .callbacks import Bar, Saver, Table
    from .trainer import averaging, is_rank_zero, make_trainer, seed_everything, shares_norms, stopping, tensorboard

    last = folder / "last.ckpt" if resume and (folder / "last.ckpt").exists() else None
    seed_everything(config.seed)
    network = build_network(config.model, len(dataset.classes), load=last is None)
    begin = start_of(last, config, dataset, network)
    at_once = batch_size // (config.world * config.optim.accumulate)
    outline, seen = copy.deepcopy(network).to("meta"), at_once * (config.world if shares_norms(config) else 1)
    check_input(outline, config.model.name, view_in_training(config.data), dataset.kind, seen)
    if is_rank_zero():
        begin_folder(folder, config, repeat)
    epochs, steps_per_epoch = schedule.total_epochs(config.optim), len(dataset.train) // batch_size
    objects = dataset.kind == "objects"
    lr = schedule.peak(config.optim, batch_size, config.model.weights is not None, objects)
    introduce(config, dataset, network, batch_size, lr, folder)
    _say_where_it_begins(config, dataset, folder, resume, begin if last else None, epochs * steps_per_epoch)
    counts = (len(dataset.train), len(dataset.test))
    task = make_task(network, config, dataset, lr=lr, steps_per_epoch=steps_per_epoch, at_once=at_once, counts=counts)
    table, saver = Table(config, steps_per_epoch, folder), Saver(config, steps_per_epoch, folder)
    callbacks = [table, *averaging(config), *stopping(config, task.metric), saver]
    if is_rank_zero() and console.is_terminal and not console.quiet:
        callbacks.append(Bar(config, steps_per_epoch, console, "clips" if dataset.kind == "videos" else "images"))
    trainer = make_trainer(
        config,
        folder,
        callbacks=callbacks,
        logger=tensorboard(config, folder),
        max_steps=begin.step if begin.finished else epochs * steps_per_epoch,
        max_epochs=-1,  # to Lightning the whole run is one epoch, so that reading never pauses
        min_epochs=0,
        check_val_every_n_epoch=None,
        val_check_interval=steps_per_epoch * config.optim.accumulate * config.test_every,
        accumulate_grad_batches=config.optim.accumulate,
        gradient_clip_val=config.optim.clip_norm,
        **trainer_options(dataset),
    )
    loaders = Loaders(config, dataset, trainer.strategy.root_device, trainer.global_rank, config.world, held)
    batches = loaders.train(batch_size, epochs, first=begin.step * config.optim.accumulate)
    tests = loaders.test(at_once, full=False)
    with shared(folder), _stopped_by(saver, trainer):
        trainer.fit(task, batches, tests, ckpt_path=last, weights_only=True)
    if trainer.global_step < epochs * steps_per_epoch:
        log.info("stopped early: %s without a better result", counted(config.patience or 0, "test"))
    if task.metric not in table.rows[-1]:
        trainer.validate(task, tests, verbose=False)
        table.note_test(trainer, task)
        saver.note_test(trainer, task)
    elif not task.predictions and dataset.kind != "objects":  # the run had ended: ask again, for they are not kept
        trainer.validate(task, tests, verbose=False)
    if dataset.kind == "videos" and dataset.name not in SYNTHETIC:
        table.pass_time()  # of a run that had ended, what was asked again does not count
        trainer.validate(task, loaders.test(at_once, full=True), verbose=False)
    table.pass_time()
    result = Result(folder, task.results, saver.best, tuple(table.rows), len(task.problems), table.seconds)
    if trainer.is_global_zero:
        if task.predictions:
            save_predictions(folder, dataset, task.predictions)
        conclude(dataset, result)
        if on_end is not None:
            on_end(folder)
    return result


def _say_where_it_begins(
    config: Config, dataset: Dataset, folder: Path, resume: bool, begin: Start | None, steps: int
) -> None:
    """Say what a run of so many steps starts from; ``begin`` is where its checkpoint ends, if it has one."""
    named = Path(config.runs) / str(config.name)
    if folder != named and resume:
        log.info("--resume takes the newest run of this name with these settings, stopped ones first: %s", folder)
    elif folder != named:
        log.info("there is a run %s already", named)
    if begin is not None and (begin.finished or begin.step == steps):
        log.info("it has ended already, at step %s: it is only tested", f"{begin.step:,}")
    elif begin is not None:
        log.info("it goes on from step %s", f"{begin.step:,}")
    elif resume:
        log.info("there is no checkpoint yet: it begins anew")
    elif config.model.weights is None and dataset.name not in SYNTHETIC:
        log.info("it starts from random weights; model.weights=FILE starts from others")


@contextmanager
def _stopped_by(saver: Any, trainer: Any) -> Iterator[None]:
    """A training that may be asked to stop: then the process ends, as a shell expects it."""
    from .callbacks import Stopped

    try:
        yield
    except Stopped:
        log.info("stopped and saved at step %s: the same command with --resume goes on", f"{trainer.global_step:,}")
        raise SystemExit(130) from None
    except RuntimeError:
        if not saver.asked:  # by a signal that has ended the processes that read, too
            raise
        log.info("stopped: the same command with --resume goes on from the last checkpoint")
        raise SystemExit(130) from None


def make_task(network: nn.Module, config: Config, dataset: Dataset, **options: Any) -> Any:
    """The Lightning module for what a dataset asks for."""
    if dataset.kind == "objects":
        from .detection import Detection

        options |= {"ids": dataset.ids, "scenes": dataset.test}
        return Detection(network, config, dataset.classes, dataset.kind, **options)
    from .task import Classification

    return Classification(network, config, dataset.classes, dataset.kind, **options)


def trainer_options(dataset: Dataset) -> dict[str, Any]:
    """What Lightning's trainer is told of a dataset."""
    return {"benchmark": False} if dataset.kind == "objects" else {}  # each size of picture would be measured anew


def start_of(last: Path | None, config: Config, dataset: Dataset, network: nn.Module) -> Start:
    """Where the checkpoint ends, if it is of the same settings, samples and network, whose weights are loaded."""
    if last is None:
        return Start()
    checkpoint = read(last)
    check_same(config, checkpoint, last)
    if "optimizer_states" not in checkpoint:
        raise ValueError(f"{last} holds weights alone, as best.ckpt does, and cannot be resumed")
    about = checkpoint["cgnl"]
    if (tuple(about["classes"]), about["kind"]) != (dataset.classes, dataset.kind):
        raise ValueError(f"{last} was begun with other classes than those of {dataset.name} now")
    if about["counts"] != (now := [len(dataset.train), len(dataset.test)]):
        raise ValueError(
            f"{last} was begun with {about['counts']} samples to train and test on, and now there are {now}"
        )
    load_network(network, checkpoint, last)
    return Start(checkpoint["global_step"], about["finished"])


def resolved(config: Config, dataset: Dataset) -> Config:
    """The settings with everything that was left open decided."""
    networks = {"images": "resnet18", "videos": "c2d_resnet18", "objects": "maskrcnn_resnet50_fpn"}
    model = dataclasses.replace(config.model, name=config.model.name or networks[dataset.kind])
    if is_detector(str(model.name)) != (dataset.kind == "objects"):
        what = "objects to find" if dataset.kind == "objects" else "no objects"
        raise ValueError(f"model.name = {model.name} does not fit {dataset.name}, which has {what}")
    if dataset.kind != "objects" and len(dataset.classes) == 1:
        raise ValueError(f"{config.data.root} has one class, {dataset.classes[0]}, and nothing to tell it from")
    if dataset.untrained:
        raise ValueError(
            f"{config.data.root} is not usable: no training sample of class {name_some(dataset.untrained)}"
        )
    if {"images": is_video(str(model.name)), "videos": str(model.name).startswith("resnet")}.get(dataset.kind):
        fits = f"{dataset.name}, which has {dataset.kind}: {networks[dataset.kind]} is one that does"
        raise ValueError(f"model.name = {model.name} does not fit {fits}")
    for name, refused in {"compile": config.compile, "data.cache=gpu": config.data.cache == "gpu"}.items():
        if refused and dataset.kind == "objects":
            raise ValueError(f"{name} is not possible for {model.name}: its pictures and objects have no fixed sizes")
    data = decided(dataclasses.replace(config.data, dataset=dataset.name))
    block = f"{model.block}{model.blocks}" if model.block else "plain"
    name = config.name or f"{dataset_name(data)}_{model.name}_{block}"
    return dataclasses.replace(config, model=model, data=data, name=name)


def fitting_batch(config: Config, count: int) -> int:
    """Samples of a step: as asked for, or all there are, in equal shares."""
    parts, asked = config.world * config.optim.accumulate, config.optim.batch_size
    if asked % parts:
        raise ValueError(
            f"optim.batch_size = {asked} does not divide into {config.world} devices x {config.optim.accumulate} parts"
        )
    if count < parts:
        raise ValueError(f"{counted(count, 'training sample')} cannot be divided into {parts} shares of a step")
    return min(asked, count // parts * parts)
