"""Checkpoints, readable without the run they come from."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..atomic_io import whole_file
from ..data.index import Kind, name_some
from ..models.weights import PICKLED, check_size, find_nonfinite, holds_objects, is_state_dict
from .config import build
from .network import build_network, check_input
from .runs import find_checkpoint
from .settings import Config
from .sharding import divided_like
from .tasks import TASKS, Task

PREFIX = "network."
"""Prefix of the names of weights."""


@dataclass(frozen=True)
class Trained:
    """A network and all that is needed to use it."""

    network: nn.Module
    classes: tuple[str, ...]
    kind: Kind
    config: Config
    chosen: bool = False
    """Whether it was chosen, among the epochs of its run, by its own test."""
    ids: tuple[int, ...] = ()
    """COCO's numbers of the classes, of a detector."""
    fingerprint: Mapping[str, int] | None = None
    """Of the samples it was trained on; older checkpoints have none."""

    @property
    def task(self) -> type[Task]:
        """Samples, metric and wording of what it was trained for."""
        return TASKS[self.kind]


def write(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint whole, or not at all."""
    size = sum(v.numel() * v.element_size() for v in tree_leaves(checkpoint) if isinstance(v, torch.Tensor))
    with whole_file(path, size) as file:
        torch.save(dict(checkpoint), file)


def read(path: Path | str) -> dict[str, Any]:
    """A checkpoint of ours, by its file or its run folder, without running anything in it."""
    path = find_checkpoint(path)
    path.open("rb").close()  # raises OSError if it may not be read
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file raises almost anything
        if holds_objects(error):
            raise ValueError(f"{path} is no checkpoint of cgnl train: {PICKLED}") from None
        raise ValueError(f"{path} is not a whole checkpoint") from None
    if not isinstance(checkpoint, dict) or "cgnl" not in checkpoint:
        raise ValueError(f"{path} is no checkpoint of cgnl train")
    return checkpoint


def open_trained(path: Path | str) -> Trained:
    """Open the network of a checkpoint. A wrong description fails on the meta device, before memory is used."""
    path = find_checkpoint(path)
    checkpoint = read(path)
    weights, about = get_weights(checkpoint, path), parse_card(checkpoint["cgnl"], path)
    check_size(outline(about, path), weights, path)
    network = build_network(about.config.model, len(about.classes), load=False)
    load_network(network, checkpoint, path)
    return dataclasses.replace(about, network=network.eval())


def outline(about: Trained, path: Path | str) -> nn.Module:
    """Build the network that a file describes on the meta device; raises if it cannot be built."""
    try:
        with torch.device("meta"):
            network = build_network(about.config.model, len(about.classes), load=False)
        check_input(network, about.config.model.name, about.task.view_in_test(about.config.data), about.task)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a network: {error}") from None
    return network


def parse_card(about: Any, path: Path | str, settings: str = "config") -> Trained:
    """Read the description of a network; the network itself stays empty."""
    try:
        config, kind, classes, ids = build(about[settings]), about["kind"], about["classes"], about.get("ids", ())
        named = isinstance(classes, list | tuple) and {str} >= set(map(type, classes)) and {int} >= set(map(type, ids))
        if kind not in TASKS or not named:
            raise ValueError("its classes are not named")
        TASKS[kind].view_in_test(config.data)  # raises where it cannot be
        marks = None if about.get("fingerprint") is None else dict(about["fingerprint"])
        return Trained(nn.Identity(), tuple(classes), kind, config, bool(about.get("chosen")), tuple(ids), marks)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = error if isinstance(error, ValueError) else "what was written about it is damaged"
        raise ValueError(f"{path} does not describe a network: {reason}") from None


def require_classifier(trained: Trained, path: Path | str) -> None:
    """Raise for detectors."""
    if not trained.task.classifies:
        other = "from Python, cgnl.explain.attention takes any network"
        raise ValueError(f"{path} finds objects, and this is for networks that name images or clips; {other}")


def load_network(network: nn.Module, checkpoint: Mapping[str, Any], path: Path | str) -> None:
    """Load a checkpoint's weights into a network, which they must fit."""
    weights = get_weights(checkpoint, path)
    if bad := find_nonfinite(weights):
        raise ValueError(f"{path} cannot be used, because some of its weights are not finite: {name_some(bad)}")
    try:
        own = network.state_dict()
        network.load_state_dict({name: divided_like(value, own.get(name)) for name, value in weights.items()})
    except RuntimeError as error:
        raise ValueError(f"{path} is of another network: {str(error).splitlines()[-1].strip()}") from None


def get_weights(checkpoint: Mapping[str, Any], path: Path | str) -> dict[str, torch.Tensor]:
    """The network's weights in a checkpoint."""
    state = checkpoint.get("state_dict")
    if not is_state_dict(state):
        raise ValueError(f"{path} holds no weights")
    return {name.removeprefix(PREFIX): value for name, value in dict(state or {}).items() if name.startswith(PREFIX)}
