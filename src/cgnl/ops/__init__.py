"""Pure functions on tensors: the paper's equations."""

from .dispatch import compact_generalized_non_local
from .pooling import bilinear_pool, compact_pool, covariance_pool, matrix_square_root
from .reference import affinity, generalized_non_local, non_local, non_local_affinity

__all__ = [
    "affinity",
    "bilinear_pool",
    "compact_generalized_non_local",
    "compact_pool",
    "covariance_pool",
    "generalized_non_local",
    "matrix_square_root",
    "non_local",
    "non_local_affinity",
]
