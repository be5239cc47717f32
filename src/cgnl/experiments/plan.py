"""Which runs a table asks for, in which order, which cannot be made and why, and how long they will take."""

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import conv2d

from ..engine.config import Config
from ..engine.datasets import Dataset, open_dataset, view_in_training
from ..engine.network import build_network, network_options
from ..engine.schedule import total_epochs
from ..models import is_detector
from ..models.table import cost
from .runs import Run, outcomes, run_name
from .scales import Scale, settings_of
from .tables import Row, Table, is_diagnosed

Reasons = dict[str, str]
"""Name of a row -> why it cannot be run."""


def plan(
    table: Table, rows: Sequence[Row], scale: Scale, seeds: int, folder: Path, settings: Mapping[str, Any]
) -> tuple[list[Run], Reasons]:
    """The runs of some rows, seed by seed, so that whoever stops early has as many of each."""
    if said := [name for name in settings if name.startswith(ROWS_OWN)]:
        raise ValueError(f"{said[0]} is for the rows of a table to say; --rows chooses among them")
    told: dict[str, dict[str, Any]] = {}
    reasons: Reasons = {}
    for row in rows:
        try:
            told[row.name] = _settings(row, scale, settings)
            check(row.config(told[row.name]))
        except (ValueError, OSError) as error:
            reasons[row.name] = str(error)
    runs = []
    for seed, row in itertools.product(range(seeds), (row for row in rows if row.name not in reasons)):
        for split in table.splits or (None,):
            own = {"seed": seed, "runs": str(folder), "name": run_name(row.name, seed, split)}
            config = row.config({**told[row.name], **own, **({"data.split": split} if split else {})})
            runs.append(Run(row.name, row.label, config, is_diagnosed(row.name)))
    return runs, reasons


ROWS_OWN = (
    *("model.block", "model.options", "model.after", "model.head", "model.reduced"),
    *("paper", "seed", "name", "runs", "data.split"),
)


def _settings(row: Row, scale: Scale, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a row is told beside its recipe: by the scale and the user."""
    told = {**settings_of(row, scale), **settings}
    network, given = str(row.config().model.name), settings.get("model.name")
    if given is not None and str(given).removesuffix("_caffe") != network.removesuffix("_caffe"):
        raise ValueError(f"it is a {network}, and model.name = {given} is given")
    if scale == "embedded":
        return told | {"model.weights": None}
    if scale == "small" and torch.cuda.is_available() and not is_detector(network):
        return {"data.cache": "gpu", "compile": True, **told}
    return told


def check(config: Config) -> None:
    """Refuse a run whose samples or weights are not there."""
    key = str((config.data, config.model))
    if key not in _FAULTS:
        try:
            build_network(config.model, len(_opened(config.data).classes))
            _FAULTS[key] = None
        except (ValueError, OSError) as error:
            _FAULTS[key] = error
    if (fault := _FAULTS[key]) is not None:
        raise fault


_FAULTS: dict[str, Exception | None] = {}
"""Of data and networks that were tried before."""
_opened = cache(open_dataset)


def flops(config: Config, dataset: Dataset) -> float:
    """Of a whole run: three passes over each training sample of an epoch, one over each view of a test."""
    model, epochs = config.model, total_epochs(config.optim)
    view, clips = view_in_training(config.data), dataset.kind == "videos"
    size = view.size or round(math.prod(dataset.train.read(0, range).shape[-2:]) ** 0.5)  # embedded: as they are
    once = 2e9 * cost(str(model.name), size, view.frames, len(dataset.classes) + 1, **network_options(model)).gmacs
    tests = -(-epochs // config.test_every)
    tests += config.data.test_clips * config.data.test_crops if clips and view.size else 0
    return once * (3 * epochs * len(dataset.train) + tests * len(dataset.test))


def rate() -> float:
    """FLOP/s of a convolution on this machine, as a network's are."""
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    x = torch.randn(64 if gpu else 8, 256, 14, 14, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    w = torch.randn(256, 256, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        y = conv2d(x, w, padding=1)
        _ = float(y[0, 0, 0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * x.numel() * 256 * 9 / best


SHARE = 0.3
"""Of that speed which training reaches, by experience, before any run has told better."""


def durations(runs: Sequence[Run], folder: Path) -> dict[str, float]:
    """Seconds that each run will take, by its name: as runs of its row have, or by its FLOPs."""
    speed, first = SHARE * rate(), {run.row: run for run in reversed(runs)}
    took = {row: [o.seconds for o in outcomes(folder, row)] for row in first}
    by_flops = {row: flops(run.config, _opened(run.config.data)) / speed for row, run in first.items()}
    known = {row: statistics.fmean(times) for row, times in took.items() if times}
    ratio = sum(known.values()) / sum(by_flops[row] for row in known) if known else 1.0
    return {str(run.config.name): known.get(run.row, ratio * by_flops[run.row]) for run in runs}
