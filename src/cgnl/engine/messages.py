"""What a run logs at its beginning, after its epochs and at its end."""

import json
import logging
import math
import shlex
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from ..atomic_io import write_text
from ..surgery import inserted
from ..text import counted, format_duration, percent
from .datasets import Dataset
from .settings import Config
from .tasks import TASKS

log = logging.getLogger("cgnl")

NAMES = {"top1": "top-1", "top5": "top-5"} | {
    f"{kind}_{number}": f"{kind} {number.upper()}" for kind in ("box", "mask") for number in ("ap", "ap50", "ap75")
}
"""Metric -> what it is called."""


def describe_epoch(row: dict[str, Any], epochs: int) -> str:
    """A row of ``metrics.csv`` in words."""
    words = [f"epoch {row['epoch']:{len(str(epochs))}d} of {epochs}: loss {row['train_loss']:.3f}"]
    if "train_top1" in row:
        words.append(f"top-1 {row['train_top1']:7.2%}")
    if "test_top1" in row:
        words.append(f"test top-1 {row['test_top1']:7.2%}, loss {row['test_loss']:.3f}")
    if "test_box_ap" in row:
        words.append(f"test AP of boxes {percent(row['test_box_ap'])}, of masks {percent(row['test_mask_ap'])}")
    return ", ".join([*words, f"{row['samples_per_second']:,.0f} samples/s"])


def at_chance(losses: Sequence[float], classes: int) -> str | None:
    """A warning when training loss first stays at or above that of guessing; ``losses`` are those of all epochs."""
    chance = math.log(classes)
    stuck = [n for n, (before, now) in enumerate(pairwise(losses), 2) if now >= before >= 0.98 * chance]
    if stuck[:1] != [len(losses)]:
        return None
    return (
        f"epoch {len(losses)}: the training loss, {losses[-1]:.3f}, does not fall and is no better than guessing, "
        f"ln {classes} = {chance:.3f}: try a lower optim.lr or optim.new_layers"
    )


def log_setup(config: Config, dataset: Dataset, network: nn.Module, batch_size: int, lr: float, folder: object) -> None:
    """Log what is about to happen."""
    train, classes = counted(len(dataset.train), TASKS[dataset.kind].sample), counted(len(dataset.classes), "class")
    log.info(f"{dataset.name}: {train} to train on, {len(dataset.test):,} to test on, {classes}")
    for problem in dataset.problems:
        log.warning(f"  {problem}")
    model, optim, step = config.model, config.optim, counted(batch_size, "sample")
    millions = sum(p.numel() for p in network.parameters()) / 1e6
    head = "" if model.head == "average" else f", {model.head} head of {model.reduced} channels"
    log.info(f"{model.name}: {millions:.1f} M parameters, blocks: {', '.join(inserted(network)) or 'none'}{head}")
    if batch_size < optim.batch_size:
        log.info(f"a step takes {step}, not {optim.batch_size}: there are only {len(dataset.train)} to train on")
    log.info(
        f"{optim.warmup_epochs} + {optim.epochs} epochs, {step} a step, learning rate {lr:.4g}, {optim.schedule}; "
        f"seed {config.seed}; everything goes to {folder}"
    )


def write_results(dataset: Dataset, result: Any) -> None:
    """Write ``results.json``, and log it."""
    task, folder, last = TASKS[dataset.kind], result.folder, result.folder / "last.ckpt"
    numbers = {f"best_{task.metric}": result.best, "unreadable": result.unreadable, "seconds": result.seconds}
    write_text(folder / "results.json", json.dumps(result.test | numbers, indent=2) + "\n")
    log.info("")
    log.info(f"{last}, the network after the last epoch:")
    for line in task.describe(result.test, len(dataset.classes)):
        log.info(line)
    best = f"{NAMES[task.metric]} {percent(result.best)}"
    log.info(f"best test between epochs: {best}, of {folder / 'best.ckpt'}, which was chosen by these tests")
    if result.unreadable:
        log.info(f"{counted(result.unreadable, 'sample')} could not be read, named in {folder / 'log.txt'}")
    speed = statistics.median_high([row["samples_per_second"] for row in result.rows] or [0.0])
    log.info(f"{format_duration(result.seconds)} in all, {speed:,.0f} samples/s in training")
    log.info(f"try it: cgnl predict {shlex.quote(str(last))} {task.file.upper()}")
