"""Plan the runs of tables: their settings at a scale, which can be made and which not, and how long they take.

A scale is the size of an experiment: as in the paper, an hour on one GPU, or synthetic data on a laptop.
"""

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock
from torch.nn.functional import conv2d

from ..atomic_io import make_folder, write_text
from ..bench.measure import measure
from ..engine.config import merge, nest
from ..engine.datasets import Dataset, dataset_name, get_size, open_dataset, view_in_training
from ..engine.network import build_network, network_options
from ..engine.settings import SYNTHETIC, Config
from ..engine.tasks import TASKS
from ..models import is_detector, is_video
from ..models.table import cost
from ..text import counted, say
from .runs import PlannedRun, read_outcomes
from .summary import REASONS
from .tables import SCALES, TABLES, Row, Table, is_diagnosed

ROWS_OWN = (
    *("model.block", "model.options", "model.after", "model.head", "model.reduced"),
    *("seed", "name", "runs", "data.split"),
)
SPEED = 0.3
"""Share of a convolution's FLOP/s that training reaches, by experience; used before any run has finished."""
Scale = Literal["paper", "small", "embedded"]

FIVE = ["layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0"]
"""The only places for five blocks in a ResNet-18."""


def plan_tables(
    selected: Mapping[str, Sequence[Row]], scale: Scale, seeds: int, folder: Path, settings: Mapping[str, Any]
) -> list[PlannedRun]:
    """Plan each run of some tables once, print the plan, and save why rows cannot be run."""
    runs: dict[str, PlannedRun] = {}
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
) -> tuple[list[PlannedRun], dict[str, str]]:
    """Runs of some rows, and why other rows have none.

    They go seed by seed, so that stopping early leaves equally many of each row.
    """
    if given := [name for name in settings if name.startswith(ROWS_OWN)]:
        raise ValueError(f"{given[0]} is set by the rows of a table; --rows chooses among them")
    resolved: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    for row in rows:
        try:
            resolved[row.name] = _resolve(row, scale, settings)
            check(row.config(resolved[row.name]))
        except (ValueError, OSError) as error:
            reasons[row.name] = str(error)
    runs = []
    possible = [row for row in rows if row.name not in reasons]
    for seed, row, split in itertools.product(range(seeds), possible, table.splits or (None,)):
        own: dict[str, Any] = {"seed": seed, "runs": str(folder), "name": f"{row.name}_seed{seed}"}
        if split:
            own |= {"name": f"{row.name}_split{split}_seed{seed}", "data": {"split": split}}
        runs.append(PlannedRun(row.name, row.label, row.config(merge(resolved[row.name], own)), is_diagnosed(row.name)))
    return runs, reasons


def _resolve(row: Row, scale: Scale, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a row by scale and user, on top of its recipe."""
    resolved = merge(scale_settings(row, scale), nest(settings))
    network, given = str(row.config().model.name), settings.get("model.name")
    if given is not None and str(given).removesuffix("_caffe") != network.removesuffix("_caffe"):
        raise ValueError(f"its network is {network}, and model.name = {given} is given")
    if scale == "embedded":
        return merge(resolved, {"model": {"weights": None}})
    if scale == "small" and torch.cuda.is_available() and not is_detector(network):
        return merge({"data": {"cache": "gpu"}, "compile": True}, resolved)
    return resolved


def scale_settings(row: Row, scale: Scale) -> dict[str, Any]:
    """Settings of a row at a scale, on top of its recipe."""
    own, config = nest(row.settings), row.config()
    if scale == "small":
        return merge(SCALES["small"][dataset_name(config.data)], own)
    return merge(own, _embedded(config)) if scale == "embedded" else own


def _embedded(config: Config) -> Mapping[str, Any]:
    """A smaller ResNet from random weights; blocks keep their share of its channels."""
    name, model, dataset = str(config.model.name), config.model, dataset_name(config.data)
    if dataset in SYNTHETIC:
        return SCALES["embedded"][dataset]
    if is_detector(name):
        raise ValueError("there is no synthetic dataset with objects")
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
    return merge(SCALES["embedded"]["videos" if video else "images"], {"model": network, "optim": optim})


def describe(config: Config) -> str:
    """The protocol of a run in one sentence."""
    data, optim, name = config.data, config.optim, str(config.model.name)
    if dataset_name(data) in SYNTHETIC:
        samples = f"embedded {data.dataset}"
    else:
        samples = f"{get_size(data)} pixels{f', clips of {data.frames} frames' if is_video(name) else ''}"
    limit = f", at most {data.limit:,} training samples" if data.limit else ""
    start = f"from the weights {Path(config.model.weights).name}" if config.model.weights else "from random weights"
    tested = f", tested on {data.holdout:.0%} of the training samples" if data.test_on == "validation" else ""
    return (
        f"{name} {start}: {samples}{limit}, {optim.warmup_epochs} + {optim.epochs} epochs, {optim.schedule} schedule, "
        f"{counted(optim.batch_size, 'sample')} a step{tested}"
    )


def _save_reasons(reasons: Mapping[str, str], rows: Sequence[Row], folder: Path) -> None:
    """Save why rows cannot be run, for readers of the table."""
    make_folder(folder)
    path, names = folder / REASONS, {row.name for row in rows}
    with FileLock(folder / ".tables.lock"):
        before = json.loads(path.read_text()) if path.exists() else {}
        kept = {name: reason for name, reason in before.items() if name not in names}
        write_text(path, json.dumps(kept | dict(reasons), indent=2, sort_keys=True) + "\n")


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
    model, epochs = config.model, config.optim.total_epochs
    view, test = view_in_training(config.data), TASKS[dataset.kind].view_in_test(config.data)
    size = view.size or round(math.prod(dataset.train.read(0, range).shape[-2:]) ** 0.5)  # synthetic: uncropped
    once = 2e9 * cost(str(model.name), size, view.frames, len(dataset.classes) + 1, **network_options(model)).gmacs
    tests = -(-epochs // config.test_every)
    views = test.clips * test.crops
    tests += views if views > 1 else 0
    return once * (3 * epochs * len(dataset.train) + tests * len(dataset.test))


def measure_speed() -> float:
    """FLOP/s of a convolution on this machine."""
    gpu = torch.cuda.is_available()
    device, dtype = torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32
    x = torch.randn(64 if gpu else 8, 256, 14, 14, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    w = torch.randn(256, 256, 3, 3, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    milliseconds = measure(lambda: conv2d(x, w, padding=1), device, 0.05).low
    return 2 * x.numel() * 256 * 9 / (1e-3 * milliseconds)


def estimate_durations(runs: Sequence[PlannedRun], folder: Path, jobs: int = 1) -> dict[str, float]:
    """Seconds by name of a run, ``jobs`` of which share a device: as finished runs of its row took, else by FLOPs."""
    first = {run.row: run for run in reversed(runs)}
    speed = SPEED * measure_speed()
    by_flops = {row: flops(run.config, _open(run.config.data)) / speed for row, run in first.items()}
    finished = {row: [o.seconds for o in read_outcomes(folder, row)] for row in first}
    known = {row: statistics.fmean(seconds) for row, seconds in finished.items() if seconds}
    ratio = sum(known.values()) / sum(by_flops[row] for row in known) if known else float(jobs)
    return {str(run.config.name): known.get(run.row, ratio * by_flops[run.row]) for run in runs}
