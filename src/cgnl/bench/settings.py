"""What is measured, from the words of a command line."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from ..models import is_video
from ..ops.kernels import BY_NAME, Dot, Kernel
from ..spelling import counted, nearest
from ..surgery import placement

Mode = Literal["forward", "train"]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "tf32": torch.float32}

_COMMON = {"groups": 8, "kernel": "dot", "channels_last": True, "mode": "train", "tf32": False}
_ON = {"cuda": {"dtype": "bfloat16", "seconds": 1.0}, "cpu": {"dtype": "float32", "seconds": 0.2}}
_BLOCK = {"inner": None, "norm": "batch"}
_NETWORK = {"network": "resnet50", "blocks": None, "norm": "batch", "reduced": 256}
_SERVE = {**_COMMON, **_NETWORK, "batch": 1, "mode": "forward", "head": "average"}
DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("block", "cuda"): {**_COMMON, **_ON["cuda"], **_BLOCK, "batch": 32, "channels": 1024, "size": "28"},
    ("block", "cpu"): {**_COMMON, **_ON["cpu"], **_BLOCK, "batch": 2, "channels": 64, "size": "14"},
    ("network", "cuda"): {**_COMMON, **_ON["cuda"], **_NETWORK, "batch": 256, "size": "224"},
    ("network", "cpu"): {**_COMMON, **_ON["cpu"], **_NETWORK, "batch": 2, "size": "64"},
    ("serve", "cuda"): {**_SERVE, **_ON["cuda"], "size": "224"},
    ("serve", "cpu"): {**_SERVE, **_ON["cpu"], "size": "64"},
    ("ops", "cuda"): {**_COMMON, **_ON["cuda"], "batch": 32, "channels": 512, "size": "28"},
    ("ops", "cpu"): {**_COMMON, **_ON["cpu"], "batch": 2, "channels": 64, "size": "14"},
}
"""(benchmark, kind of device) -> the options it has, and what they are unless given."""


@dataclass(frozen=True)
class Setting:
    """One point of measurement, the same for every row of a table."""

    benchmark: str
    batch: int
    channels: int
    size: tuple[int, ...]
    device: torch.device
    groups: int = 8
    inner: int = 0
    kernel: Kernel = Dot()  # noqa: RUF009  # frozen
    norm: str | None = "batch"
    dtype: torch.dtype = torch.float32
    tf32: bool = False
    channels_last: bool = True
    mode: Mode = "train"
    seconds: float = 0.2
    network: str = ""
    blocks: int = 0
    head: str = "average"
    reduced: int = 256

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.size)

    @property
    def memory_format(self) -> torch.memory_format:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        return formats.get(len(self.size), torch.contiguous_format) if self.channels_last else torch.contiguous_format

    @property
    def autocast(self) -> bool:
        """Half precision as people train with it: parameters in float32, under autocast."""
        return self.mode == "train" and self.dtype != torch.float32

    @property
    def dtype_name(self) -> str:
        return "tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")

    @property
    def words(self) -> str:
        """What the shape, the dtype and the kernel leave open."""
        named = {"groups": self.groups}
        if self.benchmark == "block":
            named |= {"inner": self.inner}
        if self.network:
            named |= {"network": self.network, "blocks": self.blocks}
        if self.head != "average":
            named |= {"head": self.head}
        if self.head != "average" or self.benchmark == "network":
            named |= {"reduced": self.reduced}
        if self.benchmark != "ops":
            named |= {"norm": self.norm or "none"}
        return " ".join(f"{k}={v}" for k, v in named.items()) + (" channels_last" if self.channels_last else "")


def read(benchmark: str, given: Mapping[str, Any], device: str = "auto") -> Setting:
    """The setting that the given options ask for; those that are None keep their defaults."""
    known = sorted({name for name, _ in DEFAULTS})
    if benchmark not in known:
        raise ValueError(f"there is no benchmark {benchmark!r}{nearest(benchmark, known)}")
    place = read_device(device)
    defaults = DEFAULTS[benchmark, place.type]
    given = {name: value for name, value in given.items() if value is not None}
    if unknown := [name for name in given if name not in defaults]:
        raise ValueError(f"cgnl bench {benchmark} has no option {unknown[0]!r}{nearest(unknown[0], defaults)}")
    options = defaults | given
    for name in ("batch", "channels", "groups", "inner", "blocks", "reduced", "seconds"):
        value = options.get(name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value} must be more than 0")
    if options["mode"] not in ("forward", "train"):
        raise ValueError(f"there is no mode {options['mode']!r}{nearest(options['mode'], ['forward', 'train'])}")
    if options["dtype"] not in DTYPES:
        raise ValueError(f"there is no dtype {options['dtype']!r}{nearest(options['dtype'], DTYPES)}")
    dtype, tf32 = DTYPES[options["dtype"]], options["tf32"] or options["dtype"] == "tf32"
    if tf32 and dtype != torch.float32:
        raise ValueError(f"tf32 is a way to multiply float32, not {options['dtype']}")
    norm = options.get("norm", "batch")
    if norm not in ("batch", "group", "none"):
        raise ValueError(f"there is no norm {norm!r}{nearest(norm, ['batch', 'group', 'none'])}")
    channels, size = options.get("channels", 3), read_size(options["size"])
    network = options.get("network", "")
    axes = 3 if is_video(network) else 2
    if network and len(size) != axes:
        raise ValueError(f"size = {options['size']} has {len(size)} axes, {network} takes {axes}")
    return Setting(
        benchmark=benchmark,
        batch=options["batch"],
        channels=channels,
        size=size,
        device=place,
        groups=options["groups"],
        inner=options.get("inner") or max(channels // 2, 1),
        kernel=read_kernel(options["kernel"]),
        norm=None if norm == "none" else norm,
        dtype=dtype,
        tf32=tf32,
        channels_last=options["channels_last"],
        mode=options["mode"],
        seconds=options["seconds"],
        network=network,
        blocks=options.get("blocks") or most_blocks(network),
        head=options.get("head", "average"),
        reduced=options.get("reduced", 256),
    )


def most_blocks(network: str) -> int:
    """Five, or one in a network with fewer places for them; none where there is no network."""
    with suppress(ValueError):
        return len(placement(network, 5))
    return 1 if network else 0


def read_device(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:1 and the like, got {text!r}")
    if text != "cpu" and int(text.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"there is no {text} here: torch {torch.__version__} sees {counted(torch.cuda.device_count(), 'GPU')}"
        )
    return torch.device(text)


def read_size(text: str) -> tuple[int, ...]:
    """``28`` is 28 x 28, ``16x28x28`` a clip, ``1000x`` a sequence."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,2}|[1-9]\d*x", text):
        raise ValueError(f"size must be like 28, 28x28, 16x28x28, or 1000x for a sequence, got {text!r}")
    axes = tuple(map(int, text.rstrip("x").split("x")))
    return axes * 2 if "x" not in text else axes


def read_kernel(text: str) -> Kernel:
    """``dot``, or a name with options: ``rbf:order=3,gamma=1e-4,beta=exact``."""
    name, _, rest = text.partition(":")
    if name not in BY_NAME:
        raise ValueError(f"there is no kernel {name!r}{nearest(name, BY_NAME)}")
    types: dict[str, Any] = {field.name: field.type for field in fields(BY_NAME[name])}
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in types or not equals:
            known = nearest(key, types) if types else ": it has none"
            raise ValueError(f"{part!r} is no option of the kernel {name}{known}")
        try:
            options[key] = types[key](value) if types[key] in (int, float) else value
        except ValueError:
            raise ValueError(f"{key} of the kernel {name} must be a number, got {value!r}") from None
    return BY_NAME[name](**options)
