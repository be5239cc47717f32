"""The processes of a run end together: one that loses another says so in a sentence, and does not wait for ever."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

LOST = "another process of the run has ended or does not answer: the same command with --resume goes on"
GRACE = 10.0
"""Seconds in which a process that has lost another may notice it, and end, by itself."""

_noticed = threading.Event()


@contextmanager
def noticing() -> Iterator[None]:
    """Say in a sentence that another process was lost while this one talked to it."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        _noticed.set()
        raise ConnectionError(LOST) from error


class Together(DDPStrategy):
    """Lightning's, but for how its processes end."""

    def __init__(self, timeout: float):
        # Norms are synchronised, or else every process keeps its own until a test.
        super().__init__(broadcast_buffers=False, gradient_as_bucket_view=True, timeout=timedelta(seconds=timeout))

    def _configure_launcher(self) -> None:
        environment = self.cluster_environment
        assert environment is not None
        self._launcher = Launcher(environment, self.num_processes, self.num_nodes)
        if isinstance(environment, LightningEnvironment) and environment.local_rank() > 0:
            parent = os.getppid()
            watch(lambda: os.getppid() != parent)


class Launcher(_SubprocessScriptLauncher):
    """Starts the other processes of this machine. Lightning would watch them too, and kill this one without a word."""

    def _call_children_scripts(self) -> None:
        super()._call_children_scripts()
        children, self.procs = self.procs, []
        watch(lambda: any(child.poll() for child in children))


def watch(lost: Callable[[], bool]) -> None:
    """End this process when another is lost, even where it waits for a device that waits for the other."""

    def look() -> None:
        while not lost():
            time.sleep(1)
        time.sleep(GRACE)
        if not _noticed.is_set():
            print(f"cgnl: {LOST}", file=sys.stderr, flush=True)
        os._exit(2)

    threading.Thread(target=look, daemon=True).start()
