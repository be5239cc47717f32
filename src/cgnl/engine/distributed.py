"""Ranks of a run: start them, gather objects from them, and end them together."""

import atexit
import dataclasses
import gc
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..text import counted
from .settings import Config

LOST = "another rank of the run has ended or does not respond: the same command with --resume continues it"
FOLDER, PARENT = "CGNL_RUN_FOLDER", "CGNL_PARENT"
"""Environment variables by which rank 0 tells the ranks it starts where the run is, and its own process id."""
GRACE = 10.0
"""Seconds in which a rank may notice by itself that another is lost, before it is ended."""

_noticed = threading.Event()


class Rank(NamedTuple):
    """This process among those that were started."""

    rank: int
    local_rank: int
    world: int


def current_rank() -> Rank:
    """The rank that torchrun, SLURM or rank 0 (``start_ranks``) has given to this process."""
    env = os.environ
    if dist.is_initialized():
        return Rank(dist.get_rank(), int(env.get("LOCAL_RANK", env.get("SLURM_LOCALID", 0))), dist.get_world_size())
    if "WORLD_SIZE" in env:
        return Rank(int(env.get("RANK", 0)), int(env.get("LOCAL_RANK", 0)), int(env["WORLD_SIZE"]))
    if "SLURM_NTASKS" in env and env.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return Rank(int(env["SLURM_PROCID"]), int(env["SLURM_LOCALID"]), int(env["SLURM_NTASKS"]))
    return Rank(0, 0, 1)


def restarted() -> bool:
    """Whether torchrun has started this process again, after a rank or a machine was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def with_remaining_nodes(config: Config) -> Config:
    """The settings with the machines that are left, where torchrun may continue with fewer (``--nnodes 1:2``)."""
    nodes, rest = divmod(current_rank().world, config.devices or 1)
    return dataclasses.replace(config, nodes=nodes) if restarted() and not rest else config


def is_rank_zero() -> bool:
    """Whether this is the rank that logs and writes files."""
    return current_rank().rank == 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def all_gather(mine: Any) -> list[Any]:
    """The objects of all ranks, by rank."""
    if world_size() == 1:
        return [mine]
    everything: list[Any] = [None] * world_size()
    dist.all_gather_object(everything, mine)
    return everything


def find_accelerator(config: Config) -> str:
    """``cuda`` or ``cpu``, if there are as many devices and ranks as the settings say."""
    started = current_rank().world
    if started not in (1, config.world):
        raise ValueError(f"{started} processes were started, but devices x nodes = {config.world}")
    gpus = torch.cuda.device_count()
    accelerator = ("gpu" if gpus else "cpu") if config.accelerator == "auto" else config.accelerator
    if accelerator == "gpu" and (config.devices or 1) > gpus:
        raise ValueError(f"{counted(config.devices or 1, 'GPU')} asked for, but there are {gpus}")
    return "cuda" if accelerator == "gpu" else "cpu"


def connect(config: Config, folder: Path | None = None) -> torch.device:
    """Connect the ranks of a run, starting them if no launcher has; returns the device of this one."""
    accelerator, rank = find_accelerator(config), current_rank()
    device = torch.device(f"cuda:{rank.local_rank}" if accelerator == "cuda" else "cpu")
    if accelerator == "cuda":
        torch.cuda.set_device(device)
    if config.world > 1 and not dist.is_initialized():
        if rank.world == 1 and config.nodes > 1:
            raise ValueError(f"nodes = {config.nodes}: start the command on each machine by torchrun or SLURM")
        address = start_ranks(config.world, folder) if rank.world == 1 else master_address()
        if PARENT in os.environ:
            watch(lambda: os.getppid() != int(os.environ[PARENT]))
        backend, timeout = "nccl" if accelerator == "cuda" else "gloo", timedelta(seconds=config.timeout)
        dist.init_process_group(backend, f"tcp://{address}", timeout, config.world, rank.rank)
        atexit.register(disconnect)
    return device


def master_address() -> str:
    """Host and port of rank 0; under SLURM the first host of the job and a port by its number, if not given."""
    env = os.environ
    first = re.sub(r"\[(\d+)[^]]*\]", r"\1", env.get("SLURM_NODELIST", "127.0.0.1"))
    port = 15000 + int(env.get("SLURM_JOB_ID", "0")[-4:])
    return f"{env.get('MASTER_ADDR', re.split('[ ,]', first)[0])}:{env.get('MASTER_PORT', port)}"


def start_ranks(world: int, folder: Path | None) -> str:
    """Start the other ranks on this machine by the command of this one; returns the address of rank 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    env = {**os.environ, PARENT: str(os.getpid()), "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    env |= {"WORLD_SIZE": str(world)} | ({FOLDER: str(folder)} if folder else {})
    children = [
        subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={**env, "RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(1, world)
    ]
    watch(lambda: any(child.poll() for child in children))
    return f"{host}:{port}"


def disconnect() -> None:
    """Destroy the process group: its threads would abort Python if they freed a tensor during shutdown."""
    gc.collect()  # a DDP module in a reference cycle holds the group
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def explain_lost_ranks() -> Iterator[None]:
    """Raise ConnectionError with one sentence where another rank was lost during communication."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        _noticed.set()
        raise ConnectionError(LOST) from error


def watch(lost: Callable[[], bool]) -> None:
    """End this process when another rank is lost, even while it waits for a device that waits for the other."""

    def look() -> None:
        while not lost():
            time.sleep(1)
        time.sleep(GRACE)
        if not _noticed.is_set():
            print(f"cgnl: {LOST}", file=sys.stderr, flush=True)
        os._exit(2)

    threading.Thread(target=look, daemon=True).start()
