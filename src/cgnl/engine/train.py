"""``cgnl train``: from settings to a folder with a trained network."""

import dataclasses
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import schedule
from .checkpoint import build_network, load_network, read
from .config import EMBEDDED, Config, load, to_yaml
from .datasets import Dataset, dataset_name, open_dataset
from .folder import check_same, environment, run_folder, shared, start_log
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
        dataset = settings.get("data.dataset") or ("folder" if settings.get("data.root") else "parts")
        recipe = dataset if dataset in EMBEDDED else None
    train(load(recipe, settings), resume)


def train(config: Config, resume: bool = False) -> Result:
    """Train a network and test it; ``resume`` goes on with a run of this name that was stopped."""
    from .callbacks import Bar, Saver, Stopped, Table, WholeFiles
    from .task import Classification
    from .trainer import averaging, first_process, make_trainer, seed_everything, stopping, tensorboard

    started = time.perf_counter()
    dataset = open_dataset(config.data)
    config = resolved(config, dataset)
    folder = run_folder(config, resume)
    console = start_log(folder, first_process())
    last = checkpoint_to_resume(config, dataset, folder) if resume else None
    before = read(last) if last else None
    world = (config.devices or 1) * config.nodes
    batch_size = fitting_batch(config, len(dataset.train), world)
    if len(dataset.test) < world:
        raise ValueError(f"{len(dataset.test)} test samples are fewer than {world} processes")
    if first_process():
        (folder / "config.yaml").write_text(to_yaml(config))
        (folder / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n")

    epochs, steps_per_epoch = schedule.total_epochs(config.optim), len(dataset.train) // batch_size
    lr = schedule.peak(config.optim, batch_size, pretrained=config.model.weights is not None)
    at_once = batch_size // (world * config.optim.accumulate)
    seed_everything(config.seed)
    network = build_network(config.model, len(dataset.classes))
    if last and before:
        load_network(network, before, last)
    introduce(config, dataset, network, batch_size, lr, folder)

    task = Classification(network, config, dataset.classes, dataset.kind, lr, steps_per_epoch, at_once)
    table, saver = Table(config, steps_per_epoch, folder), Saver(config, steps_per_epoch, folder)
    callbacks = [table, *averaging(config), *stopping(config), saver]
    if first_process() and console.is_terminal:
        callbacks.append(Bar(config, steps_per_epoch, console, "clips" if dataset.kind == "videos" else "images"))
    trainer = make_trainer(
        config,
        callbacks=callbacks,
        plugins=[WholeFiles()],
        logger=tensorboard(config, folder),
        max_steps=before["global_step"] if before and before["cgnl"]["finished"] else epochs * steps_per_epoch,
        max_epochs=-1,  # to Lightning the whole run is one epoch, so that reading never pauses
        min_epochs=0,
        check_val_every_n_epoch=None,
        val_check_interval=steps_per_epoch * config.optim.accumulate * config.test_every,
        accumulate_grad_batches=config.optim.accumulate,
        gradient_clip_val=config.optim.clip_norm,
    )
    done = before["global_step"] * config.optim.accumulate if before else 0
    loaders = Loaders(config, dataset, trainer.strategy.root_device, trainer.global_rank, world)
    try:
        batches, tests = loaders.train(batch_size, epochs, first=done), loaders.test(at_once, full=False)
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
    seconds = time.perf_counter() - started
    result = Result(folder, task.results, saver.best, tuple(table.rows), len(task.problems), seconds)
    if trainer.is_global_zero:
        summary = {**task.results, "best_top1": saver.best, "unreadable": len(task.problems), "seconds": seconds}
        (folder / "results.json").write_text(json.dumps(summary, indent=2) + "\n")
        conclude(config, dataset, result)
    return result


def resolved(config: Config, dataset: Dataset) -> Config:
    """The settings with everything that was left open decided."""
    networks = {"images": "resnet18", "videos": "c2d_resnet18"}
    model = dataclasses.replace(config.model, name=config.model.name or networks[dataset.kind])
    data = dataclasses.replace(config.data, dataset=dataset.name)
    block = f"{model.block}{model.blocks}" if model.block else "plain"
    name = config.name or f"{dataset_name(data)}_{model.name}_{block}"
    return dataclasses.replace(config, model=model, data=data, name=name)


def checkpoint_to_resume(config: Config, dataset: Dataset, folder: Path) -> Path | None:
    """``last.ckpt``, if there is one and it was begun with the same settings and classes."""
    last = folder / "last.ckpt"
    if not last.exists():
        log.info("%s has no checkpoint yet: the run begins anew", folder)
        return None
    checkpoint = read(last)
    check_same(config, checkpoint, last)
    if (tuple(checkpoint["cgnl"]["classes"]), checkpoint["cgnl"]["kind"]) != (dataset.classes, dataset.kind):
        raise ValueError(f"{last} was begun with other classes than those of {dataset.name} now")
    return last


def fitting_batch(config: Config, count: int, world: int) -> int:
    """Samples of a step: as asked for, or all there are, in equal shares."""
    parts, asked = world * config.optim.accumulate, config.optim.batch_size
    if asked % parts:
        raise ValueError(
            f"optim.batch_size = {asked} does not divide into {world} devices x {config.optim.accumulate} parts"
        )
    if count < parts:
        raise ValueError(f"{count} training samples are fewer than {parts} shares of a step")
    if count < asked:
        log.info("there are %d training samples, so a step takes %d, not %d", count, count // parts * parts, asked)
    return min(asked, count // parts * parts)
