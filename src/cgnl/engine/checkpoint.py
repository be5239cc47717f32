"""Checkpoints: written whole or not at all, and readable without the run they come from."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from .. import kernels
from ..data.index import Kind
from ..models import create_model, freeze_early, is_detector
from .config import Config, Model, build

PART = ".{}.part"
"""Name of a file that is not written to its end."""
PREFIX = "network."
"""Of the network's entries among the weights."""


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
    """COCO's numbers of the classes, of a network that finds objects."""


def write(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint whole, or not at all."""
    with whole_file(path) as file:
        torch.save(dict(checkpoint), file)


def write_text(path: Path, text: str) -> None:
    """Write a text whole, or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is written under another name and then renamed, so that there is always a whole one."""
    temporary = path.with_name(PART.format(path.name))
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, (OSError, RuntimeError)):
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OSError(f"{path} cannot be written: {reason}; what was saved before is kept") from error


def remove_parts(folder: Path) -> None:
    """Remove what was being written when a run was killed."""
    for path in folder.glob(PART.format("*")):
        path.unlink()


def read(path: Path | str) -> dict[str, Any]:
    """A checkpoint of ours, without running anything in it."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder: name a checkpoint, such as {Path(path) / 'best.ckpt'}")
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    Path(path).open("rb").close()  # one that cannot be read is the system's to explain
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # there is no end to what a broken file makes it raise
        raise ValueError(f"{path} is not a whole checkpoint") from None
    if not isinstance(checkpoint, dict) or "cgnl" not in checkpoint:
        raise ValueError(f"{path} is no checkpoint of cgnl train")
    return checkpoint


def open_trained(path: Path | str) -> Trained:
    """The network of a checkpoint, ready to be used."""
    checkpoint = read(path)
    try:
        about = checkpoint["cgnl"]
        config, classes, kind = build(about["config"]), tuple(about["classes"]), about["kind"]
        network = build_network(config.model, len(classes), load=False)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a network: {error}") from None
    load_network(network, checkpoint, path)
    return Trained(network.eval(), classes, kind, config, bool(about.get("chosen")), tuple(about.get("ids", ())))


def check_names(trained: Trained, path: Path | str) -> None:
    """Refuse a network that finds objects, where one is wanted that names samples."""
    if trained.kind == "objects":
        raise ValueError(
            f"{path} finds objects, and this is for networks that name pictures or clips; "
            "from Python, cgnl.explain.attention takes any network"
        )


def load_network(network: nn.Module, checkpoint: Mapping[str, Any], path: Path | str) -> None:
    """Load a checkpoint's weights into a network, which they must fit."""
    state = checkpoint.get("state_dict", {})
    weights = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{path} is of another network: {str(error).splitlines()[-1].strip()}") from None


def block_options(model: Model) -> dict[str, Any]:
    """What ``create_model`` is told about blocks; a kernel may be a name, or a name with arguments."""
    options: dict[str, Any] = {"after": list(model.after)} if model.after else {}
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
    except TypeError as error:
        raise ValueError(f"model.options.kernel = {dict(kernel)}: {str(error).partition(' ')[2]}") from None


KERNELS = {
    "dot": kernels.Dot,
    "embedded_gaussian": kernels.EmbeddedGaussian,
    "rbf": kernels.GaussianRBF,
    "taylor": kernels.Taylor,
}


def build_network(model: Model, num_classes: int, load: bool = True) -> nn.Module:
    """The network of these settings for this many classes; ``load`` says whether it starts from their weights."""
    weights = model.weights if load else None
    name = model.name or "resnet18"
    plain = {"num_classes": num_classes + is_detector(name), "dropout": model.dropout}  # the background is one more
    try:
        network = create_model(name, weights=weights, **plain, **block_options(model))
    except TypeError as error:
        wrong = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if wrong is None:
            raise
        raise ValueError(f"model.options.{wrong[1]} is no option of the block {model.block}") from None
    if model.weights is not None:
        freeze_early(name, network)  # those of a checkpoint began as they did
    return network
