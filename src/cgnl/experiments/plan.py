"""Plan the runs of tables: which are made, which cannot be and why, and how long they take."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch.nn.functional import conv2d

from ..engine.atomic_io import make_folder, write_text
from ..engine.config import Config, merge, nested
from ..engine.datasets import Dataset, open_dataset, view_in_training
from ..engine.network import build_network, network_options
from ..engine.schedule import total_epochs
from ..models import is_detector
from ..models.table import cost
from ..spelling import counted, say
from .runs import Run, read_outcomes, run_name
from .scales import Scale, describe, scale_settings
from .summary import REASONS
from .tables import TABLES, Row, Table, is_diagnosed

Reasons = dict[str, str]
"""Name of a row -> why it cannot be run."""
ROWS_OWN = (
    *("model.block", "model.options", "model.after", "model.head", "model.reduced"),
    *("seed", "name", "runs", "data.split"),
)
SPEED = 0.3
"""Share of a convolution's FLOP/s that training reaches, by experience; used before any run has finished."""


def plan_tables(
    selected: Mapping[str, Sequence[Row]], scale: Scale, seeds: int, folder: Path, settings: Mapping[str, Any]
) -> list[Run]:
    """Plan each run of some tables once, print the plan, and save why rows cannot be run."""
    runs: dict[str, Run] = {}
    for name, rows in selected.items():
        planned, reasons = plan(TABLES[name], rows, scale, seeds, folder, settings)
        for run in planned:
            run.check()
        runs |= {str(run.config.name): run for run in planned}
        _save_reasons(reasons, rows, folder)
        say(f"{name}: {TABLES[name].title}")
        for protocol in dict.fromkeys(describe(run.config) for run in planned):
            say(f"  {protocol}")
        width = max(len(row.name) for row in rows)
        for row in rows:
            own = [run for run in planned if run.row == row.name]
            finished = f"{sum(run.finished for run in own)} of {counted(len(own), 'run')} ended"
            say(f"  {row.name:{width}}  {f'not run: {reasons[row.name]}' if row.name in reasons else finished}")
    if not runs:
        say("data.root=FOLDER says where the data is; --scale embedded needs none")
    return list(runs.values())


def plan(
    table: Table, rows: Sequence[Row], scale: Scale, seeds: int, folder: Path, settings: Mapping[str, Any]
) -> tuple[list[Run], Reasons]:
    """Runs of some rows, seed by seed, so that stopping early leaves equally many of each."""
    if given := [name for name in settings if name.startswith(ROWS_OWN)]:
        raise ValueError(f"{given[0]} is for the rows of a table to say; --rows chooses among them")
    resolved: dict[str, dict[str, Any]] = {}
    reasons: Reasons = {}
    for row in rows:
        try:
            resolved[row.name] = _resolve(row, scale, settings)
            check(row.config(resolved[row.name]))
        except (ValueError, OSError) as error:
            reasons[row.name] = str(error)
    runs = []
    possible = [row for row in rows if row.name not in reasons]
    for seed, row, split in itertools.product(range(seeds), possible, table.splits or (None,)):
        own = {"seed": seed, "runs": str(folder), "name": run_name(row.name, seed, split)}
        own |= {"data": {"split": split}} if split else {}
        runs.append(Run(row.name, row.label, row.config(merge(resolved[row.name], own)), is_diagnosed(row.name)))
    return runs, reasons


def _resolve(row: Row, scale: Scale, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a row by scale and user, on top of its recipe."""
    resolved = merge(scale_settings(row, scale), nested(settings))
    network, given = str(row.config().model.name), settings.get("model.name")
    if given is not None and str(given).removesuffix("_caffe") != network.removesuffix("_caffe"):
        raise ValueError(f"it is a {network}, and model.name = {given} is given")
    if scale == "embedded":
        return merge(resolved, {"model": {"weights": None}})
    if scale == "small" and torch.cuda.is_available() and not is_detector(network):
        return merge({"data": {"cache": "gpu"}, "compile": True}, resolved)
    return resolved


def _save_reasons(reasons: Reasons, rows: Sequence[Row], folder: Path) -> None:
    """Save why rows cannot be run, for readers of the table."""
    make_folder(folder)
    path, names = folder / REASONS, {row.name for row in rows}
    with FileLock(folder / ".tables.lock"):
        before = json.loads(path.read_text()) if path.exists() else {}
        kept = {name: reason for name, reason in before.items() if name not in names}
        write_text(path, json.dumps(kept | reasons, indent=2, sort_keys=True) + "\n")


def check(config: Config) -> None:
    """Refuse a run whose samples or weights are missing."""
    key = str((config.data, config.model))
    if key not in _ERRORS:
        try:
            build_network(config.model, len(_open(config.data).classes))
            _ERRORS[key] = None
        except (ValueError, OSError) as error:
            _ERRORS[key] = error
    if (error := _ERRORS[key]) is not None:
        raise error


_ERRORS: dict[str, Exception | None] = {}
"""Results of earlier checks."""
_open = cache(open_dataset)


def flops(config: Config, dataset: Dataset) -> float:
    """FLOPs of a run: three passes over each training sample of an epoch, one over each view of a test."""
    model, epochs = config.model, total_epochs(config.optim)
    view, clips = view_in_training(config.data), dataset.kind == "videos"
    size = view.size or round(math.prod(dataset.train.read(0, range).shape[-2:]) ** 0.5)  # synthetic: uncropped
    once = 2e9 * cost(str(model.name), size, view.frames, len(dataset.classes) + 1, **network_options(model)).gmacs
    tests = -(-epochs // config.test_every)
    tests += config.data.test_clips * config.data.test_crops if clips and view.size else 0
    return once * (3 * epochs * len(dataset.train) + tests * len(dataset.test))


def measure_speed() -> float:
    """FLOP/s of a convolution on this machine."""
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    x = torch.randn(64 if gpu else 8, 256, 14, 14, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    w = torch.randn(256, 256, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    best = math.inf
    for _ in range(8):
        start = time.perf_counter()
        y = conv2d(x, w, padding=1)
        _ = float(y[0, 0, 0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * x.numel() * 256 * 9 / best


def estimate_durations(runs: Sequence[Run], folder: Path) -> dict[str, float]:
    """Seconds by name of a run: as finished runs of its row took, else by FLOPs."""
    first = {run.row: run for run in reversed(runs)}
    speed = SPEED * measure_speed()
    by_flops = {row: flops(run.config, _open(run.config.data)) / speed for row, run in first.items()}
    finished = {row: [o.seconds for o in read_outcomes(folder, row)] for row in first}
    known = {row: statistics.fmean(seconds) for row, seconds in finished.items() if seconds}
    ratio = sum(known.values()) / sum(by_flops[row] for row in known) if known else 1.0
    return {str(run.config.name): known.get(run.row, ratio * by_flops[run.row]) for run in runs}
