"""The optimizer of a network: which parameters learn, and at what rate and decay each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..models.layers import find_layers, find_stem
from ..models.weights import find_classifiers, new_parts
from ..text import nearest
from .config import Optim, default_decay
from .sharding import part

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


def parameter_groups(network: nn.Module, optim: Optim, lr: float) -> list[dict[str, Any]]:
    """The parameters that learn, in groups of one learning rate and one weight decay."""
    untrained, rates = (*find_classifiers(network), *new_parts(network)), layer_rates(network, optim.layer_decay)
    spared = set() if optim.decay_norms else _spared(network)
    decay = default_decay(optim)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            rate = optim.new_layers if name.startswith(untrained) else rates[name]
            groups.setdefault((rate, 0.0 if name in spared else decay), []).append(part(parameter))
    return [{"params": p, "initial_lr": lr * rate, "weight_decay": wd} for (rate, wd), p in groups.items()]


def _spared(network: nn.Module) -> set[str]:
    """Parameters without weight decay: norms, biases, and what the network names, such as position embeddings."""
    named = getattr(network, "no_weight_decay", set)()
    return {name for name, p in network.named_parameters() if p.ndim <= 1 or name in named}


def layer_rates(network: nn.Module, decay: float) -> dict[str, float]:
    """Factor on the learning rate of each parameter: 1 in the last layer, ``decay`` in the one before it, and so on."""
    layers = find_layers(network)
    order = {layer: number for number, layer in enumerate(dict.fromkeys(layers.values()))}
    return {name: decay ** (len(order) - 1 - order[layer]) for name, layer in layers.items()}


def freeze(network: nn.Module, names: Sequence[str]) -> None:
    """Freeze modules by their names: their parameters do not learn, and their norms keep their statistics."""
    modules = dict(network.named_modules())
    for name in names:
        if name not in modules and name != STEM:
            known = [module for module, _ in network.named_children()]
            raise ValueError(f"optim.freeze: there is no module {name!r} in the network{nearest(name, known)}")
        for frozen in [name] if name in modules else find_stem(network):
            modules[frozen].eval().requires_grad_(False)
    if not any(p.requires_grad for p in network.parameters()):
        raise ValueError(f"optim.freeze = {', '.join(names)} leaves nothing to train")
