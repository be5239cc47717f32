"""What a network attends to: maps of a reference position and of pairs of channels, and whether they matter.

Names resolve lazily: the command line looks at this package before it needs torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnosis import Diagnosis, diagnose_blocks
    from .maps import Attention, Map, attention, find_blocks, grad_cam, unit_range
    from .second_order import Pairs, pairs

__all__ = [
    "Attention",
    "Diagnosis",
    "Map",
    "Pairs",
    "attention",
    "diagnose_blocks",
    "find_blocks",
    "grad_cam",
    "pairs",
    "unit_range",
]
_HOMES = {"Diagnosis": "diagnosis", "diagnose_blocks": "diagnosis", "Pairs": "second_order", "pairs": "second_order"}


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'cgnl.explain' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'maps')}", __name__), name)
