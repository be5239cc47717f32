"""What the processes of a run tell one another."""

from typing import Any

import torch.distributed as dist


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def of_all(mine: Any) -> list[Any]:
    """What each process has, in their order."""
    if count() == 1:
        return [mine]
    everything: list[Any] = [None] * count()
    dist.all_gather_object(everything, mine)
    return everything
