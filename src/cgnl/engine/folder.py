"""The folder of a run: its name, its log, and what is written down about it."""

import dataclasses
import json
import logging
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import torch

from ..extras import need
from ..spelling import escape_record, first_line
from .atomic_io import make_folder, remove_parts, write_text
from .config import Config, build, plain, read_recipe, to_yaml
from .datasets import decided

log = logging.getLogger("cgnl")

STARTED_IN = "CGNL_RUN_FOLDER"
"""Environment variable by which a process tells those it starts where the run is."""
COMMIT = "CGNL_COMMIT"
"""Environment variable that names the commit where the files have no repository."""
MAY_CHANGE = {
    "": ("name", "runs", "devices", "nodes", "accelerator", "test_every", "save_every", "timeout", "tensorboard"),
    "data": (
        *("root", "lists", "workers", "cache", "bad_limit"),
        *("annotations", "images", "test_annotations", "test_images"),
    ),
    "model": (),
    "optim": ("on_nan",),
}
"""Settings that a run may go on with although they were others when it began."""


def run_folder(config: Config, resume: bool) -> Path:
    """The folder of the run; no run is ever written over another.

    To resume is to go on with the newest run of the name that has these settings and has not ended. Where all have
    ended it is the newest of them, and where none has these settings the newest of all, which says what differs.
    """
    if STARTED_IN in os.environ:
        return Path(os.environ[STARTED_IN])
    folder = Path(config.runs) / str(config.name)
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))  # each of several processes finds it for itself
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    same = [f for f in beside if re.fullmatch(rf"{re.escape(folder.name)}(-\d+)?", f.name)]
    begun = sorted((f for f in same if (f / "config.yaml").exists()), key=_number)
    if resume:
        fitting = [f for f in begun if _begun_with(f, config)]
        stopped = [f for f in fitting if not (f / "results.json").exists()]
        return [folder, *begun, *fitting, *stopped][-1]
    if begun and rank is None:
        return folder.with_name(f"{folder.name}-{_number(begun[-1]) + 1}")
    if folder in begun and rank == "0":
        raise ValueError(f"{folder} is there already: go on with --resume, or give the run another name")
    return folder


def _begun_with(folder: Path, config: Config) -> bool:
    """Whether the run in a folder was begun with these settings."""
    try:
        check_same(config, {"cgnl": {"config": read_recipe(folder / "config.yaml")}}, folder)
    except ValueError:
        return False
    return True


def _number(folder: Path) -> int:
    """2 for ``name-2``, 1 for ``name``."""
    found = re.search(r"-(\d+)$", folder.name)
    return int(found[1]) if found else 1


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Tell the processes that are started meanwhile which folder it is."""
    before = os.environ.get(STARTED_IN)
    os.environ[STARTED_IN] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[STARTED_IN]


def check_same(config: Config, checkpoint: dict[str, Any], path: Path) -> None:
    """Refuse to go on with other settings than those the run began with."""
    begun = build(checkpoint["cgnl"]["config"])  # settings that are new have their defaults
    before, now = (plain(dataclasses.replace(c, data=decided(c.data))) for c in (begun, config))
    for group, free in MAY_CHANGE.items():
        old, new = (before.get(group, {}), now[group]) if group else (before, now)
        for name, value in new.items():
            if (isinstance(value, dict) and not group) or name in free or old.get(name) == value:
                continue
            label = f"{group}.{name}" if group else name
            was, wanted = ("null" if v is None else v for v in (old.get(name), value))
            raise ValueError(f"{path} was begun with {label} = {was}, not {wanted}")


def begin_folder(folder: Path, config: Config, repeat: str | None) -> None:
    """Make the folder, or clear up what a killed run left in it; open its log, and write down what the run is told.

    ``repeat`` is the command that does it again.
    """
    make_folder(folder)
    open_log(folder)
    remove_parts(folder)
    write_text(folder / "config.yaml", to_yaml(config))
    write_text(folder / "environment.json", json.dumps({"command": repeat, **environment()}, indent=2) + "\n")


def start_log(first: bool, silent: bool = False) -> Any:
    """Send what is said to the screen; only the first process speaks. The run's log gets it when it is opened."""
    console = need("rich.console", "train").Console(highlight=False, soft_wrap=True, quiet=silent)

    class Screen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(record.getMessage(), markup=False)

    stop_log()
    log.propagate = False
    log.addFilter(escape_record)
    log.setLevel(logging.INFO if first else logging.ERROR)
    if first:
        log.addHandler(MemoryHandler(capacity=1000))
        log.addHandler(Screen())
    return console


class LogFile(logging.FileHandler):
    """A log that stops no run when its disk is full: what is not written there is still on the screen."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def open_log(folder: Path) -> None:
    """Open the run's log, and write to it what was said before."""
    file = LogFile(folder / "log.txt")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for handler in [h for h in log.handlers if isinstance(h, MemoryHandler)]:
        handler.setTarget(file)
        handler.close()
        log.removeHandler(handler)
    log.addHandler(file)


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Say warnings as everything else is said, without the line of code that they come from."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: log.warning("%s", first_line(message))
        yield


def stop_log() -> None:
    """Close the run's log."""
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()


def commit() -> str | None:
    """The git commit that cgnl was imported from, with -dirty where its tracked files are changed.

    None for an installed wheel, or without git; ``CGNL_COMMIT`` says it where only the files were copied.
    """
    if given := os.environ.get(COMMIT):
        return given
    package = Path(__file__).parents[1]
    if not (package.parents[1] / ".git").exists():  # it may be installed within another repository
        return None
    asked = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--", "."]
    try:
        done = subprocess.run(asked, cwd=package, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    lines = done.stdout.splitlines()
    head = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    dirty = any(not line.startswith("#") for line in lines)
    return None if head == "(initial)" else f"{head}{'-dirty' if dirty else ''}"


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
        "commit": commit(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "packages": versions,
    }
