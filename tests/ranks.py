"""Two ranks of one test."""

import atexit
from datetime import timedelta

import torch
import torch.distributed as dist

from cgnl.engine.distributed import disconnect


def connect_two(rank: int, folder: str, backend: str = "gloo") -> None:
    """Connect this process, one of two; it disconnects at its end, when nothing holds the group any more."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group(backend, f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=limit)
    atexit.register(disconnect)
