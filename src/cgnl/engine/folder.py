"""The folder of a run: its name, its log, and what is written down about it."""

import logging
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..extras import need
from .config import Config, plain

log = logging.getLogger("cgnl")

MAY_CHANGE = ("name", "runs", "devices", "nodes", "accelerator", "test_every", "save_every", "patience", "tensorboard")
MAY_CHANGE_OF_DATA = ("root", "lists", "workers", "cache", "bad_limit")
"""Settings that a run may go on with although they were others when it began."""


def run_folder(config: Config, resume: bool) -> Path:
    """The folder of the run; no run is ever written over another."""
    known = os.environ.get("CGNL_RUN_FOLDER")  # set by the process that started this one
    if known:
        return Path(known)
    runs, name = Path(config.runs), str(config.name)
    several = any(variable in os.environ for variable in ("RANK", "SLURM_PROCID"))
    folder = runs / name
    same = [f for f in runs.glob(f"{name}*") if re.fullmatch(rf"{re.escape(name)}(-\d+)?", f.name)]
    begun = sorted((f for f in same if (f / "config.yaml").exists()), key=_number)
    if resume:
        folder = begun[-1] if begun and not several else folder
    elif begun and not several:
        folder = runs / f"{name}-{_number(begun[-1]) + 1}"
    elif begun and int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0:
        raise ValueError(f"{folder} is there already: go on with --resume, or give the run another name")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["CGNL_RUN_FOLDER"] = str(folder)
    return folder


def _number(folder: Path) -> int:
    """2 for ``name-2``, 1 for ``name``."""
    found = re.search(r"-(\d+)$", folder.name)
    return int(found[1]) if found else 1


def check_same(config: Config, checkpoint: dict[str, Any], path: Path) -> None:
    """Refuse to go on with other settings than those the run began with."""
    before, now = checkpoint["cgnl"]["config"], plain(config)
    for group in ("", "data", "model", "optim"):
        old, new = (before.get(group, {}), now[group]) if group else (before, now)
        for name, value in new.items():
            free = name in (MAY_CHANGE_OF_DATA if group == "data" else MAY_CHANGE if not group else ())
            if (isinstance(value, dict) and not group) or free or old.get(name) == value:
                continue
            label = f"{group}.{name}" if group else name
            raise ValueError(f"{path} was begun with {label} = {old.get(name)}, not {value}")


def start_log(folder: Path, first: bool) -> Any:
    """Send what is said to the screen and to the run's log; only the first process speaks."""
    console = need("rich.console", "train").Console(highlight=False, soft_wrap=True)

    class Screen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(record.getMessage(), markup=False)

    for handler in list(log.handlers):
        log.removeHandler(handler)
    log.propagate = False
    log.setLevel(logging.INFO if first else logging.ERROR)
    if first:
        file = logging.FileHandler(folder / "log.txt")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(file)
        log.addHandler(Screen())
    return console


def environment() -> dict[str, Any]:
    """What the run runs in."""
    packages = ("cgnl", "torch", "torchvision", "lightning", "torchmetrics", "numpy", "pillow", "av", "triton")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "packages": versions,
    }
