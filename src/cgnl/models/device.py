"""The device that a command computes on."""

import re

import torch

from ..text import counted


def find_device(name: str | torch.device = "auto") -> str:
    """``cpu``, ``cuda`` or ``cuda:1`` if there is such a device; ``auto`` is a GPU if there is one."""
    name = str(name)
    gpus = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"there is no device {name!r} here: device must be auto, cpu, cuda or cuda:1 and the like")
    if name != "cpu" and int(name.partition(":")[2] or 0) >= gpus:
        raise ValueError(f"there is no {name} here: torch {torch.__version__} sees {counted(gpus, 'GPU')}")
    return name
