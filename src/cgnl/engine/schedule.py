"""The optimizer, and its learning rate as a function of the step."""

import math
from typing import Any

import torch
from torch import nn

from ..models.weights import CLASSIFIERS, new_parts
from .config import Optim

BATCH_OF_THE_RATE = 256
"""The learning rate is given for this many samples a step."""


def make_optimizer(network: nn.Module, optim: Optim, lr: float, fused: bool = True) -> torch.optim.SGD:
    """SGD; a fused one skips a step where its ``found_inf`` is set, without a synchronisation."""
    shared = {"momentum": optim.momentum, "weight_decay": optim.weight_decay, "nesterov": optim.nesterov}
    sgd = torch.optim.SGD(parameter_groups(network, optim, lr), lr=lr, fused=fused, **shared)
    if optim.momentum:  # a fused optimizer would leave it undefined after a first step that is skipped
        for p in (p for group in sgd.param_groups for p in group["params"]):
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return sgd


def parameter_groups(network: nn.Module, optim: Optim, lr: float) -> list[dict[str, Any]]:
    """What is trained: all at one rate, or what starts untrained at another."""
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    untrained = (*CLASSIFIERS, *new_parts(network))
    new = [p for name, p in trained.items() if name.startswith(untrained)]
    if optim.new_layers == 1 or not new:
        return [{"params": list(trained.values()), "initial_lr": lr}]
    old = [p for name, p in trained.items() if not name.startswith(untrained)]
    return [{"params": old, "initial_lr": lr}, {"params": new, "initial_lr": lr * optim.new_layers}]


def set_lr(optimizer: torch.optim.Optimizer, optim: Optim, steps_per_epoch: int, step: int) -> None:
    """Set the learning rate of step number ``step``, counted from 0."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor(optim, steps_per_epoch, step)


def peak(optim: Optim, batch_size: int, pretrained: bool, default: float | None = None) -> float:
    """The highest learning rate, for a global batch of this size."""
    usual = default or (0.01 if pretrained else 0.1)
    return (usual if optim.lr is None else optim.lr) * batch_size / BATCH_OF_THE_RATE


def factor(optim: Optim, steps_per_epoch: int, step: int) -> float:
    """The share of the highest learning rate that step number ``step``, counted from 0, is made with."""
    return min(1.0, (step + 1) / (optim.warmup_steps + 1)) * _after_steps(optim, steps_per_epoch, step)


def _after_steps(optim: Optim, steps_per_epoch: int, step: int) -> float:
    """The same without the warm-up of the first steps."""
    warmup = optim.warmup_epochs * steps_per_epoch
    if step < warmup:
        return (step + 1) / (warmup + 1)
    after = step - warmup
    if optim.schedule == "step":
        epoch = after // steps_per_epoch  # of the epochs after the warm-up, counted from 0
        return 0.1 ** sum(epoch >= drop for drop in optim.drops)
    return 0.5 * (1 + math.cos(math.pi * min(after / (optim.epochs * steps_per_epoch), 1)))


def total_epochs(optim: Optim) -> int:
    """Warm-up and what follows it."""
    return optim.warmup_epochs + optim.epochs
