"""The learning rate as a function of the step."""

import math

import torch

from .config import Optim

BATCH_OF_THE_RATE = 256
"""The learning rate is given for this many samples a step."""


def set_lr(optimizer: torch.optim.Optimizer, optim: Optim, steps_per_epoch: int, step: int) -> None:
    """Set the learning rate of step number ``step``, counted from 0."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor(optim, steps_per_epoch, step)


def peak(optim: Optim, batch_size: int, pretrained: bool, default: float | None = None) -> float:
    """The highest learning rate, for a global batch of this size."""
    adamw = optim.optimizer == "adamw"
    usual = (1e-4 if adamw else 0.01) if pretrained else (5e-4 if adamw else 0.1)
    usual = default if default and not adamw else usual
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
