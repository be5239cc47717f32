"""Networks of timm and torchvision by name: ``timm/convnext_tiny``, ``torchvision/swin_t``."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..extras import need
from ..text import first_line, nearest
from .layers import find_stages

LIBRARIES = ("timm/", "torchvision/")
OWN_DROPOUT = 0.5
"""The default dropout, with which networks of timm and torchvision keep their own."""
AUXILIARY = ("googlenet", "inception_v3")
"""Networks of torchvision with further classifiers in training, which are left out."""


class Input(NamedTuple):
    """The images that a network was made for."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def is_backbone(name: str) -> bool:
    """Whether the network of this name is timm's or torchvision's."""
    return name.startswith(LIBRARIES)


def build_backbone(name: str, num_classes: int, dropout: float) -> nn.Module:
    """Build a network with random weights; ``dropout`` is the backbone's own if it is 0.5."""
    library, _, own = name.partition("/")
    build = {"timm": _build_timm, "torchvision": _build_torchvision}[library]
    try:
        return build(own, num_classes, dropout)
    except NotImplementedError:  # some compute with numbers that the meta device does not have
        with torch.device("cpu"):
            return build(own, num_classes, dropout).to(torch.get_default_device())


def _build_timm(name: str, num_classes: int, dropout: float) -> nn.Module:
    timm = need("timm", "timm")
    if not timm.is_model(name):
        raise ValueError(f"timm has no network {name!r}{nearest(name, timm.list_models())}")
    drop = {} if dropout == OWN_DROPOUT else {"drop_rate": dropout}
    return timm.create_model(name, num_classes=num_classes, **drop)


def _build_torchvision(name: str, num_classes: int, dropout: float) -> nn.Module:
    models = _torchvision_with(name)
    options = {"aux_logits": False, "init_weights": True} if name in AUXILIARY else {}
    network = models.get_model(name, weights=None, num_classes=num_classes, **options)
    if dropout != OWN_DROPOUT:
        layers = [module for module in network.modules() if isinstance(module, nn.Dropout)]
        if not layers:
            raise ValueError(f"dropout = {dropout}: torchvision/{name} has no dropout")
        layers[-1].p = dropout
    return network


def _torchvision_with(name: str) -> Any:
    """The module torchvision.models; raises if it has no such network."""
    models = need("torchvision.models", "vision")
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(f"torchvision has no image network {name!r}{nearest(name, known)}")
    return models


def place_block(network: nn.Module, name: str) -> list[str]:
    """Where a block goes by default: before the last residual block of the last stage but one, or of the only one."""
    stages = find_stages(network)
    blocks = stages[-2] if len(stages) > 1 else stages[0] if stages else []
    if not blocks:
        raise ValueError(f"{name} has no stages of residual blocks: name a module with after= or model.after=")
    return [blocks[-2] if len(blocks) > 1 else blocks[0]]


def find_input(name: str) -> Input | None:
    """The size, mean and standard deviation that a network was made for, if it says so."""
    library, _, own = name.partition("/")
    if library == "timm":
        config = need("timm", "timm").get_pretrained_cfg(own, allow_unregistered=True)
        return Input(config.input_size[-1], tuple(config.mean), tuple(config.std)) if config else None
    if library != "torchvision":
        return None
    transforms = _torchvision_with(own).get_model_weights(own).DEFAULT.transforms()
    return Input(transforms.crop_size[0], tuple(transforms.mean), tuple(transforms.std))


def read_pretrained(name: str, weights: str) -> Mapping[str, Tensor]:
    """Download weights: torchvision's by their name, timm's by their tag; ``DEFAULT`` are those it recommends."""
    try:
        if name.startswith("timm/"):
            return _read_timm(name.removeprefix("timm/"), weights)
        return _read_torchvision(name, weights)
    except OSError as error:
        reason = getattr(error, "reason", None) or first_line(error)
        raise OSError(f"{name}'s weights {weights} cannot be downloaded ({reason}): give a file, or none") from None


def _read_timm(name: str, tag: str) -> Mapping[str, Tensor]:
    timm = need("timm", "timm")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{name}.*")]
    if tag != "DEFAULT" and tag not in tags:
        raise ValueError(f"{tag} is neither a file nor one of timm's weights for {name}: DEFAULT, {', '.join(tags)}")
    full = name if tag == "DEFAULT" else f"{name}.{tag}"
    try:
        return timm.create_model(full, pretrained=True).state_dict()
    except RuntimeError as error:  # it has no connection, or no weights at all
        raise OSError(str(error)) from None


def _read_torchvision(name: str, weights: str) -> Mapping[str, Tensor]:
    """For video networks and detectors of ours, the weights of the image network are read too."""
    if name.endswith("_caffe"):
        raise ValueError(f"there is no file {weights}, and torchvision has no weights for {name}")
    image_network = re.sub(r"^(torchvision/|(c2d|i3d|maskrcnn)_)|_(fpn|c4)$", "", name)
    networks = [image_network, name] if name == "maskrcnn_resnet50_fpn" else [image_network]
    find = need("torchvision.models", "vision").get_model_weights
    known = {key: entry for network in networks for key, entry in find(network).__members__.items()}  # with DEFAULT
    if weights not in known:
        raise ValueError(f"{weights} is neither a file nor one of torchvision's weights: {', '.join(known)}")
    try:
        state = known[weights].get_state_dict(progress=False, check_hash=True, weights_only=True, map_location="cpu")
    except OSError:
        raise
    except Exception:  # a broken file may make it raise anything
        raise ValueError(f"the file of torchvision's {weights} is damaged: get {known[weights].url} again") from None
    if known[weights].name == "COCO_V1":  # its frozen norms have no eps
        state |= {f"{n.removesuffix('running_var')}eps": torch.zeros(()) for n in state if n.endswith("running_var")}
    return state
