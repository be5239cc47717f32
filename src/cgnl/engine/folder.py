"""The folder of a run: its name, its log, and the files about its settings and environment."""

import json
import logging
import os
import platform
import re
import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from logging.handlers import MemoryHandler
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ..atomic_io import make_folder, remove_parts, write_text
from ..extras import need
from ..text import escape_record, first_line
from .config import build, read_recipe, to_yaml
from .datasets import with_defaults
from .distributed import FOLDER, explain_lost_ranks, is_rank_zero, restarted
from .runs import list_runs
from .settings import Config, setting_names

log = logging.getLogger("cgnl")

COMMIT = "CGNL_COMMIT"
"""Environment variable that names the commit where the files have no repository."""
PACKAGES = ("cgnl", "torch", "torchvision", "numpy", "pillow", "av", "triton")
MAY_CHANGE = {
    *("name", "runs", "devices", "nodes", "accelerator", "parallel", "test_every", "save_every", "timeout"),
    *("tensorboard", "logger", "optim.on_nan", "data.workers", "data.cache", "data.bad_limit", "data.shard_cache"),
    *("data.shard_cache_gib", "data.root", "data.lists", "data.labels", "data.annotations", "data.images"),
    *("data.test_annotations", "data.test_images"),
}
"""Settings that may differ when a run is resumed."""


LOCK = ".lock"
"""File that a run's process has locked; it holds the process id and the host."""


@contextmanager
def take_folder(config: Config, resume: bool | Path, taken: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Take the folder of the run, which no other process can then take until this one gives it back or dies.

    A new run gets the next free name where another run has begun meanwhile. Rank 0 takes the folder for all ranks.
    """
    folder = run_folder(config, resume, taken)
    if not is_rank_zero():
        yield folder
        return
    with _locked(folder) as owner:
        if owner is None and run_folder(config, resume, taken) == folder:
            yield folder
            return
        if owner is not None and (resume or _launcher_rank()):
            raise ValueError(f"{folder} is being trained by {owner}: stop it first, or give this run another name")
    with take_folder(config, resume, taken | {folder}) as folder:
        yield folder


@contextmanager
def _locked(folder: Path) -> Iterator[str | None]:
    """Lock a folder, or say who has locked it; folders that are made for it and stay empty are removed again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    path, lock = folder / LOCK, FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield (path.read_text() if path.exists() else "") or "another process"
        return
    try:
        with suppress(OSError):  # a full disk is told with the files of the run
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield None
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()
        with suppress(OSError):
            for path in made:
                path.rmdir()


def _launcher_rank() -> str | None:
    """The rank, where a launcher has started all: each finds the folder for itself."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID"))


def run_folder(config: Config, resume: bool | Path, taken: frozenset[Path] = frozenset()) -> Path:
    """The folder of the run; no run is ever written over another, nor over those ``taken`` by other processes.

    Resumed is a folder that is given, or the newest run of the name that has these settings and has not ended. If all
    have ended it is the newest of them, and if none has these settings the newest of all: it can be given more epochs,
    or what else differs can be named.
    """
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    if isinstance(resume, Path):
        return resume
    folder = Path(config.runs) / str(config.name)
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    same = [f for f in beside if re.fullmatch(rf"{re.escape(folder.name)}(-\d+)?", f.name)]
    begun = sorted((f for f in same if f in taken or (f / "config.yaml").exists()), key=_number)
    if resume:
        fitting = [f for f in begun if _has_settings(f, config)]
        stopped = [f for f in fitting if not (f / "results.json").exists()]
        if not (begun or folder.is_dir() or restarted()):  # a run that was killed at once has left an empty one
            raise ValueError(f"there is no run {folder} to resume{list_runs(config.runs)}")
        return [folder, *begun, *fitting, *stopped][-1]
    if begun and _launcher_rank() is None:
        return folder.with_name(f"{folder.name}-{_number(begun[-1]) + 1}")
    if folder in begun and _launcher_rank() == "0":
        raise ValueError(f"{folder} exists already: continue it with --resume, or give the run another name")
    return folder


def _has_settings(folder: Path, config: Config) -> bool:
    """Whether the run in a folder was begun with these settings."""
    with suppress(ValueError):
        check_same(config, {"cgnl": {"config": read_recipe(folder / "config.yaml")}}, folder, more_epochs=False)
        return True
    return False


def _number(folder: Path) -> int:
    """2 for ``name-2``, 1 for ``name``."""
    found = re.search(r"-(\d+)$", folder.name)
    return int(found[1]) if found else 1


def check_same(config: Config, checkpoint: dict[str, Any], path: Path, more_epochs: bool = True) -> None:
    """Refuse to resume with other settings than those of the run, which may be given more epochs."""
    begun = build(checkpoint["cgnl"]["config"])  # settings that are new have their defaults
    both = [with_defaults(c) for c in (begun, config)]
    for name in setting_names():
        if name in MAY_CHANGE:
            continue
        before, now = (attrgetter(name)(c) for c in both)
        if name == "model.weights" and before and now and Path(before).name == Path(now).name:  # the file was moved
            continue
        if before != now and not (more_epochs and name == "optim.epochs" and before < now):
            before, now = ("null" if value is None else value for value in (before, now))
            raise ValueError(f"{path} was begun with {name} = {before}, not {now}")


def begin_folder(folder: Path, config: Config, repeat: str | None) -> None:
    """Make the folder, or clear up what a killed run left in it; open its log, write settings and environment."""
    make_folder(folder)
    open_log(folder)
    remove_parts(folder)
    write_text(folder / "config.yaml", to_yaml(config))
    write_text(folder / "environment.json", json.dumps({"command": repeat, **environment()}, indent=2) + "\n")


@contextmanager
def log_to_console(silent: bool = False) -> Iterator[Any]:
    """Log to the console, which is returned, on rank 0, and to the run's file from ``open_log`` on.

    Warnings, lost ranks and a lack of memory are told in a sentence each.
    """
    console = need("rich.console", "train").Console(highlight=False, soft_wrap=True, quiet=silent)
    screen = logging.Handler()
    screen.emit = lambda record: console.print(record.getMessage(), markup=False)
    before, log.handlers = log.handlers, [MemoryHandler(capacity=1000), screen] if is_rank_zero() else []
    log.propagate = False
    log.addFilter(escape_record)
    log.setLevel(logging.INFO if is_rank_zero() else logging.ERROR)
    try:
        with explain_lost_ranks(), explain_memory_errors(), log_warnings():
            yield console
    finally:
        for handler in log.handlers:
            with suppress(OSError):
                handler.close()
        log.handlers = before


def open_log(folder: Path) -> None:
    """Open the run's log, and write to it what was logged before. A full disk stops no run: the screen has it all."""
    file = logging.FileHandler(folder / "log.txt")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    file.handleError = lambda record: None  # noqa: ARG005
    for handler in [h for h in log.handlers if isinstance(h, MemoryHandler)]:
        handler.setTarget(file)
        handler.close()
        log.removeHandler(handler)
    log.addHandler(file)


@contextmanager
def log_warnings() -> Iterator[None]:
    """Log warnings as everything else, without the line of code that they come from."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")  # its successor is not in torch 2.11
        warnings.showwarning = lambda message, *_, **__: log.warning("%s", first_line(message))
        yield


@contextmanager
def explain_memory_errors() -> Iterator[None]:
    """Say in one sentence that memory has run out, and what helps."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not known:
            raise
        asked = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
        free = re.search(r"[\d.]+ \w+ is free", str(error))
        numbers = ", ".join([*([f"{asked[1]} more are needed"] if asked else []), *([free[0]] if free else [])])
        advice = "try a smaller optim.batch_size or data.size, or a larger optim.accumulate"
        raise ValueError(f"out of memory{f' ({numbers})' if numbers else ''}: {advice}") from error


def commit() -> str | None:
    """The git commit that cgnl was imported from, with -dirty where its tracked files are changed.

    None for an installed wheel, or without git; ``CGNL_COMMIT`` names it where only the files were copied.
    """
    package = Path(__file__).parents[1]
    if COMMIT in os.environ or not (package.parents[1] / ".git").exists():  # it may be installed in a repository
        return os.environ.get(COMMIT)
    status = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--", "."]
    try:
        lines = subprocess.check_output(status, cwd=package, stderr=subprocess.DEVNULL, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    head = re.search(r"^# branch\.oid (\w+)$", lines, re.MULTILINE)  # before the first commit it is (initial)
    dirty = re.search(r"^[^#]", lines, re.MULTILINE)
    return head and head[1] + ("-dirty" if dirty else "")


def environment() -> dict[str, Any]:
    """What the run runs in."""
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "packages": versions,
    }
