"""What a run says at its beginning and its end."""

import json
import logging
from typing import Any

from torch import nn

from ..surgery import inserted
from .config import Config
from .datasets import Dataset

log = logging.getLogger("cgnl")


def introduce(config: Config, dataset: Dataset, network: nn.Module, batch_size: int, lr: float, folder: object) -> None:
    """Say what is about to happen."""
    unit = "clips" if dataset.kind == "videos" else "pictures"
    log.info(
        "%s: %s %s to train on, %s to test on, %d classes",
        dataset.name,
        f"{len(dataset.train):,}",
        unit,
        f"{len(dataset.test):,}",
        len(dataset.classes),
    )
    for problem in dataset.problems:
        log.warning("  %s", problem)
    millions = sum(p.numel() for p in network.parameters()) / 1e6
    places = ", ".join(inserted(network)) or "none"
    log.info("%s: %.1f M parameters, blocks: %s", config.model.name, millions, places)
    if batch_size < config.optim.batch_size:
        log.info("a step takes %d samples, not %d: there are no more", batch_size, config.optim.batch_size)
    log.info(
        "%d + %d epochs, %d samples a step, learning rate %.4g, %s; seed %d; everything goes to %s",
        config.optim.warmup_epochs,
        config.optim.epochs,
        batch_size,
        lr,
        config.optim.schedule,
        config.seed,
        folder,
    )


def conclude(config: Config, dataset: Dataset, result: Any) -> None:
    """Say what came out, and write it down."""
    numbers = {"best_top1": result.best, "unreadable": result.unreadable, "seconds": result.seconds}
    (result.folder / "results.json").write_text(json.dumps(result.test | numbers, indent=2) + "\n")
    speeds = sorted(row["samples_per_second"] for row in result.rows) or [0.0]
    log.info("")
    for line in describe(result.test, dataset.kind, len(dataset.classes)):
        log.info("%s", line)
    log.info("best test between epochs: top-1 %.2f%%", 100 * result.best)
    if config.paper:
        top5 = f", top-5 {config.paper.top5:.2f}%" if config.paper.top5 else ""
        log.info("the paper: top-1 %.2f%%%s (%s)", config.paper.top1, top5, config.paper.table)
    if result.unreadable:
        log.info("%d samples could not be read; they are named in %s", result.unreadable, result.folder / "log.txt")
    minutes, seconds = divmod(round(result.seconds), 60)
    log.info("%d min %02d s in all, %s samples/s in training", minutes, seconds, f"{speeds[len(speeds) // 2]:,.0f}")
    thing = "VIDEO" if dataset.kind == "videos" else "PICTURE"
    log.info("try it: cgnl predict %s %s", result.folder / "best.ckpt", thing)


def describe(test: dict[str, float], kind: str, classes: int) -> list[str]:
    """The results of a test in words."""
    top5 = f", top-5 {test['test_top5']:.2%}" if classes > 5 else ""
    count, chance = round(test["test_count"]), f"chance {1 / classes:.2%}"
    if kind == "images":
        return [f"test: top-1 {test['test_top1']:.2%}{top5} of {count:,} pictures ({chance})"]
    views = round(test["test_views"])
    averaged = f"softmax averaged over {views} views" if views > 1 else "one view"
    return [
        f"test: video accuracy ({averaged}): top-1 {test['test_top1']:.2%}{top5} of {count:,} videos ({chance})",
        f"      clip accuracy (each view by itself): top-1 {test['test_clip_top1']:.2%} of {count * views:,} views",
    ]
