"""What a network attends to: the maps of a reference position, and how they are drawn."""

from .diagnosis import Diagnosis, diagnose_blocks
from .gradcam import grad_cam
from .maps import Attention, Map, attention, blocks_of, unit_range

__all__ = ["Attention", "Diagnosis", "Map", "attention", "blocks_of", "diagnose_blocks", "grad_cam", "unit_range"]
