"""How weights change: the optimizer, the rate and decay of each parameter, the schedule, the moving average."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..models.layers import find_layers, find_stem
from ..models.weights import find_classifiers, new_parts
from ..text import nearest
from .settings import Optim, default_decay
from .sharding import part

REFERENCE_BATCH = 256
"""The learning rate is given for this many samples a step."""
STEM = "stem"
"""For ``optim.freeze``: what comes before the first residual block, or the module of this name."""


def make_optimizer(network: nn.Module, optim: Optim, lr: float, fused: bool = True) -> torch.optim.Optimizer:
    """SGD or AdamW; a fused one skips a step where its ``found_inf`` is set, without a synchronisation."""
    groups = parameter_groups(network, optim, lr)
    if optim.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=optim.betas, fused=fused)
    sgd = torch.optim.SGD(groups, lr=lr, momentum=optim.momentum, nesterov=optim.nesterov, fused=fused)
    if optim.momentum:  # a fused optimizer would leave it undefined after a first step that is skipped
        for p in (p for group in sgd.param_groups for p in group["params"]):
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return sgd


def peak_lr(optim: Optim, batch_size: int, pretrained: bool, default: float | None = None) -> float:
    """The highest learning rate, for a global batch of this size."""
    adamw = optim.optimizer == "adamw"
    usual = (1e-4 if adamw else 0.01) if pretrained else (5e-4 if adamw else 0.1)
    usual = default if default and not adamw else usual
    return (usual if optim.lr is None else optim.lr) * batch_size / REFERENCE_BATCH


def lr_factor(optim: Optim, steps_per_epoch: int, step: int) -> float:
    """Factor on the highest learning rate in step number ``step``, counted from 0."""
    warmup = optim.warmup_epochs * steps_per_epoch
    after = step - warmup
    if after < 0:
        share = (step + 1) / (warmup + 1)
    elif optim.schedule == "step":
        epoch = after // steps_per_epoch
        share = 0.1 ** sum(epoch >= drop for drop in optim.drops)
    else:
        share = 0.5 * (1 + math.cos(math.pi * min(after / (optim.epochs * steps_per_epoch), 1)))
    return share * min(1.0, (step + 1) / (optim.warmup_steps + 1))


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rates to a share of their highest."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def parameter_groups(network: nn.Module, optim: Optim, lr: float) -> list[dict[str, Any]]:
    """The parameters that learn, in groups of one learning rate and one weight decay."""
    untrained, rates = (*find_classifiers(network), *new_parts(network)), layer_rates(network, optim.layer_decay)
    spared = set() if optim.decay_norms else _undecayed(network)
    decay = default_decay(optim)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            rate = (optim.new_layers or 1.0) if name.startswith(untrained) else rates[name]
            groups.setdefault((rate, 0.0 if name in spared else decay), []).append(part(parameter))
    return [{"params": p, "initial_lr": lr * rate, "weight_decay": wd} for (rate, wd), p in groups.items()]


def _undecayed(network: nn.Module) -> set[str]:
    """Parameters without weight decay: norms, biases, and what the network names, such as position embeddings."""
    named = getattr(network, "no_weight_decay", set)()
    return {name for name, p in network.named_parameters() if p.ndim <= 1 or name in named}


def layer_rates(network: nn.Module, decay: float) -> dict[str, float]:
    """Factor on the learning rate of each parameter: 1 in the last layer, ``decay`` in the one before it, and so on.

    Blocks and heads have none, and do not count as layers: the others learn as fast as without them.
    """
    added = tuple(new_parts(network))
    layers = {name: layer for name, layer in find_layers(network).items() if not name.startswith(added)}
    order = {layer: number for number, layer in enumerate(dict.fromkeys(layers.values()))}
    return {name: decay ** (len(order) - 1 - order[layer]) for name, layer in layers.items()}


def freeze(network: nn.Module, names: Sequence[str]) -> None:
    """Freeze modules and parameters by their names: they do not learn, and norms keep their statistics."""
    modules, parameters = dict(network.named_modules()), dict(network.named_parameters())
    for name in names:
        if name not in (*modules, *parameters, STEM):
            known = [module for module, _ in network.named_children()]
            raise ValueError(f"optim.freeze: there is no module {name!r} in the network{nearest(name, known)}")
        for frozen in find_stem(network) if name == STEM and STEM not in modules else [name]:
            if frozen in parameters:
                parameters[frozen].requires_grad_(False)
            else:
                modules[frozen].eval().requires_grad_(False)
    if not any(p.requires_grad for p in network.parameters()):
        raise ValueError(f"optim.freeze = {', '.join(names)} leaves nothing to train")


class Average:
    """The exponential moving average of all weights and buffers. No update waits for the device."""

    def __init__(self, network: nn.Module, decay: float):
        self.module, self.decay, self.updates = copy.deepcopy(network), decay, 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network as it is; counts, such as the batches that a norm has seen, are copied."""
        pairs = list(zip(_tensors(self.module), _tensors(network), strict=True))
        averaged = [pair for pair in pairs if self.updates and pair[0].is_floating_point()]
        if averaged:
            mine, theirs = zip(*averaged, strict=True)
            torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
                mine, theirs, 1 - self.decay
            )
        for mine, theirs in pairs:
            if not (self.updates and mine.is_floating_point()):
                mine.copy_(theirs)
        self.updates += 1


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*map(part, network.parameters()), *network.buffers()]
