"""What a network looks at: maps of a reference position, of pairs of channels, and how they are drawn."""

from .diagnosis import Diagnosis, diagnose_blocks
from .gradcam import grad_cam
from .maps import Attention, Map, attention, blocks_of, unit_range
from .pairs import Pairs, pairs

__all__ = [
    "Attention",
    "Diagnosis",
    "Map",
    "Pairs",
    "attention",
    "blocks_of",
    "diagnose_blocks",
    "grad_cam",
    "pairs",
    "unit_range",
]
