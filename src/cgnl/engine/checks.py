"""Checks of settings that no type can make: what goes together, and whether names and files exist.

Nothing heavy is imported: what timm and torchvision have is found in their sources.
"""

import importlib.util
import re
import sys
from collections.abc import Collection
from operator import attrgetter
from pathlib import Path

from ..text import nearest
from .settings import AUGMENTATIONS, DETECTION, LONGEST_NAME, NETWORKS, SYNTHETIC, Config, dataset_name

SMALLEST_ALPHA = 0.001
"""Below it, numbers of the beta distribution are lost to rounding."""
LIBRARIES = ("timm", "torchvision")
REGISTERED = re.compile(r"^@register_model\b.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)
"""The name of a registered network in a source file."""
WEIGHTS = re.compile(r"^    ([A-Z][A-Z\d_]+) = (?:Weights\(|[A-Z])", re.MULTILINE)
"""The name of weights in torchvision."""
WEIGHTS_FILES = (".pth", ".pt", ".ckpt", ".safetensors", ".bin")

PICTURES = ("images", "cub", "pets", "imagenet", *DETECTION)
"""Datasets without clips."""
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "data.split": ("data.dataset", ("ucf101",)),
    "data.lists": ("data.dataset", ("mini_kinetics200",)),
    "data.test_signers": ("data.dataset", ("lsa64",)),
    "data.shard_cache": ("data.dataset", ("shards",)),
    "data.shard_cache_gib": ("data.dataset", ("shards",)),
    "data.annotations": ("data.dataset", ("coco",)),
    "data.images": ("data.dataset", ("coco",)),
    "data.test_annotations": ("data.dataset", ("coco",)),
    "data.test_images": ("data.dataset", ("coco",)),
    "data.long_side": ("data.dataset", DETECTION),
    "data.samples": ("data.dataset", SYNTHETIC),
    "optim.momentum": ("optim.optimizer", ("sgd",)),
    "optim.nesterov": ("optim.optimizer", ("sgd",)),
    "optim.betas": ("optim.optimizer", ("adamw",)),
    "optim.drops": ("optim.schedule", ("step",)),
}
"""Setting -> another, and the only values of that with which it has an effect."""
IDLE: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "data.root": ("data.dataset", SYNTHETIC),
    "data.frames": ("data.dataset", PICTURES),
    "data.stride": ("data.dataset", PICTURES),
    "data.test_clips": ("data.dataset", PICTURES),
    "data.test_crops": ("data.dataset", PICTURES),
    "model.blocks": ("model.block", (None,)),
    "model.after": ("model.block", (None,)),
    "model.options": ("model.block", (None,)),
    "model.reduced": ("model.head", ("average",)),
}
"""Setting -> another, and the values of that with which it has no effect."""


def check_typed(config: Config, typed: Collection[str]) -> None:
    """Raise for a setting that has no effect with another, where both were typed."""
    values = {name: attrgetter(name)(config) for name in (*NEEDS, *IDLE)}
    usual = {name: attrgetter(name)(Config()) for name in values}
    for name in (name for name in values if name in typed and values[name] != usual[name]):
        other, among = NEEDS.get(name) or IDLE[name]
        value = attrgetter(other)(config)
        if other in typed and (value in among) != (name in NEEDS):
            word = "null" if value is None else value
            raise ValueError(f"{name} has no effect with {other} = {word}: leave one of them out")


def check(config: Config) -> Config:
    """Return the settings, or raise for those that do not go together or are out of range."""
    data, dataset = config.data, dataset_name(config.data)
    if config.name is not None and not _is_name(config.name):
        raise ValueError(f"name = {config.name!r} must name a folder within runs, such as birds or birds/first")
    if not 0 < data.area[0] <= data.area[1]:
        raise ValueError(f"data.area = {data.area} must be a small and a large share")
    if not all(deviation > 0 for deviation in data.std or ()):
        raise ValueError(f"data.std = {data.std} must be three numbers above 0")
    if not all(0 <= beta < 1 for beta in config.optim.betas):
        raise ValueError(f"optim.betas = {config.optim.betas} must be two numbers from 0 to below 1")
    for name in ("mixup", "cutmix"):
        if 0 < getattr(data, name) < SMALLEST_ALPHA:
            raise ValueError(f"data.{name} = {getattr(data, name)} must be 0 or at least {SMALLEST_ALPHA}")
    for name, value in {"compile": config.compile, "precision": config.precision}.items():
        if config.parallel == "fsdp" and value in (True, "16"):
            raise ValueError(f"{name} = {value} is not possible with parallel = fsdp")
    for_classifiers = {f"data.{name}": getattr(data, name) for name in (*AUGMENTATIONS, "balance")}
    for name, value in {**for_classifiers, "parallel": config.parallel}.items():
        if dataset in DETECTION and value not in ("none", 0, "ddp"):
            raise ValueError(f"{name} = {value} is not possible for detectors")
    if data.labels is not None and dataset != "csv":
        raise ValueError(f"data.labels = {data.labels} is for data.dataset=csv, not for {data.dataset}")
    if data.shard_window is not None and (dataset != "shards" or data.balance == "sampling"):
        needs = "data.dataset=shards, and not data.balance=sampling"
        raise ValueError(f"data.shard_window = {data.shard_window} needs {needs}")
    return config


def _is_name(name: str) -> bool:
    """Whether it names a folder, perhaps nested, that stays inside its parent."""
    parts = Path(name).parts
    inside = bool(parts) and not Path(name).is_absolute() and ".." not in parts
    return inside and name.isprintable() and max(len(part.encode()) for part in parts) <= LONGEST_NAME


def check_names(config: Config) -> None:
    """Raise for a dataset or network that does not exist."""
    from ..data.readers import READERS

    dataset, datasets = config.data.dataset, [*SYNTHETIC, *READERS]
    if dataset is not None and dataset not in datasets:
        raise ValueError(f"there is no dataset {dataset!r}{nearest(dataset, datasets)}")
    network = config.model.name
    library, _, own = (network or "").partition("/")
    if library in LIBRARIES and own:
        known = library_networks(library)
        if known and own.partition(".")[0] not in known:  # timm's have tags
            raise ValueError(f"model.name = {network}: {library} has no network {own!r}{nearest(own, known)}")
    elif network is not None and network not in (networks := network_names()):
        others = [
            f"{library}/{own or network}" for library in LIBRARIES if (own or network) in library_networks(library)
        ]
        near = f"; did you mean {' or '.join(others)}?" if others else nearest(network, networks)
        raise ValueError(f"model.name = {network} is not a network{near}")


def check_files(config: Config) -> None:
    """Raise for folders and files that a training needs and that are missing, and for weights that nobody knows."""
    from ..data.index import require_file, require_folder
    from ..data.streams import is_address, require_typed

    data, weights, dataset = config.data, config.model.weights, dataset_name(config.data)
    if data.root is not None and is_address(data.root):
        if dataset != "shards":
            raise ValueError(f"data.root = {data.root} is not a folder: addresses are for data.dataset=shards")
        require_typed(data.root)
    elif data.root is not None and dataset != "shards":
        require_folder(data.root)
    if dataset == "csv":
        require_file(Path(data.root or ".", data.labels or "labels.csv"))
    if weights is not None and not Path(weights).exists():
        if "/" in weights or Path(weights).suffix in WEIGHTS_FILES:
            raise ValueError(f"model.weights: there is no file {weights}")
        known = [] if (config.model.name or "").startswith("timm/") else find_names("torchvision", WEIGHTS, "**/*.py")
        if known and weights not in known:
            raise ValueError(f"model.weights = {weights} is neither a file nor known{nearest(weights, known)}")


def network_names() -> tuple[str, ...]:
    """List the networks: also those that a program has registered, but without importing torch for it."""
    models = sys.modules.get("cgnl.models")
    return tuple(models.NETWORKS) if models else NETWORKS


def library_networks(library: str) -> list[str]:
    """List the networks of timm or torchvision; empty where it is imported: a program may have registered others."""
    return [] if library in sys.modules else find_names(library, REGISTERED)


def find_names(library: str, pattern: re.Pattern[str], files: str = "*.py") -> list[str]:
    """Names in the sources of a library, which takes ten seconds to import; empty where it is not installed."""
    found = importlib.util.find_spec(library)
    folders = found.submodule_search_locations if found else None
    sources = sorted(Path(folders[0], "models").glob(files)) if folders else []
    names = (name for source in sources for name in pattern.findall(source.read_text(encoding="utf-8")))
    return list(dict.fromkeys(names))
