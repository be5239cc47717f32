"""Pure functions on tensors: the paper's equations."""

from .dispatch import compact_generalized_non_local
from .reference import affinity, bilinear_pool, generalized_non_local, non_local, non_local_affinity

__all__ = [
    "affinity",
    "bilinear_pool",
    "compact_generalized_non_local",
    "generalized_non_local",
    "non_local",
    "non_local_affinity",
]
