"""What a run is told: typed settings, recipes that extend one another, overrides by name. Nothing heavy is imported."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from ..extras import need
from ..spelling import first_line, nearest

SYNTHETIC = ("parts", "relation", "actions")
LARGEST, DEEPEST = 2**20, 20
"""Letters of a recipe, and how many groups may be in one another."""


@dataclass(frozen=True)
class Data:
    """Which samples, and how they are seen."""

    dataset: str | None = None
    """parts, relation or actions (drawn from a seed), or the layout of root: folder, cub, pets, imagenet, ucf101,
    kinetics400, mini_kinetics200, lsa64, or coco for objects in pictures. If not given: coco where annotations are
    named, folder where there is a root, else parts."""
    root: str | None = None
    """Where the dataset is."""
    split: int = 1
    """Which of the three splits of UCF101."""
    lists: str | None = None
    """Where the id lists of Mini-Kinetics-200 are, if not in root."""
    test_signers: tuple[int, ...] = (9, 10)
    """LSA64: signers whose clips are the test. The others' are for training."""
    annotations: str | None = None
    """COCO: the annotation file, in root. If not given: annotations/instances_train*.json."""
    images: str | None = None
    """COCO: the folder, in root, of the pictures it names. If not given: train* or what is there."""
    test_annotations: str | None = None
    """COCO: the annotation file to test by. If not given: annotations/instances_val*.json."""
    test_images: str | None = None
    """COCO: the folder of its pictures. If not given: val*, or images."""
    test_on: Literal["test", "validation", "train"] = "test"
    """validation: keep a share (holdout) of the training samples and test on them, to choose settings by. train: test
    on the very samples of the training, to see how well they were learned."""
    holdout: float = 0.2
    """Share of each class that is kept for testing where the dataset has no test split."""
    limit: int | None = None
    """Training samples at most, the same number of each class as far as there are."""
    samples: int = 2000
    """Training samples of an embedded dataset; a quarter as many are for testing."""
    size: int = 224
    """Side of the square the network is trained on; of pictures with objects, the shorter side."""
    area: tuple[float, float] = (0.08, 1.25)
    """Share of the picture that a training crop covers."""
    flip: bool = True
    """Whether half of the training samples are mirrored."""
    test_size: int | None = None
    """Side of the square the network is tested on. If not given: size for pictures, test_short_side for videos."""
    test_short_side: int | None = None
    """Side to which the shorter one is brought before the test crop, if there is one. If not given: size x 8 / 7, which
    is 256 for 224; size itself for objects."""
    long_side: int = 1333
    """Pictures with objects are made smaller where the longer side would be more than this."""
    frames: int = 32
    """Frames of a clip."""
    stride: int = 2
    """From one frame of a clip to the next: 2 takes every other frame of the video."""
    test_clips: int = 10
    """Clips of a video in the final test. The tests between epochs take the one in the middle."""
    test_crops: int = 3
    """Crops of each of these clips, along the longer side."""
    workers: int | None = None
    """Processes that read samples. If not given: as many as there are cores beside a GPU, else one at most."""
    cache: Literal["none", "gpu"] = "none"
    """gpu: decode everything once and keep it in the memory of the device that trains."""
    bad_limit: int = 100
    """How many unreadable samples are skipped before the run stops."""


@dataclass(frozen=True)
class Model:
    """Which network."""

    name: str | None = None
    """One of those `cgnl models` lists. If not given: resnet18 for pictures, c2d_resnet18 for videos,
    maskrcnn_resnet50_fpn for objects."""
    block: Literal["cgnl", "cgnlx", "nl", "residual"] | None = "cgnl"
    """Block that is inserted; null for none."""
    blocks: int = 1
    """How many: 1 or 5, where the paper puts them."""
    head: Literal["average", "covariance", "bilinear", "compact"] = "average"
    """What pools the last map: its average, or products of its channels. Detectors have none."""
    reduced: int = 256
    """Channels whose products a second-order head takes."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the block, such as {groups: 4, norm: group, kernel: {name: rbf, beta: exact}}."""
    weights: str | None = None
    """A file of weights to start from, or the name of torchvision's, such as IMAGENET1K_V1."""
    dropout: float = 0.5
    """Before the classifier."""
    after: tuple[str, ...] = ()
    """Names of the modules to put blocks behind, such as [layer4.1], instead of where the paper puts them."""


@dataclass(frozen=True)
class Optim:
    """How it learns: SGD."""

    lr: float | None = None
    """Learning rate for a global batch of 256; it grows and shrinks with batch_size. If not given: 0.01 from weights of
    a trained network, 0.1 from random ones; 0.32 for objects."""
    new_layers: float = 1.0
    """Learning rate of what starts untrained, blocks, head and classifier, as a multiple of the others'."""
    batch_size: int = 64
    """Samples of one step, over all devices and accumulated parts."""
    accumulate: int = 1
    """Parts a device cuts its share of a step into, to save memory."""
    epochs: int = 30
    """After the warm-up."""
    warmup_epochs: int = 3
    """Before the others: the learning rate rises linearly."""
    warmup_steps: int = 0
    """Steps at the very beginning over which it rises as well, where a whole epoch would be too long."""
    schedule: Literal["cosine", "step"] = "cosine"
    """cosine: down to zero. step: a tenth at each of drops."""
    drops: tuple[int, ...] = (31, 61, 81)
    """Epochs, counted from 0 after the warm-up, from which the learning rate is a tenth of what it was before."""
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    """Gradients longer than this are shortened to it."""
    ema: float | None = None
    """Decay of an average of the weights, such as 0.999, that is tested and kept instead of them."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What becomes of a step whose loss or gradient is not finite. stop: the run ends, and names the first module whose
    output is not finite. skip: the step is left out, named and counted; more than ten one after another end the run."""


@dataclass(frozen=True)
class Config:
    """Everything a run is told."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    name: str | None = None
    """Of the run's folder, within runs; a/b is a folder in a folder. If not given: made from dataset, network and
    block."""
    runs: str = "runs"
    """Folder of all runs."""
    seed: int = 0
    devices: int | None = None
    """GPUs, or processes where there is none, on each machine. If not given: one."""
    nodes: int = 1
    """Machines. Start the command on each by torchrun or SLURM."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "32", "bf16", "16"] = "auto"
    """auto: bf16 on a GPU, else 32."""
    channels_last: bool = True
    compile: bool = False
    """Compile the network. It starts a minute later and then runs faster."""
    sync_batchnorm: bool = True
    """Norms see the samples of all GPUs."""
    deterministic: bool = False
    """The same weights to the last bit, each time."""
    test_every: int = 1
    """Epochs between tests; the last one is always tested."""
    save_every: int = 1000
    """Steps between checkpoints, beside those after each test."""
    patience: int | None = None
    """Stop after this many tests without a better result."""
    timeout: float = 600.0
    """Seconds that the processes of a run wait for one that does not answer."""
    tensorboard: bool = False
    """Write curves for TensorBoard too."""

    @property
    def world(self) -> int:
        """Processes over all machines."""
        return (self.devices or 1) * self.nodes


def recipes() -> list[str]:
    """The names of the recipes that come with cgnl."""
    names = (file.name.removesuffix(".yaml") for file in _home().iterdir() if file.name.endswith(".yaml"))
    return sorted(name for name in names if not name.startswith("base"))


def read_recipe(recipe: str | Path, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe, by name or file, laid over the one it extends."""
    file = _find(recipe)
    if str(file) in extended_by:
        raise ValueError(f"{file} extends itself")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not YAML: {error}") from None
    content = parse(text, str(file)) or {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no settings")
    content.pop("paper", None)  # older recipes and run folders hold the paper's numbers
    base = content.pop("extends", None)
    if base is not None and not isinstance(base, str):
        raise ValueError(f"{file}: extends = {base} is not the name of a recipe")
    try:
        check_keys(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if base is None:
        return content
    beside = Path(str(file)).parent / f"{str(base).removesuffix('.yaml')}.yaml"
    own = beside.is_file() and beside != Path(str(file))
    return merge(read_recipe(beside if own else base, (*extended_by, str(file))), content)


def parse(text: str, source: str) -> Any:
    """What a text in YAML says. What would take endless time or memory is refused by its first signs."""
    yaml = need("yaml", "cli")
    if len(text) > LARGEST:
        raise ValueError(f"{source} is too long for settings: {len(text):,} letters")
    try:
        odd = _oddity(yaml, text)
        content = None if odd else yaml.safe_load(text)
    except Exception as error:  # a value that does not fit its tag, such as !!int, makes it raise anything
        raise ValueError(f"{source} is not YAML: {first_line(error)}") from None
    if odd:
        raise ValueError(f"{source} has {odd}, which settings do without")
    return content


def _oddity(yaml: Any, text: str) -> str | None:
    """An alias, by which a few lines can stand for more than memory holds, or lists in lists without end."""
    depth = 0
    for token in yaml.scan(text, yaml.SafeLoader):
        name = type(token).__name__
        depth += name.endswith(("SequenceStartToken", "MappingStartToken"))
        depth -= name.endswith(("SequenceEndToken", "MappingEndToken", "BlockEndToken"))
        if depth > DEEPEST or isinstance(token, yaml.AliasToken):
            return f"more than {DEEPEST} brackets in one another" if depth > DEEPEST else "an alias (*)"
    return None


def _find(recipe: str | Path) -> Any:
    """A recipe of ours by its name, or a file."""
    shipped = _home() / f"{recipe}.yaml"
    if "/" not in str(recipe) and shipped.is_file():
        return shipped
    if Path(recipe).is_file():
        return Path(recipe)
    if str(recipe).endswith(".yaml"):
        raise ValueError(f"there is no file {recipe}")
    raise ValueError(f"there is no recipe {str(recipe)!r}{nearest(str(recipe), recipes())}")


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others laid over them."""
    both = dict(base)
    for key, value in over.items():
        deeper = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merge(both[key], value) if deeper else value
    return both


def load(recipe: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Settings from a recipe and overrides such as ``{"optim.lr": 0.02}`` or ``{"optim": {"lr": 0.02}}``."""
    settings = nested(overrides or {})
    check_keys(settings)
    base = read_recipe(recipe) if recipe else {}
    block, model = settings.get("model", {}).get("block", _SAME), base.get("model", {})
    if block is not _SAME and block != model.get("block", _SAME):
        base = base | {"model": {**model, "options": {}}}  # they were another block's
    return build(merge(base, settings))


_SAME = object()


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``{"optim.lr": 0.02}`` as ``{"optim": {"lr": 0.02}}``."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        if name.startswith("model.options.") and isinstance(value, str):
            value = parse(value, f"{name} = {value}")  # their types are the block's to know
        *groups, last = name.split(".")
        branch: dict[str, Any] = {last: value}
        for group in reversed(groups):
            branch = {group: branch}
        tree = merge(tree, branch)
    return tree


def build(settings: Mapping[str, Any]) -> Config:
    """Typed settings from plain ones; a key that is misspelt or a value of another type is refused."""
    settings = {name: value for name, value in settings.items() if name != "paper"}  # of older checkpoints
    check_keys(settings)
    if isinstance(settings.get("precision"), int):
        settings["precision"] = str(settings["precision"])  # YAML reads 32 as a number
    given = {n: settings.pop(n, None) for n in _GROUPS}
    groups = {n: _typed(_GROUPS[n], group, f"{n}.") for n, group in given.items() if group is not None}
    return check(dataclasses.replace(_typed(Config, settings, ""), **groups))


def _typed(kind: type, settings: Mapping[str, Any], prefix: str) -> Any:
    """One group of settings."""
    try:
        values = _parser(kind).parse_object(dict(settings)).as_dict()
    except Exception as error:  # jsonargparse's errors have no common type
        raise ValueError(complaint(error, {f.name: f.type for f in dataclasses.fields(kind)}, prefix)) from None
    for f in dataclasses.fields(kind):
        if values.get(f.name, "") is None and type(None) not in get_args(f.type):
            raise ValueError(f"{prefix}{f.name} = null must be {_type_name(f.type)}")
    return kind(**values)


@cache
def _parser(kind: type) -> Any:
    """What reads a group of settings; made once, for that takes longer than reading."""
    parser = need("jsonargparse", "cli").ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, None, skip=set(_GROUPS))
    return parser


def check(config: Config) -> Config:
    """The settings, if their numbers make sense."""

    def given(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        values = ((name, attrgetter(name)(config)) for name in names)
        return ((name, value) for name, value in values if value is not None)

    for name, value in given(_POSITIVE):
        if not value > 0:
            raise ValueError(f"{name} = {value} must be more than 0")
    for name, value in given(_MOST):
        if value > _MOST[name]:
            raise ValueError(f"{name} = {value} must be at most {_MOST[name]:,}")
    if not 0 <= config.seed < 2**32:
        raise ValueError(f"seed = {config.seed} must be from 0 to {2**32 - 1}")
    for name, value in given(_NOT_NEGATIVE):
        if value < 0:
            raise ValueError(f"{name} = {value} must not be below 0")
    for name, value in given(_SHARES):
        if not 0 <= value < 1:
            raise ValueError(f"{name} = {value} must be at least 0 and below 1")
    if config.name is not None and not _is_name(config.name):
        raise ValueError(f"name = {config.name!r} must name a folder within runs, such as birds or birds/first")
    if not 0 < config.data.area[0] <= config.data.area[1]:
        raise ValueError(f"data.area = {config.data.area} must be a small and a large share")
    return config


def _is_name(name: str) -> bool:
    """Whether it names a folder, or a folder in a folder, that stays where it is put."""
    parts = Path(name).parts
    inside = bool(parts) and not Path(name).is_absolute() and ".." not in parts
    return inside and name.isprintable() and max(len(part.encode()) for part in parts) <= LONGEST_NAME


LONGEST_NAME = 200
"""Bytes of a folder's name. File systems take 255, and a number may follow it."""
_POSITIVE = (
    *("data.size", "data.samples", "data.limit", "data.frames", "data.stride", "data.test_clips", "data.test_crops"),
    *("data.test_size", "data.test_short_side", "data.long_side"),
    *("optim.lr", "optim.new_layers", "optim.batch_size", "optim.accumulate", "optim.epochs", "optim.clip_norm"),
    *("model.blocks", "model.reduced", "devices", "nodes", "test_every", "save_every", "patience", "timeout"),
)
_NOT_NEGATIVE = ("optim.warmup_epochs", "optim.warmup_steps", "data.bad_limit", "data.workers")
_SHARES = ("data.holdout", "model.dropout", "optim.ema", "optim.label_smoothing")
LONGEST_SIDE = 8192
_MOST: dict[str, int] = dict.fromkeys(
    ("data.size", "data.test_size", "data.test_short_side", "data.long_side"), LONGEST_SIDE
)
_MOST |= {"data.frames": 1024, "data.stride": 1024, "data.test_clips": 100, "data.test_crops": 100}
_MOST |= {"data.workers": 512, "model.reduced": 4096, "data.samples": 10**8}
_MOST |= dict.fromkeys(("optim.epochs", "optim.warmup_epochs", "optim.warmup_steps"), 10**6)
"""Numbers beyond which a slip, or a stranger, would ask for memory, processes or time that no machine has."""


def plain(config: Any) -> dict[str, Any]:
    """Settings as dictionaries, lists, numbers and text, as they are written to a file."""

    def value(v: Any) -> Any:
        if dataclasses.is_dataclass(v):
            return {f.name: value(getattr(v, f.name)) for f in dataclasses.fields(v)}
        if isinstance(v, (tuple, list)):
            return [value(item) for item in v]
        return v

    return value(config)


def to_yaml(config: Config) -> str:
    """Settings as a recipe."""
    return need("yaml", "cli").safe_dump(plain(config), sort_keys=False)


def keys(of_type: type | None = None) -> list[str]:
    """The names of all settings, such as ``optim.lr``, or of those of one type."""
    names = {f"{prefix}{f.name}": f.type for prefix, kind in _KINDS.items() for f in dataclasses.fields(kind)}
    return [name for name, kind in names.items() if name not in _GROUPS and of_type in (None, kind)]


_GROUPS: dict[str, type] = {"data": Data, "model": Model, "optim": Optim}
_KINDS: dict[str, type] = {"": Config} | {f"{name}.": kind for name, kind in _GROUPS.items()}


def check_keys(settings: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse a misspelt key with the nearest right one."""
    known = keys()
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if name in _GROUPS and isinstance(value, Mapping):
            check_keys(value, f"{name}.")
        elif name in _GROUPS:
            raise ValueError(f"{name} = {value} is not a group of settings")
        elif name not in (*known, *_GROUPS):
            raise ValueError(f"there is no setting {name!r}{nearest(name, known)}")


def complaint(error: Exception, types: Mapping[str, Any], prefix: str = "") -> str:
    """A message of jsonargparse in one sentence; ``types`` are those of the settings it may speak of."""
    text = " ".join(str(error).split())
    given = re.search(r"(?:Given|Got) value: (.*)", text)
    for name, kind in types.items():
        if re.search(rf"[\"']{name}[\"'.]|required: {name}\b", text):
            value = f"= {given[1]} must be {_type_name(kind)}" if given else "is missing"
            return f"{prefix}{name} {value}"
    return text


def _type_name(kind: Any) -> str:
    """``int``, ``float or null``, ``one of cosine, step``."""
    parts = [kind, *get_args(kind), *(a for part in get_args(kind) for a in get_args(part))]
    choices = [part for part in parts if isinstance(part, str)]
    if choices:
        return f"one of {', '.join(choices)}" + (" or null" if type(None) in parts else "")
    return re.sub(r"typing\.|<class '|'>", "", str(kind)).replace(" | None", " or null")


def _home() -> Any:
    return resources.files("cgnl") / "recipes"
