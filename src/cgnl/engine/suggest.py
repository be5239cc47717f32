"""A recipe for a dataset that was looked at: settings with the reason for each, as commented YAML."""

import math
import re
import textwrap
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from ..data.survey import UNEVEN, Survey, describe, describe_balance
from ..extras import need
from ..safe_yaml import parse
from ..text import printable
from .config import build
from .settings import LONGEST_NAME
from .values import convert

FEW = 10_000
"""Training samples below which pretrained weights and augmentation are worth most."""
MANY_CLASSES, FEW_OF_EACH = 20, 100
"""From so many classes on, and with at most so many samples of each, classes tend to differ in details."""
SMALLEST, USUAL, LARGEST = 64, 224, 448
"""Sides of training crops in pixels: the last for classes that differ in details."""
SEEN = 200_000
"""Samples to train on, over all epochs, within the limits of ``EPOCHS``."""
EPOCHS = 20, 60
STEPS = 20
"""Fewest steps of an epoch, by which the batch is chosen, within the limits of ``BATCH``."""
BATCH = {"images": (4, 64), "videos": (4, 32), "objects": (2, 16)}
MEASURED = (
    "many classes with few samples each are likely to differ in details. There, this head was worth 2.9 points (CUB, "
    "200 birds) and 1.2 points (Pets, 37 breeds), at 448 pixels (docs/second-order.md)"
)


class Setting(NamedTuple):
    """A setting, its value, and the reason for it."""

    name: str
    value: Any
    why: str = ""


def suggest_recipe(found: Survey) -> str:
    """Write the recipe; it is parsed and checked before it is returned."""
    advice = {"images": _advise_images, "videos": _advise_videos, "objects": _advise_objects}[found.index.kind]
    settings = sorted([*_locate(found), *advice(found)], key=lambda setting: "." in setting.name)
    text = _to_yaml(found, settings)
    build({name: value for name, value in parse(text, "the recipe").items() if name != "extends"})
    return text


def is_detailed(found: Survey) -> bool:
    """Whether the classes are likely to differ in details: many of them, and few samples of each."""
    counts = [count for count in found.counts.values() if count]
    return len(counts) >= MANY_CLASSES and median(counts) <= FEW_OF_EACH


def choose_batch(found: Survey) -> int:
    """The largest power of two that leaves an epoch enough steps."""
    smallest, largest = BATCH[found.index.kind]
    return 2 ** int(math.log2(min(max(found.samples / STEPS, smallest), largest)))


def choose_size(found: Survey, largest: int = USUAL) -> int:
    """The shorter side of most samples, in whole steps of the network, within the usual limits."""
    return min(max(found.short_side // 32 * 32, SMALLEST), largest)


def choose_epochs(found: Survey) -> int:
    """More for small datasets."""
    return min(max(round(SEEN / found.samples), EPOCHS[0]), EPOCHS[1])


def _locate(found: Survey) -> Iterator[Setting]:
    yield Setting("name", _run_name(found), "the folder of the run, in runs")
    yield Setting("data.dataset", found.layout)
    root = str(found.root)
    named = root if convert("data.root", root, str | None) == root else f"./{root}"  # a folder may be called null
    yield Setting("data.root", named, "as seen from where the command is run")
    yield from (Setting(f"data.{name}", value) for name, value in found.given.items())


def _advise_images(found: Survey) -> Iterator[Setting]:
    detailed, is_small = is_detailed(found), found.samples < FEW
    size = choose_size(found, LARGEST if detailed else USUAL)
    shrunk = f"the shorter side of most images is {found.short_side}"
    yield Setting("data.size", size, f"{shrunk}; 224 takes a quarter of the time" if size == LARGEST else shrunk)
    if size < 128:
        yield Setting("data.area", [0.25, 1.0], "share of an image in a crop; small images have little to spare")
    yield Setting("data.flip", True, "false if left and right matter, as in letters or hands")
    if is_small:
        yield Setting("data.augment", "trivial", f"{found.samples:,} samples are few; look: cgnl data show")
    yield from _balance(found)
    deep = size >= 128
    yield Setting("model.name", "resnet50" if deep else "resnet18", "resnet18 is faster" if deep else "")
    if is_small:
        yield _weights(found)
    if detailed:
        yield Setting("model.block", None, "cgnl adds nothing measurable to this head (docs/second-order.md)")
        yield Setting("model.head", "covariance", MEASURED)
    else:
        yield Setting("model.block", "cgnl", "for cgnl explain; on birds it was no better than null (docs/results.md)")
        if is_small and deep:
            better = "better than an average on birds and pets (docs/second-order.md), not measured on others"
            yield Setting("model.head", "covariance", better)
    yield from _learn(found, pretrained=is_small)


def _advise_videos(found: Survey) -> Iterator[Setting]:
    length = int(median(found.frames))
    frames = min(max(length // 8 * 8, 8), 32)
    stride = min(max(length // frames, 1), 2)
    slow = "; large: cgnl data shrink makes a copy that decodes faster" if found.short_side > 2 * USUAL else ""
    yield Setting("data.size", choose_size(found), f"the shorter side of most clips is {found.short_side}{slow}")
    yield Setting("data.frames", frames, f"most clips have {length}")
    yield Setting("data.stride", stride, "2: every other frame")
    if length <= frames * stride * 2:
        yield Setting("data.test_clips", 1, "the clips are hardly longer than what the network sees")
    signs = found.layout == "lsa64"
    yield Setting("data.flip", not signs, "hands are not mirrored" if signs else "false if left and right matter")
    yield from _balance(found)
    yield Setting("model.name", "c2d_resnet50", "c2d_resnet18 is faster")
    yield _weights(found)
    yield Setting("model.block", "cgnl", "for cgnl explain; what it is worth: docs/results.md, and cgnl diagnose")
    yield from _learn(found, pretrained=True)


def _advise_objects(found: Survey) -> Iterator[Setting]:
    size, batch = min(max(found.short_side // 32 * 32, 320), 800), choose_batch(found)
    yield Setting("extends", "base_objects")
    yield Setting("data.size", size, f"the shorter side of most images is {found.short_side}")
    yield Setting("model.weights", "IMAGENET1K_V1", "of the backbone; downloaded once. Offline: a file, or null")
    yield Setting("optim.batch_size", batch, f"{found.samples:,} images; the learning rate follows it")
    longer = 2 if found.samples < FEW else 1
    yield Setting("optim.epochs", 12 * longer, "the usual 12, twice for a small dataset" if longer > 1 else "as usual")
    yield Setting("optim.drops", [8 * longer, 11 * longer], "where the learning rate is divided by ten")
    yield Setting("optim.warmup_steps", min(500, max(found.samples // batch, 1)))


def _weights(found: Survey) -> Setting:
    few = f"{found.samples:,} samples are few to start at random" if found.samples < FEW else "a better start"
    return Setting("model.weights", "IMAGENET1K_V1", f"{few}; downloaded once. Offline: a file, or null")


def _balance(found: Survey) -> Iterator[Setting]:
    if found.imbalance >= UNEVEN:
        yield Setting("data.balance", "weights", f"{describe_balance(found)}; also: sampling, none")


def _learn(found: Survey, pretrained: bool) -> Iterator[Setting]:
    batch, epochs = choose_batch(found), choose_epochs(found)
    yield Setting("optim.lr", 0.08 if pretrained else 0.1, "for 256 samples a step; scaled to the batch")
    if pretrained:
        yield Setting("optim.new_layers", 5.0, "what starts untrained learns faster")
    yield Setting("optim.batch_size", batch, f"about {max(found.samples // batch, 1):,} steps an epoch")
    yield Setting("optim.epochs", epochs, "more for small datasets")
    yield Setting("optim.warmup_epochs", max(epochs // 10, 1))
    if found.samples < FEW:
        yield Setting("optim.label_smoothing", 0.1)


def _run_name(found: Survey) -> str:
    """The folder's name as that of a run."""
    name = re.sub(r"[^\w.-]+", "-", found.root.resolve().name, flags=re.ASCII).strip("-.")
    return name[: LONGEST_NAME // 2] or "new"


def _to_yaml(found: Survey, settings: list[Setting]) -> str:
    """Group the settings; a reason that does not fit behind its setting stands above it."""
    lines = [f"# {printable(line)}" for line in describe(found)]
    lines.append("# Every setting is explained by: cgnl train --help")
    group = ""
    for setting in settings:
        prefix, _, last = setting.name.rpartition(".")
        if prefix != group:
            lines.append(f"{prefix}:")
            group = prefix
        indent = "  " if prefix else ""
        line, why = f"{indent}{last}: {_to_scalar(setting.value)}", printable(setting.why)
        if why and len(line) + len(why) > 110:
            lines += [f"{indent}# {part}" for part in textwrap.wrap(why, 110)] + [line]
        else:
            lines.append(f"{line}  # {why}" if why else line)
    return "\n".join(lines) + "\n"


def _to_scalar(value: Any) -> str:
    """A value in one line of YAML."""
    text = need("yaml", "cli").safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")
