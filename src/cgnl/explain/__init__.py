"""What a network attends to: the maps of a reference position, and how they are drawn."""

from .maps import Attention, Map, attention, blocks_of, unit_range

__all__ = ["Attention", "Map", "attention", "blocks_of", "unit_range"]
