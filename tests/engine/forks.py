"""Forks of a process that has imported everything: a command in one of them starts at once, and may be killed."""

import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cgnl.cli import main
from cgnl.engine import distributed
from cgnl.report import write
from tests.engine.conftest import register


def prepare() -> None:
    """Make this process one that others are forked from: one thread, small networks, no reports."""
    register()
    torch.set_num_threads(1)
    os.environ["CGNL_COMMIT"] = "none"  # asking git takes longer than a step
    write.try_to_report = lambda _: None


def start(function: Callable[[], int | None]) -> int:
    """Call a function in a fork: its process id. What the function returns is the exit status."""
    child = os.fork()
    if not child:
        try:
            os._exit(function() or 0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def start_command(words: Sequence[str], output: Path) -> int:
    """Run ``cgnl`` in a fork, with what it prints in two files, ``.out`` and ``.err``: its process id."""
    return start(lambda: run_command(words, output))


def run_command(words: Sequence[str], output: Path) -> int:
    """Run ``cgnl`` in this process as if it were one of its own."""
    return run_captured(lambda: main(list(words)), output)


def run_captured(function: Callable[[], int | None], output: Path) -> int:
    """Call a function in this process, with what it prints in two files, ``.out`` and ``.err``."""
    sys.stdout, sys.stderr = (output.with_suffix(suffix).open("w", buffering=1) for suffix in (".out", ".err"))
    os.dup2(sys.stdout.fileno(), 1)
    os.dup2(sys.stderr.fileno(), 2)
    os.environ.pop(distributed.FOLDER, None)
    try:
        return function() or 0
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        distributed.disconnect()  # at exit, in a process of its own


def run_ranks(function: Callable[[], int | None], folder: Path) -> list[str]:
    """Call a function in two ranks of a run, forks that are connected as torchrun connects them: what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}

    def call(rank: int) -> int:
        torch.set_num_threads(1)
        register()
        os.environ.update(master | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        return run_captured(function, folder / f"rank{rank}")

    ranks = [start(lambda rank=rank: call(rank)) for rank in range(2)]
    ended = [wait(pid) for pid in ranks]
    assert ended == [0, 0], [(folder / f"rank{rank}.err").read_text()[-3000:] for rank in range(2)]
    return [(folder / f"rank{rank}.out").read_text() for rank in range(2)]


def wait(child: int, seconds: float = math.inf) -> int | None:
    """How a fork ended; None if it has not after so many seconds."""
    end = time.perf_counter() + seconds
    while seconds < math.inf:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.perf_counter() >= end:
            return None
        time.sleep(min(0.002, max(0.0, end - time.perf_counter())))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
