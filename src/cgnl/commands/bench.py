"""``cgnl bench``: blocks, networks or operators, side by side."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..engine.values import PositiveInt
from ..extras import need
from ..text import first_line, nearest

if TYPE_CHECKING:
    from ..bench.registry import Setting

_COMMON = {"groups": 8, "kernel": "dot", "tf32": False, "channels_last": True, "mode": "train"}
_COMMON |= {"dtype": ("bfloat16", "float32"), "seconds": (1.0, 0.2)}
_POSITIONS = {"batch": (32, 2), "size": ("28", "14")}
_NETWORK = {"network": "resnet50", "blocks": None, "norm": "batch", "reduced": 256, "size": ("224", "64")}
DEFAULTS: dict[str, dict[str, Any]] = {
    "block": {**_COMMON, **_POSITIONS, "channels": (1024, 64), "inner": None, "norm": "batch"},
    "network": {**_COMMON, **_NETWORK, "batch": (256, 2)},
    "serve": {**_COMMON, **_NETWORK, "batch": 1, "mode": "forward", "head": "average"},
    "ops": {**_COMMON, **_POSITIONS, "channels": (512, 64)},
}
"""The options of each benchmark and their defaults; of a pair, the first is for a GPU, the second for a CPU."""


def bench(
    benchmark: str,
    *,
    batch: PositiveInt | None = None,
    channels: PositiveInt | None = None,
    size: str | None = None,
    groups: PositiveInt | None = None,
    inner: PositiveInt | None = None,
    kernel: str | None = None,
    norm: Literal["batch", "group", "none"] | None = None,
    dtype: Literal["bfloat16", "float16", "float32", "tf32"] | None = None,
    tf32: bool = False,
    channels_last: bool = True,
    mode: Literal["forward", "train"] | None = None,
    network: str | None = None,
    blocks: PositiveInt | None = None,
    head: str | None = None,
    reduced: PositiveInt | None = None,
    device: str = "auto",
    rows: str | None = None,
    peer: str | None = None,
    csv: str | None = None,
    plot: str | None = None,
    seconds: Annotated[float, "> 0", "<= 1e6"] | None = None,
) -> Sequence[Any]:
    """Measure time, memory and error of blocks, networks or operators, side by side.

    What is not given has a default for the device: small on a CPU.

    Args:
        benchmark: block; network: a whole training step against the plain network; ops: the operator alone; serve: the
            latency and throughput of a network.
        batch: samples. If not given: for serve 1, 8 and 64, one after another.
        channels: channels of the input (block, ops).
        size: positions, or pixels of a network's input: 28 or 28x28 (images), 16x28x28 (clips), 1000x (sequences).
        groups: channel groups.
        inner: channels of theta, phi and g (block). If not given: half of channels.
        kernel: dot, embedded_gaussian, rbf, or with options: rbf:order=3,gamma=1e-4,beta=exact.
        norm: batch, group or none.
        dtype: bfloat16, float16, float32 or tf32. In half precision, train keeps parameters in float32 under autocast,
            forward casts the module.
        tf32: multiply float32 as TF32, like dtype=tf32.
        channels_last: memory layout of the input.
        mode: train: forward and backward in train mode; forward: in eval mode, without gradients.
        network: one of those that cgnl models lists (network, serve).
        blocks: 1 or 5 (network, serve). If not given: as many as the network has places for.
        head: average, covariance, bilinear or compact (serve); network has rows for a covariance head.
        reduced: channels whose products a head takes (network, serve). If not given: 256.
        device: auto, cpu, cuda or cuda:1.
        rows: only these, separated by commas.
        peer: other blocks to measure: path/to/file.py:Class, built as Class(channels), or
            "path/to/file.py:Class(C, inner, groups=8)", where C, inner, groups, ndim and N have the values of this run.
            Separated by commas (block).
        csv: append the rows to this file.
        plot: draw the rows into this figure.
        seconds: spent on repetitions of each row.
    """
    others = ("benchmark", "device", "rows", "peer", "csv", "plot")
    given = {name: value for name, value in locals().items() if name not in (*others, "others")}
    check_options(benchmark, given)
    if benchmark == "serve" and (mode == "train" or plot or peer):
        raise ValueError("cgnl bench serve measures inference alone: it has no mode=train, plot or peer")
    if peer and benchmark != "block":
        raise ValueError(f"cgnl bench {benchmark} has no peer: peers are compared with a block")

    from ..bench import report
    from ..bench.measure import measure_roofline, precision
    from ..bench.peers import peer_subjects
    from ..bench.registry import BENCHMARKS
    from ..bench.runner import BATCHES, measure_rows, serve_rows

    setting, known = read_setting(benchmark, given, device), BENCHMARKS[benchmark]
    subjects = known.choose(*rows.split(",")) if rows else list(known.subjects)
    subjects += peer_subjects(peer, setting) if peer else []
    try:
        known.reference.build(setting)  # raises for options that do not fit together
    except RuntimeError as error:
        raise ValueError(f"there is not enough memory: {first_line(error)}") from None
    if csv:
        report.check_csv(Path(csv), benchmark)
    if plot:
        need("matplotlib", "bench")

    measured = []
    width = max(len(subject.name) for subject in subjects)
    with precision(setting.tf32):
        if benchmark == "serve":
            roofline, legend = None, report.SERVE_LEGEND
            batches = [batch] if batch else BATCHES
            measurements = chain.from_iterable(serve_rows(replace(setting, batch=b), subjects) for b in batches)
        else:
            roofline, legend = measure_roofline(setting), report.LEGEND.format(baseline=known.baseline)
            measurements = measure_rows(setting, subjects, roofline)
        header = report.header(setting, roofline)
        print(header, report.title_line(benchmark, width), sep="\n\n", flush=True)
        for row in measurements:
            print(report.line(row, width), flush=True)
            measured.append(row)
    print(f"\n{legend}")
    if csv:
        report.write_csv(measured, Path(csv))
    if plot:
        report.plot(measured, header.partition(";")[0], Path(plot))
    if all(row.get("ms") is None for row in measured):
        raise ValueError("no row could be measured")
    return measured


def check_options(benchmark: str, given: Mapping[str, Any]) -> None:
    """Refuse options that a benchmark does not have, without torch."""
    if benchmark not in DEFAULTS:
        raise ValueError(f"there is no benchmark {benchmark!r}{nearest(benchmark, DEFAULTS)}")
    for name, value in given.items():
        if value is not None and name not in DEFAULTS[benchmark]:
            raise ValueError(f"cgnl bench {benchmark} has no option {name!r}{nearest(name, DEFAULTS[benchmark])}")
    if given.get("size"):
        read_size(given["size"])


def read_setting(benchmark: str, given: Mapping[str, Any], device: str = "auto") -> "Setting":
    """The setting that the given options ask for; those that are None or missing have their defaults."""
    import torch

    from ..bench.registry import Setting
    from ..models import is_video
    from ..models.device import find_device
    from ..ops import kernels
    from ..surgery import placement

    place = torch.device(find_device(device))
    options: dict[str, Any] = {}
    for name, default in DEFAULTS[benchmark].items():
        if isinstance(default, tuple):
            default = default[0] if place.type == "cuda" else default[1]
        options[name] = default if given.get(name) is None else given[name]

    network, size, dtype = options.get("network", ""), read_size(options["size"]), options["dtype"]
    axes = 3 if is_video(network) else 2
    if network and len(size) != axes:
        raise ValueError(f"size = {options['size']} has {len(size)} axes, {network} takes {axes}")
    if network and options["blocks"] is None:
        options["blocks"] = 1
        with suppress(ValueError):  # fewer than five places
            options["blocks"] = len(placement(network, 5))
    if options["tf32"] and dtype not in ("float32", "tf32"):
        raise ValueError(f"tf32 is a way to multiply float32, not {dtype}")
    options["tf32"] |= dtype == "tf32"
    options["dtype"] = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    options["channels"] = options.get("channels", 3)
    options["inner"] = options.get("inner") or max(options["channels"] // 2, 1)
    options["norm"] = None if options.get("norm") == "none" else options.get("norm", "batch")
    return Setting(benchmark, **options | {"size": size, "device": place, "kernel": kernels.parse(options["kernel"])})


def read_size(text: str) -> tuple[int, ...]:
    """``28`` is 28 x 28, ``16x28x28`` a clip, ``1000x`` a sequence."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,2}|[1-9]\d*x", text):
        raise ValueError(f"size must be like 28, 28x28, 16x28x28, or 1000x for a sequence, got {text!r}")
    axes = tuple(map(int, text.rstrip("x").split("x")))
    return axes * 2 if "x" not in text else axes
