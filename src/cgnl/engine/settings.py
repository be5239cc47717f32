"""The settings of a run: typed fields, each with its help. Nothing heavy is imported."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from .values import NonNegativeInt, PositiveFloat, PositiveInt, Share

SYNTHETIC = ("parts", "relation", "actions")
DETECTION = ("coco", "yolo")
"""Layouts of datasets for object detection."""
DATA_PATHS = ("root", "shard_cache", "labels", "lists", "annotations", "images", "test_annotations", "test_images")
"""Settings of the data that are paths."""
ONLINE = ("wandb", "mlflow")
"""Loggers that may open an address, which no file can ask for."""
NETWORKS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("resnet50_caffe", "resnet101_caffe", "resnet152_caffe"),
    *("c2d_resnet18", "c2d_resnet34", "c2d_resnet50", "c2d_resnet101", "c2d_resnet50_caffe", "c2d_resnet101_caffe"),
    *("i3d_resnet50", "i3d_resnet101", "i3d_resnet50_caffe", "i3d_resnet101_caffe"),
    *("maskrcnn_resnet50_fpn", "maskrcnn_resnet50_c4", "maskrcnn_resnet50_fpn_caffe", "maskrcnn_resnet50_c4_caffe"),
)
"""Names in ``cgnl.models.NETWORKS``, which needs torch."""

_OPTIONS: dict[str, Any] = {
    "inner_channels": int | None,
    "norm": Literal["batch", "group"] | None,
    "zero_init": bool,
    "after": list[str],  # older spelling of model.after
}
_CGNL_OPTIONS = _OPTIONS | {
    "groups": PositiveInt,
    "kernel": Literal["dot", "embedded_gaussian", "rbf"] | dict[str, Any],
    "scale": Literal["sqrt", "resolution", "energy"] | None,
    "normalize": bool,
    "backend": Literal["auto", "reference", "fused"],
    "recompute": bool,
}
_NON_LOCAL_OPTIONS = _OPTIONS | {
    "kernel": Literal["embedded_gaussian", "dot"],
    "scale": bool,
    "subsample": bool,
}
BLOCK_OPTIONS: dict[str, dict[str, Any]] = {
    "cgnl": _CGNL_OPTIONS,
    "cgnlx": _CGNL_OPTIONS,
    "nl": _NON_LOCAL_OPTIONS,
    "residual": _OPTIONS | {"groups": PositiveInt},
}
"""Block -> names and types of ``model.options``: arguments of the block's class, which needs torch."""

AUGMENTATIONS = ("augment", "jitter", "erase", "mixup", "cutmix")
LONGEST_SIDE = 8192
HEAD_LR, HEAD_NEW_LAYERS = 0.08, 5.0
"""optim.lr and optim.new_layers at which covariance heads were measured on pretrained weights."""
LONGEST_NAME = 200
"""Most bytes in the name of a folder. File systems allow 255, and a number may be added."""

# Upper limits catch slips, and strangers who ask for memory, processes or time that no machine has.
Side = Annotated[int, "> 0", f"<= {LONGEST_SIDE}"]
Frames = Annotated[int, "> 0", "<= 1024"]
Views = Annotated[int, "> 0", "<= 100"]
Samples = Annotated[int, "> 0", "<= 1e8"]
Workers = Annotated[int, ">= 0", "<= 512"]
Channels = Annotated[int, "> 0", "<= 4096"]
Epochs = Annotated[int, "> 0", "<= 1e6"]
Warmup = Annotated[int, ">= 0", "<= 1e6"]
Fraction = Annotated[float, ">= 0", "<= 1"]
Alpha = Annotated[float, ">= 0", "<= 100"]
Seed = Annotated[int, ">= 0", "<= 4294967295"]


@dataclass(frozen=True)
class Data:
    """Which samples, and how the network sees them."""

    dataset: str | None = None
    """A synthetic dataset (parts, relation, actions), or the layout of root: folder, images, clips, csv, cub, pets,
    imagenet, ucf101, kinetics400, mini_kinetics200, lsa64, shards (tar files of WebDataset), hf (save_to_disk of
    Hugging Face's datasets), or coco or yolo for object detection. If not given: csv if labels is given, coco if
    annotations is given, folder if root is given, else parts."""
    root: str | None = None
    """Folder of the dataset. Shards: also a pattern such as shards/{000000..000007}.tar or, if typed on the command
    line, the address of a folder (https://...) or a command (pipe:cat shards/{shard})."""
    shard_cache: str | None = None
    """Shards from an address or command: folder where they are kept."""
    shard_cache_gib: PositiveFloat = 64.0
    """Shards from an address or command: how much of them is kept, in GiB; the longest unused are removed first."""
    labels: str | None = None
    """CSV file with the columns file, label and perhaps split (train, test, val), in root or with its whole path."""
    shard_window: PositiveInt | None = None
    """Shards whose samples are mixed at a time, if shard_cache does not hold them all. If not given: all of them."""
    split: int = 1
    """UCF101: which of its three splits."""
    lists: str | None = None
    """Mini-Kinetics-200: folder of its id lists. If not given: root."""
    test_signers: tuple[int, ...] = (9, 10)
    """LSA64: signers to test on; the others are for training."""
    annotations: str | None = None
    """COCO: annotation file, relative to root. If not given: annotations/instances_train*.json."""
    images: str | None = None
    """COCO: image folder, relative to root. If not given: train*, or the only one there."""
    test_annotations: str | None = None
    """COCO: annotation file to test on. If not given: annotations/instances_val*.json."""
    test_images: str | None = None
    """COCO: image folder to test on. If not given: val*, or images."""
    test_on: Literal["test", "validation", "train"] = "test"
    """test: the test split. validation: a share (holdout) of the training samples, to choose settings by. train: the
    training samples, to see how well they are fitted."""
    holdout: Share = 0.2
    """Share of each class to test on, if the dataset has no test split."""
    limit: PositiveInt | None = None
    """Most training samples, balanced over the classes. If not given: all."""
    balance: Literal["none", "weights", "sampling"] = "none"
    """For classes of different sizes. weights: weight the loss by the inverse frequency of the class. sampling: draw
    each class equally often in an epoch, which is as long as before."""
    samples: Samples = 2000
    """Training samples of a synthetic dataset; it has a quarter as many test samples."""
    size: Side | None = None
    """Side of the square training crop in pixels; for detection, the shorter side of the image. If not given: what the
    network was made for, 224 for ours."""
    mean: tuple[float, float, float] | None = None
    """Mean of red, green and blue, from 0 to 1, that is subtracted. If not given: the network's own, or ImageNet's."""
    std: tuple[float, float, float] | None = None
    """Standard deviation to divide by afterwards. If not given: the network's own, or ImageNet's."""
    area: tuple[float, float] = (0.08, 1.25)
    """Smallest and largest area of a training crop, as a share of the image."""
    flip: bool = True
    """Mirror half of the training samples."""
    augment: Literal["none", "trivial", "rand"] = "none"
    """Random changes of colour and shape of each training sample. trivial: one of any strength (TrivialAugment). rand:
    two of medium strength (RandAugment)."""
    jitter: Fraction = 0.0
    """Largest random change of brightness, contrast and saturation, as a share; 0.4 is usual."""
    erase: Fraction = 0.0
    """Probability that a random box of a training sample is erased; 0.25 is usual."""
    mixup: Alpha = 0.0
    """Blend pairs of training samples and their labels, in shares from the beta distribution of this alpha; 0.2 is
    usual, 0 is off."""
    cutmix: Alpha = 0.0
    """Paste a box of one training sample into another, with the labels in the same shares; alpha 1 is usual, 0 is off.
    With mixup too, each batch gets one of the two, by a fair coin."""
    test_size: Side | None = None
    """Side of the square test crop. If not given: size for images, test_short_side for videos."""
    test_short_side: Side | None = None
    """Shorter side to which test samples are resized before the crop. If not given: size x 8 / 7, which is 256 for 224;
    size itself for detection."""
    long_side: Side = 1333
    """Detection: longest side of an image; larger ones are shrunk to it."""
    frames: Frames = 32
    """Frames in a clip."""
    stride: Frames = 2
    """Steps between the frames of a clip: 2 takes every other frame of the video."""
    test_clips: Views = 10
    """Clips of each video in the final test. Tests between epochs take one, from the middle."""
    test_crops: Views = 3
    """Crops of each of these clips, spread along the longer side."""
    workers: Workers | None = None
    """Processes that load samples. If not given: one for each core if there is a GPU, else at most one."""
    cache: Literal["none", "gpu"] = "none"
    """gpu: decode all samples once and keep them in the memory of the training device."""
    bad_limit: NonNegativeInt = 100
    """Unreadable samples to skip before the run stops."""


@dataclass(frozen=True)
class Model:
    """Which network."""

    name: str | None = None
    """One of the networks that `cgnl models` lists, or an image network of timm or torchvision, e.g. timm/convnext_tiny
    or torchvision/swin_t. If not given: resnet18 for images, c2d_resnet18 for videos, maskrcnn_resnet50_fpn for
    detection."""
    block: Literal["cgnl", "cgnlx", "nl", "residual"] | None = "cgnl"
    """Block to insert; null for none."""
    blocks: PositiveInt = 1
    """Number of blocks, placed as in the paper: 1 or 5. Networks of timm and torchvision get 1, before the last block
    of their last stage but one."""
    head: Literal["average", "covariance", "bilinear", "compact"] | None = None
    """Pooling before the classifier: the average, or products of channels. Detectors have only the average. If not
    given: covariance for one of our ResNets that starts from weights to classify images of 128 pixels or more, where
    no recipe or YAML file is named; else average."""
    reduced: Channels = 256
    """Channels whose products a second-order head takes."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the block, e.g. model.options.groups=4 or {groups: 4, norm: group, kernel: {name: rbf}}."""
    weights: str | None = None
    """Pretrained weights: a file, a name in torchvision such as IMAGENET1K_V1, or a tag in timm. If not given:
    random."""
    dropout: Share = 0.5
    """Dropout before the classifier. At 0.5, networks of timm and torchvision keep their own."""
    after: tuple[str, ...] = ()
    """Modules to insert blocks after, e.g. [layer4.1]. If not given: the usual places."""


@dataclass(frozen=True)
class Optim:
    """How the network learns."""

    lr: PositiveFloat | None = None
    """Learning rate for a batch of 256; it is scaled with batch_size. If not given: 0.01 with pretrained weights, and
    0.08 if they get a covariance head; 0.1 with random ones, 0.32 for detection; with adamw 0.0001 and 0.0005."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    layer_decay: Annotated[float, "> 0", "<= 1"] = 1.0
    """Factor on the learning rate from each layer to the one before it, e.g. 0.75: early layers learn slowly."""
    freeze: tuple[str, ...] = ()
    """Modules that do not learn, e.g. [stem,layer1]; their norms keep their statistics. stem: all before the first
    residual block."""
    new_layers: PositiveFloat | None = None
    """Factor on the learning rate of layers that start untrained: blocks, head and classifier. If not given: 1, or 5
    where pretrained weights get a covariance head."""
    batch_size: PositiveInt = 64
    """Samples in one step, over all devices and accumulated parts."""
    accumulate: PositiveInt = 1
    """Parts into which each device splits its share of a step, to save memory."""
    epochs: Epochs = 30
    """Epochs after the warm-up."""
    warmup_epochs: Warmup = 3
    """Epochs of warm-up, in which the learning rate rises linearly; they come before the others."""
    warmup_steps: Warmup = 0
    """Steps of warm-up, for runs in which a whole epoch would be too long."""
    schedule: Literal["cosine", "step"] = "cosine"
    """cosine: decay to zero. step: divide by ten at each epoch in drops."""
    drops: tuple[int, ...] = (31, 61, 81)
    """Epochs at which schedule=step divides the learning rate by ten, counted from 0 after the warm-up."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's averages of the gradient and of its square."""
    weight_decay: float | None = None
    """Weight decay. If not given: 0.0001, or 0.05 with adamw."""
    decay_norms: bool = True
    """Decay norms and biases, too."""
    label_smoothing: Share = 0.0
    """Share of the label that is spread over all classes."""
    clip_norm: PositiveFloat | None = None
    """Largest gradient norm; longer gradients are clipped to it. If not given: no clipping."""
    ema: Share | None = None
    """Decay of a moving average of the weights, e.g. 0.999, which is tested and saved in their place."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do at a non-finite loss or gradient. stop: end the run and name the first module with a non-finite
    output. skip: skip and count the step; after more than ten in a row the run ends."""

    @property
    def total_epochs(self) -> int:
        """Epochs with those of the warm-up."""
        return self.warmup_epochs + self.epochs


@dataclass(frozen=True)
class Config:
    """The run itself."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    name: str | None = None
    """Folder of the run inside runs; may be nested, as in birds/first. If not given: dataset, network and block."""
    runs: str = "runs"
    """Folder of all runs."""
    seed: Seed = 0
    """Seed of all random numbers."""
    devices: PositiveInt | None = None
    """GPUs on each machine, or processes if there is none. If not given: one."""
    nodes: PositiveInt = 1
    """Machines. Start the command on each of them with torchrun or SLURM."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: a GPU if there is one."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several devices. ddp: each holds the whole network. fsdp: weights, gradients and the state of the optimizer
    are divided over them (FSDP2), for networks that one of them cannot hold."""
    precision: Literal["auto", "32", "bf16", "16"] = "auto"
    """auto: bf16 on a GPU, else 32."""
    channels_last: bool = True
    """Use the channels-last memory layout."""
    compile: bool = False
    """Compile the network. Starts a minute later, then runs faster."""
    sync_batchnorm: bool = True
    """Compute batch norms over the samples of all GPUs."""
    deterministic: bool = False
    """Compute the same weights each time, to the last bit."""
    test_every: PositiveInt = 1
    """Epochs between tests; the last epoch is always tested."""
    save_every: PositiveInt = 1000
    """Steps between checkpoints, in addition to those after each test."""
    patience: PositiveInt | None = None
    """Tests without a better result after which the run stops. If not given: never."""
    timeout: PositiveFloat = 600.0
    """Seconds that ranks wait for one that does not respond."""
    tensorboard: bool = False
    """Also write curves for TensorBoard."""
    logger: (
        Literal["none", "tensorboard", "wandb", "mlflow"] | tuple[Literal["tensorboard", "wandb", "mlflow"], ...]
    ) = "none"
    """Where curves also go, one or several, e.g. [tensorboard,wandb]. wandb and mlflow count only when typed, not in a
    recipe; WANDB_MODE=offline and MLFLOW_TRACKING_URI are respected."""

    @property
    def world(self) -> int:
        """World size: processes over all machines."""
        return (self.devices or 1) * self.nodes

    def micro_batch(self, batch_size: int) -> int:
        """Samples that each rank gives to the network at a time, of a global batch."""
        return batch_size // (self.world * self.optim.accumulate)

    @property
    def loggers(self) -> tuple[str, ...]:
        """Names of the loggers."""
        named = (self.logger,) if isinstance(self.logger, str) else self.logger
        named = ("tensorboard", *named) if self.tensorboard else named
        return tuple(name for name in dict.fromkeys(named) if name != "none")


GROUPS: dict[str, type] = {"data": Data, "model": Model, "optim": Optim}
SECTIONS: dict[str, type] = {f"{name}.": kind for name, kind in GROUPS.items()} | {"": Config}
"""Prefix of settings -> their class."""
OfTest = Annotated[Any, "a setting of a test"]
"""Type of ``**settings`` of commands that test a trained network."""
FIXED = ("data.dataset", "data.split", "data.test_signers", "data.holdout")
"""Settings that a test takes from the training, as it does all of ``model``."""
TRAINING = (
    *(f"data.{name}" for name in ("balance", "shard_window", "area", "flip", *AUGMENTATIONS)),
    *("name", "runs", "seed", "compile", "sync_batchnorm", "test_every", "save_every", "patience"),
    *("tensorboard", "logger"),
)
"""Settings that change nothing in a test; of ``optim``, only batch_size and accumulate do."""


def setting_names(of_type: type | None = None) -> list[str]:
    """List the names of all settings, such as ``optim.lr``, or of those of one type."""
    names = {f"{prefix}{f.name}": f.type for prefix, kind in SECTIONS.items() for f in dataclasses.fields(kind)}
    return [name for name, kind in names.items() if name not in GROUPS and of_type in (None, kind)]


def why_not_tested(name: str) -> str | None:
    """Why a test cannot have a setting of its own, or None if it can."""
    if name.startswith("model.") or name in FIXED:
        return f"{name} cannot be changed: the test would not be that of the network that was trained"
    if name in TRAINING or (name.startswith("optim.") and name not in ("optim.batch_size", "optim.accumulate")):
        return f"{name} is for training and changes nothing in a test: leave it out"
    return None


def dataset_name(data: Data) -> str:
    """Name the dataset, also if the setting is not given."""
    if data.dataset is not None:
        return data.dataset
    if data.labels is not None:
        return "csv"
    if data.annotations is not None:
        return "coco"
    return "parts" if data.root is None else "folder"


def default_decay(optim: Optim) -> float:
    """The weight decay, if not given that which is usual with the optimizer."""
    usual = 0.05 if optim.optimizer == "adamw" else 1e-4
    return usual if optim.weight_decay is None else optim.weight_decay
