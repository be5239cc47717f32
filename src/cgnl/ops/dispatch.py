"""Which implementation runs: an explicit ``backend`` wins, ``"auto"`` takes the fused kernels where they gain."""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import block, fused, kernels, reference
from .block import Attention, BlockNorm, Layer, Norm, get_weight, has_hooks, why_not_plain
from .kernels import Kernel

Backend = Literal["auto", "reference", "fused"]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm)


def check_backend(backend: str) -> None:
    """Raise for an unknown backend."""
    if backend not in ("auto", "reference", "fused"):
        raise ValueError(f'backend must be "auto", "reference" or "fused", got {backend!r}')


def _takes_fused(backend: str, why_not: str | None) -> bool:
    if why_not is not None and backend == "fused":
        raise ValueError(f'backend="fused" is not possible: {why_not}')
    return why_not is None


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
        groups: number of channel groups, default 1; only elements of one group are related.
        scale: None (paper); ``"sqrt"`` divides by sqrt(N C') (released code); ``"resolution"`` multiplies by 784 / N.
        normalize: divide each row of the pairwise matrix by its sum. Refused where alpha_0^2 = 0 (``Dot``) and for
            ``EmbeddedGaussian`` of odd order; ``GaussianRBF(beta="exact")`` is its natural partner.
        process_group: ranks among which the positions are split, or None. Only the B G (P + 1) sums travel, twice as
            many with ``normalize`` (plus B G norms for ``beta="norm"`` and one count with ``scale``), in one message
            forward and one backward. ``normalize`` with ``beta="exact"`` sends B G minima before.
        backend: ``"auto"`` runs Triton kernels on CUDA where they apply, ``"fused"`` always (or raises),
            ``"reference"`` never.

    Returns:
        [B, C, *positions] in g's dtype. Sums are accumulated in float32, float64 for float64.
    """
    check_backend(backend)
    kernel = kernels.resolve(kernel)
    mine = backend != "reference" and _takes_fused(backend, _why_not_operator(theta, phi, g, groups, kernel))
    if mine and not (normalize or kernel.constant or process_group):
        return fused.compact_generalized_non_local(theta, phi, g, kernel=kernel, groups=groups, scale=scale)
    return reference.compact_generalized_non_local(
        theta, phi, g, kernel=kernel, groups=groups, scale=scale, normalize=normalize, process_group=process_group,
        fused=mine,
    )  # fmt: skip


def _why_not_operator(theta: Any, phi: Any, g: Any, groups: int, kernel: Kernel) -> str | None:
    if not all(type(t) in (Tensor, nn.Parameter) for t in (theta, phi, g)):
        return "the inputs are not plain tensors"
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return "compilers and counters want to see each operation"
    if 0 in theta.shape:
        return "there is nothing to compute"
    return fused.why_not_operator(theta, phi, g, groups, kernel)


def cgnl_block(
    x: Tensor,
    w_theta: Layer,
    w_phi: Layer,
    w_g: Layer,
    w_z: Layer,
    norm: Norm = None,
    *,
    kernel: str | Kernel = "dot",
    groups: int = 1,
    scale: str | None = None,
    normalize: bool = False,
    recompute: bool = False,
    attention: Attention | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """x + norm(W_z y), [B, C, *positions] -> the same, by the fused kernels or by ``block.cgnl_block``.

    Layers and norm are tensors or modules. Only the reference calls ``attention``. Where the block's kernels do not
    apply, the operator's still do, unless the reference was asked for.
    """
    kernel = kernels.resolve(kernel)
    options: Any = {
        "kernel": kernel, "groups": groups, "scale": scale, "normalize": normalize, "recompute": recompute
    }  # fmt: skip
    # In float32 the kernels compute the same, but no faster.
    if backend == "fused" or (backend == "auto" and fused.compute_dtype(x) != torch.float32):
        layers = {"theta": w_theta, "phi": w_phi, "g": w_g, "z": w_z}
        if _takes_fused(backend, why_not(x, layers, norm, kernel, groups, scale, normalize)):
            theta, phi, g, z = map(get_weight, layers.values())
            return fused.cgnl_block(x, theta, phi, g, z, _read_norm(norm), **options)
    mine = backend != "reference"
    return block.cgnl_block(x, w_theta, w_phi, w_g, w_z, norm, **options, attention=attention, fused=mine)


def why_not(
    x: Tensor, layers: dict[str, Layer], norm: Norm, kernel: Kernel, groups: int, scale: str | None, normalize: bool
) -> str | None:
    """The reason why the fused kernels cannot run a block, or None if they can."""
    for name, layer in layers.items():
        if reason := why_not_plain(layer, groups if name == "z" else 1):
            return f"{name} {reason}"
    if reason := _why_not_norm(norm, groups):
        return f"norm {reason}"
    inner = get_weight(layers["theta"]).shape[0]
    if reason := fused.why_not(x, x.shape[1], inner, groups, kernel, normalize, scale):
        return reason
    if block.uses_batch_statistics(norm) and x.numel() == x.shape[1]:
        return "batch norm needs more than 1 value per channel"
    return None


def _why_not_norm(norm: Any, groups: int) -> str | None:
    if norm is None or isinstance(norm, BlockNorm):
        return None
    if has_hooks(norm):
        return "has hooks"
    if type(norm) not in NORMS:
        return f"is a {type(norm).__name__}"
    if norm.weight is None or norm.bias is None:
        return f"has no {'weight' if norm.weight is None else 'bias'}"
    if norm.weight.dtype in (torch.float16, torch.bfloat16):
        return f"is in {norm.weight.dtype}"
    count = getattr(norm, "num_groups", groups)
    return None if count == groups else f"has {count} groups"


def _read_norm(norm: Any) -> BlockNorm | None:
    """The tensors of a norm."""
    if norm is None or isinstance(norm, BlockNorm):
        return norm
    if isinstance(norm, nn.GroupNorm):
        return BlockNorm("group", norm.weight, norm.bias, norm.eps)
    group = None
    if isinstance(norm, nn.SyncBatchNorm) and norm.training and dist.is_available() and dist.is_initialized():
        group = norm.process_group or dist.group.WORLD
    alone = group is None or dist.get_world_size(group) == 1
    statistics = norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum
    return BlockNorm("batch", norm.weight, norm.bias, norm.eps, *statistics, norm.training, None if alone else group)
