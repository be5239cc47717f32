"""``cgnl train``: from settings to a folder with a trained network."""

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from . import schedule
from .checkpoint import build_network, load_network, read
from .config import EMBEDDED, Config, Data, load, to_yaml
from .datasets import Dataset, dataset_name, open_dataset
from .folder import check_same, environment, run_folder, shared, start_log, stop_log
from .loaders import Loaders
from .words import conclude, introduce

log = logging.getLogger("cgnl")


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    test: dict[str, float]
    """After the last epoch: top-1, top-5 and loss; for videos over all views."""
    best: float
    """Highest top-1 of the tests between epochs."""
    rows: tuple[dict[str, Any], ...]
    """One for each epoch, as in ``metrics.csv``."""
    unreadable: int
    seconds: float


def command(recipe: str | None = None, *, resume: bool = False, **settings: Any) -> None:
    """Train a network and test it. Without anything it learns the embedded pictures.

    Args:
        recipe: a recipe by name (parts, cub_r50_cgnl1, ...) or a YAML file.
        resume: go on with the run of this name that was stopped.
        settings: what is to be other than in the recipe, such as data.root=my_birds.
    """
    if recipe is None:
        name = dataset_name(Data(settings.get("data.dataset"), settings.get("data.root")))
        recipe = name if name in EMBEDDED else None
    train(load(recipe, settings), resume)


def train(config: Config, resume: bool = False) -> Result:
    """Train a network and test it; ``resume`` goes on with a run of this name that was stopped."""
    from .trainer import check_processes, first_process

    dataset = open_dataset(config.data)
    config = resolved(config, dataset)
    check_processes(config)
    batch_size = fitting_batch(config, len(dataset.train))
    if len(dataset.test) < config.world:
        raise ValueError(f"{len(dataset.test)} test samples are fewer than {config.world} processes")
    folder = run_folder(config, resume)
    try:
        console = start_log(folder, first_process())
        return _train(config, dataset, batch_size, folder, console, resume)
    finally:
        stop_log()


def _train(config: Config, dataset: Dataset, batch_size: int, folder: Path, console: Any, resume: bool) -> Result:
    from .callbacks import Bar, Saver, Stopped, Table
    from .task import Classification
    from .trainer import averaging, first_process, make_trainer, seed_everything, stopping, tensorboard

    last = folder / "last.ckpt" if resume and (folder / "last.ckpt").exists() else None
    seed_everything(config.seed)
    network = build_network(config.model, len(dataset.classes), load=last is None)
    begin = start_of(last, config, dataset, network)
    if first_process():
        (folder / "config.yaml").write_text(to_yaml(config))
        (folder / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n")
    epochs, steps_per_epoch = schedule.total_epochs(config.optim), len(dataset.train) // batch_size
    lr = schedule.peak(config.optim, batch_size, pretrained=config.model.weights is not None)
    at_once = batch_size // (config.world * config.optim.accumulate)
    introduce(config, dataset, network, batch_size, lr, folder)
    if resume:
        log.info(f"it goes on from step {begin.step:,}" if last else "there is no checkpoint yet: it begins anew")

    counts = (len(dataset.train), len(dataset.test))
    task = Classification(network, config, dataset.classes, dataset.kind, lr, steps_per_epoch, at_once, counts)
    table, saver = Table(config, steps_per_epoch, folder), Saver(config, steps_per_epoch, folder)
    callbacks = [table, *averaging(config), *stopping(config), saver]
    if first_process() and console.is_terminal:
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
    )
    loaders = Loaders(config, dataset, trainer.strategy.root_device, trainer.global_rank, config.world)
    batches = loaders.train(batch_size, epochs, first=begin.step * config.optim.accumulate)
    tests = loaders.test(at_once, full=False)
    try:
        with shared(folder):
            trainer.fit(task, batches, tests, ckpt_path=last, weights_only=True)
    except Stopped:
        log.info("stopped and saved at step %s: the same command with --resume goes on", f"{trainer.global_step:,}")
        raise SystemExit(130) from None
    if "test_top1" not in table.rows[-1]:
        trainer.validate(task, tests, verbose=False)
        table.note_test(trainer, task)
        saver.note_test(trainer, task)
    if dataset.kind == "videos" and dataset.name not in EMBEDDED:
        trainer.validate(task, loaders.test(at_once, full=True), verbose=False)
    table.pass_time()
    result = Result(folder, task.results, saver.best, tuple(table.rows), len(task.problems), table.seconds)
    if trainer.is_global_zero:
        conclude(config, dataset, result)
    return result


class Start(NamedTuple):
    """Where a run begins."""

    step: int = 0
    finished: bool = False
    """Whether it has run out of patience."""


def start_of(last: Path | None, config: Config, dataset: Dataset, network: nn.Module) -> Start:
    """Where the checkpoint ends, if it is of the same settings, samples and network, whose weights are loaded."""
    if last is None:
        return Start()
    checkpoint = read(last)
    check_same(config, checkpoint, last)
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
    networks = {"images": "resnet18", "videos": "c2d_resnet18"}
    model = dataclasses.replace(config.model, name=config.model.name or networks[dataset.kind])
    data = dataclasses.replace(config.data, dataset=dataset.name)
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
        raise ValueError(f"{count} training samples are fewer than {parts} shares of a step")
    return min(asked, count // parts * parts)
