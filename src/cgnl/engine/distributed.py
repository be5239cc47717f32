"""What the processes of a run tell one another."""

from typing import Any

import torch.distributed as dist


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def all_gather(mine: Any) -> list[Any]:
    """What each process has, in their order."""
    if world_size() == 1:
        return [mine]
    everything: list[Any] = [None] * world_size()
    dist.all_gather_object(everything, mine)
    return everything
