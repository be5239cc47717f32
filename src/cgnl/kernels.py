"""The pairwise functions, under their public name."""

from .ops.kernels import Dot, EmbeddedGaussian, GaussianRBF, Kernel, Taylor

__all__ = ["Dot", "EmbeddedGaussian", "GaussianRBF", "Kernel", "Taylor"]
