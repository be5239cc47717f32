"""Checkpoints: written whole or not at all, and readable without the run they come from."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

import torch
from torch import nn

from .. import kernels
from ..data.index import Kind
from ..data.loading import View
from ..models import create_model, freeze_early, is_detector
from ..models.weights import check_size, is_state_dict
from ..spelling import first_line
from .config import Config, Model, build
from .datasets import view_in_test

PART = ".{}.part"
"""Name of a file that is not written to its end."""
PREFIX = "network."
"""Of the network's entries among the weights."""
DRAWN = 64
"""Side of embedded pictures, which are seen as they are."""


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


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text whole, or not at all; ``errors`` as for ``str.encode``."""
    with whole_file(path) as file:
        file.write(text.encode(errors=errors))


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
        reason = getattr(error, "strerror", None) or first_line(error)
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
    """The network of a checkpoint, ready to be used.

    What the checkpoint says of it is tried on the meta device first, where it costs nothing to be wrong.
    """
    checkpoint = read(path)
    weights, about = weights_of(checkpoint, path), described(checkpoint["cgnl"], path)
    try:
        with torch.device("meta"):
            outline = build_network(about.config.model, len(about.classes), load=False)
        check_input(outline, about.config.model.name, view_in_test(about.config.data, about.kind), about.kind)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not describe a network: {error}") from None
    check_size(outline, weights, path)
    network = build_network(about.config.model, len(about.classes), load=False)
    load_network(network, checkpoint, path)
    return dataclasses.replace(about, network=network.eval())


def described(about: Any, path: Path | str, settings: str = "config") -> Trained:
    """What a file says of its network, as far as it is one that there can be; the network itself is still missing."""
    try:
        config, kind, classes, ids = build(about[settings]), about["kind"], about["classes"], about.get("ids", ())
        named = isinstance(classes, list | tuple) and {str} >= set(map(type, classes)) and {int} >= set(map(type, ids))
        if kind not in get_args(Kind) or not named:
            raise ValueError("its classes are not named")
        view_in_test(config.data, kind)
        return Trained(nn.Identity(), tuple(classes), kind, config, bool(about.get("chosen")), tuple(ids))
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"{path} does not describe a network: what was written about it is damaged") from None
    except ValueError as error:
        raise ValueError(f"{path} does not describe a network: {error}") from None


def check_input(outline: nn.Module, name: str | None, view: View, kind: Kind) -> None:
    """Refuse clips and pictures that a network on the meta device cannot take, without computing anything."""
    if kind == "objects":
        return
    side = view.size or DRAWN
    shape = (view.frames, side, side) if kind == "videos" else (side, side)
    try:
        with torch.no_grad():
            outline.eval()(torch.empty(1, 3, *shape, device="meta"))
    except RuntimeError as error:
        size = " x ".join(map(str, shape))
        raise ValueError(f"{name} cannot take {size}: {first_line(error)}") from None


def check_names(trained: Trained, path: Path | str) -> None:
    """Refuse a network that finds objects, where one is wanted that names samples."""
    if trained.kind == "objects":
        raise ValueError(
            f"{path} finds objects, and this is for networks that name pictures or clips; "
            "from Python, cgnl.explain.attention takes any network"
        )


def load_network(network: nn.Module, checkpoint: Mapping[str, Any], path: Path | str) -> None:
    """Load a checkpoint's weights into a network, which they must fit."""
    try:
        network.load_state_dict(weights_of(checkpoint, path))
    except RuntimeError as error:
        raise ValueError(f"{path} is of another network: {str(error).splitlines()[-1].strip()}") from None


def weights_of(checkpoint: Mapping[str, Any], path: Path | str) -> dict[str, torch.Tensor]:
    """The network's weights in a checkpoint."""
    state = checkpoint.get("state_dict")
    if not is_state_dict(state):
        raise ValueError(f"{path} holds no weights")
    return {name.removeprefix(PREFIX): value for name, value in dict(state or {}).items() if name.startswith(PREFIX)}


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
    except (TypeError, OverflowError) as error:
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
    except (ArithmeticError, AttributeError, RuntimeError, TypeError) as error:  # options have whatever types they have
        wrong = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if wrong is None:
            reason = first_line(error)
            raise ValueError(f"{name} cannot be built with model.options = {model.options}: {reason}") from None
        raise ValueError(f"model.options.{wrong[1]} is no option of the block {model.block}") from None
    if model.weights is not None:
        freeze_early(name, network)  # those of a checkpoint began as they did
    return network
