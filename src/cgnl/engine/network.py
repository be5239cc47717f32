"""From settings to a network."""

import dataclasses
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..data.loading import View
from ..models import create_model, freeze_early, is_detector
from ..models.backbones import find_input
from ..ops.kernels import BY_NAME, Kernel, Taylor
from ..text import first_line
from .datasets import get_size
from .settings import HEAD_LR, HEAD_NEW_LAYERS, Config, Model
from .tasks import Task

log = logging.getLogger("cgnl")

KERNELS: dict[str, Callable[..., Kernel]] = {**BY_NAME, "taylor": Taylor}
SYNTHETIC_SIDE = 64
"""Side of synthetic images, which are not resized."""
LARGE_ENOUGH = {"data.frames": 32, "data.size": 224}
"""Sizes that every network takes."""

MEASURED = "a covariance head was better by 2.93 points on CUB and 1.16 on Pets (ResNet-50, 448 pixels)"
SMALLEST_FOR_HEAD = 128
"""Side of a crop below which a ResNet's last map has too few positions for a covariance."""


def with_measured_head(config: Config, kind: str) -> Config:
    """The settings with a head where none was given: the one that was measured to be better, or else the average."""
    model = config.model
    if model.head is not None:
        return config
    measured = kind == "images" and model.weights is not None and re.match(r"resnet\d", str(model.name)) is not None
    is_small = get_size(config.data) < SMALLEST_FOR_HEAD
    head = "covariance" if measured and not is_small else "average"
    if head == "covariance":
        rates = f"a new classifier, and optim.lr={HEAD_LR:g} and optim.new_layers={HEAD_NEW_LAYERS:g} unless given"
        log.info(f"{MEASURED}, so {model.name} gets one, {rates}; model.head=average keeps the average")
    elif model.reduced != Model.reduced:
        raise ValueError(f"model.reduced = {model.reduced} has no effect on an average: say model.head=covariance")
    elif measured and is_small:
        log.info(f"{model.name} keeps its average: a covariance head needs data.size={SMALLEST_FOR_HEAD} or more")
    return dataclasses.replace(config, model=dataclasses.replace(model, head=head))


def network_options(model: Model) -> dict[str, Any]:
    """What ``create_model`` is told about blocks and head; a kernel may be a name, or a name with arguments."""
    options: dict[str, Any] = {"after": list(model.after)} if model.after else {}
    options |= {"head": model.head, "reduced": model.reduced} if model.head not in (None, "average") else {}
    if model.block is None:
        return options
    options |= {"block": model.block, "blocks": model.blocks, **model.options}
    kernel = options.get("kernel")
    if not isinstance(kernel, Mapping):
        return options
    name, arguments = kernel.get("name"), {key: value for key, value in kernel.items() if key != "name"}
    if name not in KERNELS:
        raise ValueError(f"model.options.kernel.name = {name} must be one of {', '.join(KERNELS)}")
    try:
        return {**options, "kernel": KERNELS[name](**arguments)}
    except (TypeError, OverflowError) as error:
        raise ValueError(f"model.options.kernel = {dict(kernel)}: {str(error).partition(' ')[2]}") from None


def build_network(model: Model, num_classes: int, load: bool = True) -> nn.Module:
    """The network of these settings for this many classes; ``load`` says whether it starts from their weights."""
    weights = model.weights if load else None
    name = model.name or "resnet18"
    plain = {"num_classes": num_classes + is_detector(name), "dropout": model.dropout}  # the background is one more
    try:
        network = create_model(name, weights=weights, **plain, **network_options(model))
    except (ArithmeticError, AttributeError, RuntimeError, TypeError) as error:  # options may have any type
        wrong = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if wrong is None:
            reason = first_line(error)
            raise ValueError(f"{name} cannot be built with model.options = {model.options}: {reason}") from None
        raise ValueError(f"model.options.{wrong[1]} is no option of the block {model.block}") from None
    if model.weights is not None:
        freeze_early(name, network)  # those of a checkpoint began as they did
    return network


def check_input(outline: nn.Module, name: str | None, view: View, task: type[Task], samples: int = 0) -> None:
    """Refuse clips and images that a network on the meta device cannot take, without computing anything.

    For a training, ``samples`` are those that its norms see at once: a single one may be too few.
    """
    if not task.fixed_size:
        return
    sizes = ({"data.frames": view.frames} if task.has_frames else {}) | {"data.size": view.size or SYNTHETIC_SIDE}
    shape = " x ".join(map(str, [*sizes.values(), sizes["data.size"]]))
    if error := _refusal(outline.eval(), sizes):
        larger = [n for n in sizes if view.size and not _refusal(outline, sizes | {n: LARGE_ENOUGH[n]})]
        own = find_input(name or "")
        if own and not _refusal(outline, {"data.size": own.size}) and _refusal(outline, {"data.size": 2 * own.size}):
            reason = f"it takes {own.size} x {own.size} alone, which data.size is if not given"
        else:
            reason = f"make {' or '.join(larger)} larger" if larger else first_line(error)
        raise ValueError(f"{name} cannot take {shape}: {reason}")
    if samples == 1 and _refusal(outline.train(), sizes):
        few = f"1 x {shape}, because norms would see a single value per channel"
        raise ValueError(f"{name} cannot be trained on {few}: make optim.batch_size or data.size larger")


def _refusal(outline: nn.Module, sizes: Mapping[str, int]) -> Exception | None:
    """The error of a network on the meta device for a sample of these sizes, if any."""
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            outline(torch.empty(1, 3, *sizes.values(), sizes["data.size"], device="meta"))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # other libraries' networks raise anything
        return error
    return None
