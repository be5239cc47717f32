"""How large an experiment is: as the paper's, an hour on one GPU, or what a laptop draws for itself."""

from typing import Any, Literal

from ..engine.config import SYNTHETIC, Config
from ..engine.datasets import dataset_name
from ..models import is_detector, is_video
from ..spelling import counted
from .tables import Row

Scale = Literal["paper", "small", "embedded"]

_CLIPS = {
    "data.size": 112,
    "data.frames": 8,
    "data.stride": 8,
    "data.test_clips": 1,
    "data.test_crops": 1,
    "data.limit": 8000,
    "optim.lr": 0.08,
    "optim.schedule": "cosine",
    "optim.epochs": 7,
    "optim.warmup_epochs": 1,
}

_FINE_GRAINED = {
    "data.size": 224,
    "optim.lr": 0.08,
    "optim.batch_size": 64,
    "optim.schedule": "cosine",
    "optim.epochs": 18,
    "optim.warmup_epochs": 2,
    "test_every": 6,
}

SMALL: dict[str, dict[str, Any]] = {
    "cub": _FINE_GRAINED,
    "pets": _FINE_GRAINED,
    "ucf101": _CLIPS,
    "mini_kinetics200": _CLIPS,
    "imagenet": {
        "data.size": 128,
        "data.limit": 50_000,
        "optim.schedule": "cosine",
        "optim.epochs": 5,
        "optim.warmup_epochs": 1,
    },
    "coco": {
        "data.size": 400,
        "data.long_side": 667,
        "data.limit": 2000,
        "optim.batch_size": 8,
        "optim.epochs": 6,
        "optim.drops": [4, 5],
        "optim.warmup_steps": 200,
        "test_every": 6,
    },
    "folder": {"test_every": 6},
    "lsa64": {"test_every": 6},
    "relation": {"test_every": 6},
}
"""Dataset -> what is less than in the paper."""

EMBEDDED: dict[str, dict[str, Any]] = {
    "images": {
        "data.dataset": "parts",
        "data.samples": 480,
        "optim.lr": 0.27,
        "optim.batch_size": 32,
        "optim.epochs": 3,
    },
    "relation": {"data.samples": 480, "optim.batch_size": 32, "optim.epochs": 3, "optim.warmup_epochs": 1},
    "videos": {
        "data.dataset": "actions",
        "data.samples": 480,
        "data.cache": "gpu",
        "optim.lr": 0.32,
        "optim.batch_size": 16,
        "optim.epochs": 5,
    },
}
"""Kind, or a dataset that is drawn already -> pictures or clips that are drawn."""


def settings_of(row: Row, scale: Scale) -> dict[str, Any]:
    """What a row is told at a scale, beside what its recipe says."""
    own, config = dict(row.settings), row.config()
    if scale == "small":
        return {**SMALL[dataset_name(config.data)], **own}
    return {**own, **_embedded(config)} if scale == "embedded" else own


def _embedded(config: Config) -> dict[str, Any]:
    """A smaller ResNet, from random weights, with blocks of an equal share of its channels."""
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
    return {
        **EMBEDDED["videos" if video else "images"],
        "model.name": f"c2d_{smaller}" if video else smaller,
        "model.weights": None,
        "model.options": options,
        "model.after": FIVE if (smaller, model.blocks, model.after) == ("resnet18", 5, ()) else list(model.after),
        "model.dropout": 0.2,
        "optim.schedule": "cosine",
        "optim.new_layers": 1.0,
        "optim.warmup_epochs": 1,
    }


FIVE = ["layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0"]
"""A ResNet-18 has no more places."""


def words(config: Config) -> str:
    """The protocol of a run in a sentence."""
    data, optim, name = config.data, config.optim, str(config.model.name)
    drawn = dataset_name(data) in SYNTHETIC
    seen = f"embedded {data.dataset}" if drawn else f"{data.size} pixels"
    seen += "" if drawn or not is_video(name) else f", clips of {data.frames} frames"
    seen += f", at most {data.limit:,} training samples" if data.limit else ""
    start = f"from the weights {config.model.weights}" if config.model.weights else "from random weights"
    tested = f", tested on {data.holdout:.0%} of the training samples" if data.test_on == "validation" else ""
    return (
        f"{name} {start}: {seen}, {optim.warmup_epochs} + {optim.epochs} epochs, {optim.schedule} schedule, "
        f"{counted(optim.batch_size, 'sample')} a step{tested}"
    )
