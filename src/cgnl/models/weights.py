"""Load weights into a network, with a report of every entry."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..extras import need
from ..heads import second_order_pools
from ..surgery import inserted
from ..text import first_line
from .video import inflate_weight

BODY, HEAD = "backbone.body.", "roi_heads.box_head."
"""Where a Mask R-CNN keeps the stages of its ResNet: all of them in the body, or res5 in the head."""
CLASSIFIERS = ("fc.", "roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")
"""Layers whose size is the number of classes."""
WRAPPERS = ("module.", "_orig_mod.", "network.", "model.")
"""What DataParallel, torch.compile, our checkpoints and networks within others put before each name."""
NORM_EXTRAS = (".num_batches_tracked", ".eps")
"""Entries that a frozen norm accepts but does not always have."""


@dataclass(frozen=True)
class LoadReport:
    """Names of the entries that were loaded, that the file lacked (new) and that were skipped (ignored)."""

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} entries loaded, {len(self.new)} new, {len(self.ignored)} ignored"]
        lines += [f"  new: {name}" for name in self.new] + [f"  ignored: {name}" for name in self.ignored]
        return "\n".join(lines)


def load_weights(model: nn.Module, weights: str | Path | Mapping[str, Tensor]) -> LoadReport:
    """Load a state dict, or a file that holds one, into a network of ours or any other.

    Image weights are inflated for a video network, and become the backbone of a Mask R-CNN. Whole inserted blocks, a
    second-order head, and everything but that backbone may be new; so may a classifier for another number of classes or
    another head, and the file's own is ignored. Anything else that does not fit, and any value that is not finite,
    raises ``ValueError`` and changes nothing.

    Args:
        model: the network, changed in place.
        weights: a state dict, or a .safetensors or torch file that holds one.
    """
    state = dict(weights) if isinstance(weights, Mapping) else read_state_dict(weights)
    here = model.state_dict()
    state = without_wrappers(state, here)
    image_network = "conv1.weight" in state and f"{BODY}conv1.weight" in here
    if image_network:
        state = {_in_backbone(name, here): value for name, value in state.items()}
    for name in state.keys() & here.keys():
        if (state[name].ndim, here[name].ndim) == (4, 5):
            state[name] = inflate_weight(state[name], here[name].shape[2])
    untouched = tuple(part for part in new_parts(model) if not any(name.startswith(part) for name in state))
    new_head = any(f"{name}." in untouched for name in second_order_pools(model))
    head = {name for name in here if name in state and name.startswith(find_classifiers(model))}
    may_differ = new_head or all(state[name].shape[1:] == here[name].shape[1:] for name in head)
    ignored = head if may_differ and any(state[name].shape != here[name].shape for name in head) else set()
    ignored |= {name for name in state if image_network and name.startswith("fc.")}
    state = {name: value for name, value in state.items() if name not in ignored}

    new = [name for name in here if name not in state]
    allowed = {n for n in new if n.startswith(untouched) or n in ignored or n.endswith("num_batches_tracked")}
    if image_network:
        allowed |= {name for name in new if not name.startswith((BODY, f"{HEAD}layer4."))}
    norms = tuple(f"{n}." for n, module in model.named_modules() if hasattr(module, "running_var"))
    problems = {
        "missing": [name for name in new if name not in allowed],
        "unexpected": [n for n in state if n not in here and not (n.startswith(norms) and n.endswith(NORM_EXTRAS))],
        "of another shape": [n for n in state if n in here and state[n].shape != here[n].shape],
        "not finite": find_nonfinite(state),
    }
    if any(problems.values()):
        found = "; ".join(f"{_some(names)} {problem}" for problem, names in problems.items() if names)
        raise ValueError(f"the weights do not fit the network: {found}")
    model.load_state_dict(state, strict=False)
    return LoadReport(tuple(state), tuple(new), tuple(sorted(ignored)))


def find_nonfinite(state: Mapping[str, Tensor]) -> list[str]:
    """Names of the entries that hold NaN or infinity.

    A running variance may become infinite when weights are stored in half precision. Training does not notice, because
    it normalizes with the statistics of the batch; in tests, the channel is constant.
    """
    return [name for name, value in state.items() if not value.is_meta and not value.isfinite().all()]


def find_classifiers(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of the layers whose size is the number of classes: of known names, those timm states, or the last."""
    ours = tuple(new_parts(model))
    names = [name for name, _ in model.named_parameters() if not name.startswith(ours)]
    if usual := tuple(prefix for prefix in CLASSIFIERS if any(name.startswith(prefix) for name in names)):
        return usual
    declared = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    declared = (declared,) if isinstance(declared, str) else tuple(declared)
    return tuple(f"{name}." for name in declared) or tuple(f"{name.rpartition('.')[0]}." for name in names[-1:])


def new_parts(model: nn.Module) -> list[str]:
    """Prefixes of the entries that weights of the plain network lack: blocks and heads."""
    return [f"{name}." for name in (*inserted(model), *second_order_pools(model))]


def load_reference_checkpoint(model: nn.Module, path: str | Path) -> LoadReport:
    """Load a checkpoint of the authors' released code into a network built by ``create_model``.

    Their block is the extra layer ``layer3.5`` of a ResNet-50, with submodules t, p, g, z and gn or bn, and shifts the
    residual blocks after it by one; ours is ``layer3.4_cgnl``. Build the network with the same block:
    ``create_model("resnet50", block="cgnl", norm="group", ...)`` or ``create_model("resnet50", block="nl", ...)``.

    Args:
        model: the network, changed in place.
        path: the checkpoint, a torch file.
    """
    state = without_wrappers(read_state_dict(path), model.state_dict())
    theirs = {m[1]: int(m[2]) for name in state if (m := re.fullmatch(r"(layer\d)\.(\d+)\.t\.weight", name))}
    ours = {str(module._inserted_after): name for name, module in inserted(model).items()}
    places = {f"{stage}.{index - 1}" for stage, index in theirs.items()}
    if places != set(ours):
        raise ValueError(f"the checkpoint has blocks after {_some(places)}, the network after {_some(ours)}")
    norms = [getattr(block, "norm", None) for block in inserted(model).values()]
    if any(".gn." in name for name in state) and any(isinstance(norm, _BatchNorm) for norm in norms):
        raise ValueError("the checkpoint's block has GroupNorm, the network's BatchNorm: build it with norm=\"group\"")

    def rename(name: str) -> str:
        stage, index, leaf = (*name.split(".", 2), "", "")[:3]
        if stage not in theirs or not index.isdecimal() or int(index) < theirs[stage]:
            return name
        before = f"{stage}.{int(index) - 1}"
        if int(index) > theirs[stage]:
            return f"{before}.{leaf}"
        child, _, parameter = leaf.partition(".")
        return f"{ours[before]}.{_RELEASED_NAMES.get(child, child)}.{parameter}"

    return load_weights(model, {rename(name): value for name, value in state.items()})


_RELEASED_NAMES = {"t": "theta", "p": "phi", "gn": "norm", "bn": "norm"}


PICKLED = "it is a pickled model, or holds other objects that are not tensors; save its state_dict() instead"


def holds_objects(error: Exception) -> bool:
    """Whether torch refused a file because loading it would run code in it."""
    return "Unsupported global" in str(error)


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or torch file, without running code in it."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file of weights")
    path.open("rb").close()  # the system explains best why a path cannot be read
    if path.suffix == ".safetensors":
        read = need("safetensors.torch", "vision").load_file
    else:
        read = functools.partial(torch.load, map_location="cpu", weights_only=True)
    try:
        content = read(path)
    except Exception as error:  # a broken file may make them raise anything
        reason = PICKLED if holds_objects(error) else first_line(error)
        raise ValueError(f"{path} is not a file of weights: {reason}") from None
    for key in ("state_dict", "model", "model_ema", "state_dict_ema"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not is_state_dict(content):
        raise ValueError(f"{path} holds no state dict")
    return {name: value for name, value in content.items() if name != "n_averaged"}  # of torch's AveragedModel


def without_wrappers(state: Mapping[str, Tensor], here: Mapping[str, Any]) -> dict[str, Tensor]:
    """A state dict without what wrappers put before all its names, as long as the network has none of them."""
    state = dict(state)
    while state and here.keys().isdisjoint(state):
        prefix = next((each for each in WRAPPERS if all(name.startswith(each) for name in state)), None)
        if prefix is None:
            break
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def is_state_dict(content: object) -> bool:
    """Whether this maps names to real tensors, none larger than its storage."""

    def is_whole(value: object) -> bool:
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta or value.is_complex():
            return False
        return value.numel() * value.element_size() <= value.untyped_storage().nbytes()

    return isinstance(content, Mapping) and all(isinstance(n, str) and is_whole(v) for n, v in content.items())


def check_size(outline: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Raise for a network, built on the meta device, that is much larger than its weights."""
    needed, there = (sum(value.numel() for value in one.values()) for one in (outline.state_dict(), state))
    if needed > 2 * there:  # frozen norms may be stored without all they keep
        raise ValueError(f"{path} is of another network: its weights are of a smaller one")


def _in_backbone(name: str, here: Mapping[str, Tensor]) -> str:
    """The name in a Mask R-CNN of an entry of an image ResNet."""
    stem = name.removesuffix("num_batches_tracked")
    near = stem if stem == name else f"{stem}running_var"
    within = next((prefix for prefix in (BODY, HEAD) if f"{prefix}{near}" in here), "")
    return f"{within}{name}"


def _some(names: Iterable[str], most: int = 4) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") or "nothing"
