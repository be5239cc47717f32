"""Sizes of an experiment: as in the paper, an hour on one GPU, or synthetic data on a laptop."""

from collections.abc import Mapping
from typing import Any, Literal

from ..engine.config import SYNTHETIC, Config, merge, nested
from ..engine.datasets import dataset_name
from ..models import is_detector, is_video
from ..spelling import counted
from .tables import Row

Scale = Literal["paper", "small", "embedded"]

_CLIPS = {
    "data": {"size": 112, "frames": 8, "stride": 8, "test_clips": 1, "test_crops": 1, "limit": 8000},
    "optim": {"lr": 0.08, "schedule": "cosine", "epochs": 7, "warmup_epochs": 1},
}
_FINE_GRAINED = {
    "data": {"size": 224},
    "optim": {"lr": 0.08, "batch_size": 64, "schedule": "cosine", "epochs": 18, "warmup_epochs": 2},
    "test_every": 6,
}
SMALL: dict[str, Mapping[str, Any]] = {
    "cub": _FINE_GRAINED,
    "pets": _FINE_GRAINED,
    "ucf101": _CLIPS,
    "mini_kinetics200": _CLIPS,
    "imagenet": {
        "data": {"size": 128, "limit": 50_000},
        "optim": {"schedule": "cosine", "epochs": 5, "warmup_epochs": 1},
    },
    "coco": {
        "data": {"size": 400, "long_side": 667, "limit": 2000},
        "optim": {"batch_size": 8, "epochs": 6, "drops": [4, 5], "warmup_steps": 200},
        "test_every": 6,
    },
    "folder": {"test_every": 6},
    "lsa64": {"test_every": 6},
    "relation": {"test_every": 6},
}
"""Dataset -> settings of ``--scale small``."""

EMBEDDED: dict[str, Mapping[str, Any]] = {
    "images": {
        "data": {"dataset": "parts", "samples": 480},
        "optim": {"lr": 0.27, "batch_size": 32, "epochs": 3},
    },
    "videos": {
        "data": {"dataset": "actions", "samples": 480, "cache": "gpu"},
        "optim": {"lr": 0.32, "batch_size": 16, "epochs": 5},
    },
    "relation": {"data": {"samples": 480}, "optim": {"batch_size": 32, "epochs": 3, "warmup_epochs": 1}},
}
"""Kind of samples, or a dataset that is synthetic already -> settings of ``--scale embedded``."""
FIVE = ["layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0"]
"""The only places for five blocks in a ResNet-18."""


def scale_settings(row: Row, scale: Scale) -> dict[str, Any]:
    """Settings of a row at a scale, on top of its recipe."""
    own, config = nested(row.settings), row.config()
    if scale == "small":
        return merge(SMALL[dataset_name(config.data)], own)
    return merge(own, _embedded(config)) if scale == "embedded" else own


def _embedded(config: Config) -> Mapping[str, Any]:
    """A smaller ResNet from random weights; blocks keep their share of its channels."""
    name, model, dataset = str(config.model.name), config.model, dataset_name(config.data)
    if dataset in SYNTHETIC:
        return EMBEDDED[dataset]
    if is_detector(name):
        raise ValueError("no pictures with objects are embedded")
    video = is_video(name)
    smaller = "resnet18" if "resnet50" in name else "resnet34"
    options = dict(model.options)
    if "inner_channels" in options:
        options["inner_channels"] //= 4  # basic blocks have a quarter of the channels of bottlenecks
    network = {
        "name": f"c2d_{smaller}" if video else smaller,
        "weights": None,
        "options": options,
        "after": FIVE if (smaller, model.blocks, model.after) == ("resnet18", 5, ()) else list(model.after),
        "dropout": 0.2,
    }
    optim = {"schedule": "cosine", "new_layers": 1.0, "warmup_epochs": 1}
    return merge(EMBEDDED["videos" if video else "images"], {"model": network, "optim": optim})


def describe(config: Config) -> str:
    """The protocol of a run in one sentence."""
    data, optim, name = config.data, config.optim, str(config.model.name)
    if dataset_name(data) in SYNTHETIC:
        samples = f"embedded {data.dataset}"
    else:
        samples = f"{data.size} pixels{f', clips of {data.frames} frames' if is_video(name) else ''}"
    limit = f", at most {data.limit:,} training samples" if data.limit else ""
    start = f"from the weights {config.model.weights}" if config.model.weights else "from random weights"
    tested = f", tested on {data.holdout:.0%} of the training samples" if data.test_on == "validation" else ""
    return (
        f"{name} {start}: {samples}{limit}, {optim.warmup_epochs} + {optim.epochs} epochs, {optim.schedule} schedule, "
        f"{counted(optim.batch_size, 'sample')} a step{tested}"
    )
