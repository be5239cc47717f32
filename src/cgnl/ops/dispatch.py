"""Which implementation runs: an explicit ``backend`` wins, ``"auto"`` takes the fastest that applies."""

from typing import Literal

import torch.distributed as dist
from torch import Tensor

from . import reference
from .kernels import Kernel

Backend = Literal["auto", "reference", "fused"]


def check_backend(backend: str) -> None:
    if backend not in ("auto", "reference", "fused"):
        raise ValueError(f'backend must be "auto", "reference" or "fused", got {backend!r}')


def compact_generalized_non_local(
    theta: Tensor,
    phi: Tensor,
    g: Tensor,
    *,
    kernel: str | Kernel = "dot",
    groups: int = 1,
    scale: str | None = None,
    normalize: bool = False,
    process_group: dist.ProcessGroup | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Relate every position of every channel to every other of its group, at linear cost (eq. 12 of the paper).

    Args:
        theta, phi, g: [B, C, *positions] with one, two or three position axes, any strides.
        kernel: the pairwise function, a ``cgnl.kernels`` object or the name of one with its defaults: ``"dot"``,
            ``"embedded_gaussian"`` (the series of exp(theta phi), no softmax), ``"rbf"``.
        groups: the channels are cut into this many groups, 1 unless given, and only elements of one group are related.
        scale: None (paper); ``"sqrt"`` divides by sqrt(N C') (released code); ``"resolution"`` multiplies by 784 / N.
        normalize: divide each row of the pairwise matrix by its sum. Refused where alpha_0^2 = 0 (``Dot``) and for
            ``EmbeddedGaussian`` of odd order; ``GaussianRBF(beta="exact")`` is its natural partner.
        process_group: None, or the processes of whose positions the inputs are this one's share. Only the B G (P + 1)
            sums travel, twice as many with ``normalize`` (plus B G norms for ``beta="norm"`` and one count with
            ``scale``), in one message forward and one backward.
        backend: ``"auto"`` or ``"reference"``; ``"fused"`` raises, since fused kernels take the whole block.

    Returns:
        [B, C, *positions] in g's dtype. Sums are accumulated in float32, float64 for float64.
    """
    check_backend(backend)
    if backend == "fused":
        raise ValueError(
            'backend="fused" is not possible: there are fused kernels for the block CGNL, not for the operator'
        )
    return reference.compact_generalized_non_local(
        theta, phi, g, kernel=kernel, groups=groups, scale=scale, normalize=normalize, process_group=process_group
    )
