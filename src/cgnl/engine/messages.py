"""What a run says at its beginning and its end."""

import json
import logging
import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from ..spelling import counted, percent
from ..surgery import inserted
from .atomic_io import write_text
from .config import Config
from .datasets import Dataset, best_metric

log = logging.getLogger("cgnl")

NAMES = {"top1": "top-1", "top5": "top-5"} | {
    f"{kind}_{number}": f"{kind} {number.upper()}" for kind in ("box", "mask") for number in ("ap", "ap50", "ap75")
}
"""What is reported of a test."""


def epoch_in_words(row: dict[str, Any], epochs: int) -> str:
    """A row of the table of epochs."""
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

    def stuck(before: float, now: float) -> bool:
        return now >= before and now >= 0.98 * chance

    epochs = [number for number, pair in enumerate(pairwise(losses), 2) if stuck(*pair)]
    if epochs[:1] != [len(losses)]:
        return None
    return (
        f"epoch {len(losses)}: the training loss, {losses[-1]:.3f}, does not fall and is no better than guessing, "
        f"ln {classes} = {chance:.3f}: try a lower optim.lr or optim.new_layers"
    )


def introduce(config: Config, dataset: Dataset, network: nn.Module, batch_size: int, lr: float, folder: object) -> None:
    """Say what is about to happen."""
    log.info(
        "%s: %s to train on, %s to test on, %s",
        dataset.name,
        counted(len(dataset.train), "clip" if dataset.kind == "videos" else "picture"),
        f"{len(dataset.test):,}",
        counted(len(dataset.classes), "class"),
    )
    for problem in dataset.problems:
        log.warning("  %s", problem)
    millions = sum(p.numel() for p in network.parameters()) / 1e6
    places = ", ".join(inserted(network)) or "none"
    head = "" if config.model.head == "average" else f", {config.model.head} head of {config.model.reduced} channels"
    log.info("%s: %.1f M parameters, blocks: %s%s", config.model.name, millions, places, head)
    if batch_size < config.optim.batch_size:
        log.info("a step takes %s, not %d: there are no more", counted(batch_size, "sample"), config.optim.batch_size)
    log.info(
        "%d + %d epochs, %s a step, learning rate %.4g, %s; seed %d; everything goes to %s",
        config.optim.warmup_epochs,
        config.optim.epochs,
        counted(batch_size, "sample"),
        lr,
        config.optim.schedule,
        config.seed,
        folder,
    )


def conclude(dataset: Dataset, result: Any) -> None:
    """Say what came out, and write it down."""
    metric, last = best_metric(dataset.kind), result.folder / "last.ckpt"
    numbers = {f"best_{metric}": result.best, "unreadable": result.unreadable, "seconds": result.seconds}
    write_text(result.folder / "results.json", json.dumps(result.test | numbers, indent=2) + "\n")
    speeds = sorted(row["samples_per_second"] for row in result.rows) or [0.0]
    log.info("")
    log.info("%s, the network after the last epoch:", last)
    for line in describe(result.test, dataset.kind, len(dataset.classes)):
        log.info("%s", line)
    best = f"{NAMES[metric]} {percent(result.best)}"
    log.info("best test between epochs: %s, of %s, which was chosen by these tests", best, last.with_name("best.ckpt"))
    if result.unreadable:
        unread = counted(result.unreadable, "sample")
        log.info("%s could not be read, named in %s", unread, result.folder / "log.txt")
    minutes, seconds = divmod(round(result.seconds), 60)
    log.info("%d min %02d s in all, %s samples/s in training", minutes, seconds, f"{speeds[len(speeds) // 2]:,.0f}")
    thing = "VIDEO" if dataset.kind == "videos" else "PICTURE"
    log.info("try it: cgnl predict %s %s", shlex.quote(str(last)), thing)


def describe(test: dict[str, float], kind: str, classes: int) -> list[str]:
    """The results of a test in words."""
    if kind == "objects":
        return _precision(test)
    top5 = f", top-5 {test['test_top5']:.2%}" if classes > 5 else ""
    count, chance = round(test["test_count"]), f"chance {1 / classes:.2%}"
    if kind == "images":
        return [f"test: top-1 {test['test_top1']:.2%}{top5} of {counted(count, 'picture')} ({chance})"]
    views = round(test["test_views"])
    averaged = f"softmax averaged over {views} views" if views > 1 else "one view"
    videos, all_views = counted(count, "video"), counted(count * views, "view")
    return [
        f"test: video accuracy ({averaged}): top-1 {test['test_top1']:.2%}{top5} of {videos} ({chance})",
        f"      clip accuracy (each view by itself): top-1 {test['test_clip_top1']:.2%} of {all_views}",
    ]


def _precision(test: dict[str, float]) -> list[str]:
    """COCO's numbers of a test, in per cent."""
    pictures = counted(round(test["test_count"]), "picture")
    lines = [f"test: average precision on {pictures} (IoU 0.50:0.95; at 0.50; at 0.75)"]
    for kind in ("box", "mask"):
        ap, ap50, ap75, *areas = (percent(test[f"test_{kind}_{n}"]) for n in ("ap", "ap50", "ap75", *_AREAS))
        by_area = ", ".join(f"{area.removeprefix('ap_')} {value}" for area, value in zip(_AREAS, areas, strict=True))
        recall = percent(test[f"test_{kind}_ar_100"])
        lines.append(f"  {kind:5} AP {ap}, AP50 {ap50}, AP75 {ap75}; {by_area}; recall {recall}")
    return lines


_AREAS = ("ap_small", "ap_medium", "ap_large")
