"""The whole CGNL block as one function of tensors: Z = norm(W_z Y) + X, the last equation of the paper's section 3.

``fused.cgnl_block`` computes the same by Triton kernels, and ``dispatch.cgnl_block`` chooses between the two. From W_z
on, everything is float32 (float64 for float64): attention is a sum over all positions and channels of a group, and
easily exceeds float16's 65504.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import kernels, reference
from .kernels import Kernel
from .series import accumulation_dtype, polynomial

CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Layer = Tensor | Callable[[Tensor], Tensor]
"""The weight of a 1 x 1 convolution, or a module in its place: its hooks then run."""
Attention = Callable[[Tensor, Tensor, Tensor], tuple[int, Tensor, Tensor | None]]
"""``reference.attention`` of grouped theta, phi and g, each [B, G, C', *P]."""


class BlockNorm(NamedTuple):
    """Parameters and statistics of the norm after W_z, each [C]: batch norm, or group norm over the block's groups."""

    kind: Literal["batch", "group"]
    weight: Tensor
    bias: Tensor
    eps: float = 1e-5
    running_mean: Tensor | None = None
    """Running statistics: updated in place in training, used in place of the batch's own otherwise."""
    running_var: Tensor | None = None
    num_batches_tracked: Tensor | None = None
    momentum: float | None = 0.1
    """None means the plain average of all batches."""
    training: bool = False
    process_group: Any = None
    """Ranks to share batch statistics with; fused kernels only."""


Norm = BlockNorm | Callable[[Tensor], Tensor] | None


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
    recompute: bool = False,  # noqa: ARG001
    attention: Attention | None = None,
    fused: bool = False,
) -> Tensor:
    """x + norm(W_z y) with vec(y) = Theta (Phi^T vec(g)) in each group.

    Args:
        x: [B, C, *positions].
        w_theta, w_phi, w_g: [I, C, 1, ..].
        w_z: [C, I / groups, 1, ..].
        norm: a norm of the C channels, or None.
        kernel, groups, scale, normalize: those of ``CGNL``.
        recompute: for the fused kernels: keep only the input for backward.
        attention: computes the coefficients s in place of ``reference.attention``, or None.
        fused: whether Triton kernels may compute sums and polynomials.

    Returns:
        [B, C, *positions] in x's dtype.
    """
    kernel = kernels.resolve(kernel)
    if attention is None:
        own = None if scale == "energy" else scale
        attention = partial(reference.attention, kernel=kernel, scale=own, normalize=normalize, fused=fused)
    theta, phi, g = (convolve(x, w) for w in (w_theta, w_phi, w_g))  # [B, I, *P]
    if scale == "energy":  # g, not s: replacing the attention replaces all of it
        g = g / reference.energy(x)
    theta, phi, g = (t.unflatten(1, (groups, -1)) for t in (theta, phi, g))  # [B, G, C', *P]
    first, s, row_sums = attention(theta, phi, g)  # Phi^T g: [B, G, K]
    z, bias = _attend(theta, first, s, row_sums, kernel.envelope, w_z, fused)  # W_z (Theta s): [B, C, *P]
    return add_residual(x, z, bias, norm, groups)  # [B, C, *P]


def _attend(
    theta: Tensor, first: int, s: Tensor, row_sums: Tensor | None, gamma: float, w_z: Layer, fused: bool
) -> tuple[Tensor, Tensor | None]:
    """W_z (Theta s) in two parts: [B, C, *P], and a bias of each sample [B, C, 1, ..] to add to it, or None.

    The p = 0 term is the same for all elements of a sample and group, and so large that half precision would lose the
    others in it: it becomes the bias s_0 rowsum(W_z), and y is the rest. A layer that is more than its weight gets all
    of y, in float32 at least.
    """
    groups, ndim, dtype = theta.shape[1], theta.ndim - 3, accumulation_dtype(theta)
    plain = why_not_plain(w_z, groups) is None
    if plain and (first, s.shape[-1], gamma) == (1, 1, 0):  # dot: W_z (s theta) = s (W_z theta)
        z = convolve(theta.flatten(1, 2), w_z, groups).unflatten(1, (groups, -1))  # [B, G, C / G, *P]
        return polynomial(z, s, first=1, fused=fused).flatten(1, 2), None
    if not plain or first > 0:
        y = reference.evaluate(theta, first, s, row_sums, gamma, fused)  # [B, G, C', *P]
        return project(y.to(dtype), w_z, theta.dtype), None
    if row_sums is not None:
        s_0 = s[..., :1] / row_sums[..., :1]  # [B, G, 1]
        y = reference.evaluate(theta, 0, _without_first(s - s_0 * row_sums), row_sums, 0.0, fused)  # [B, G, C', *P]
    else:
        s_0 = s[..., :1]  # [B, G, 1]
        y = polynomial(theta, _without_first(s), gamma=gamma, fused=fused)  # [B, G, C', *P]
        if gamma:
            y = y + s_0.unflatten(-1, (1,) * (ndim + 1)) * torch.expm1(-gamma * theta.to(s.dtype).square())
    sums = get_weight(w_z).flatten(1).sum(1, dtype=s.dtype).unflatten(0, (groups, -1))  # rowsum(W_z): [G, C / G]
    bias = (s_0 * sums).flatten(1).unflatten(1, (-1,) + (1,) * ndim)  # [B, C, 1, ..]
    return project(y.to(dtype), w_z, theta.dtype), bias.to(dtype)


def _without_first(coefficients: Tensor) -> Tensor:
    # Not F.pad(c[..., 1:], (1, 0)): torch 2.11 compiles that, on CUDA, to c itself.
    return torch.cat([torch.zeros_like(coefficients[..., :1]), coefficients[..., 1:]], -1)  # [B, G, K]


def convolve(x: Tensor, layer: Layer, groups: int = 1) -> Tensor:
    """[B, C, *P] -> [B, I, *P]."""
    if not isinstance(layer, Tensor):
        return layer(x)
    return (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3](x, layer, groups=groups)


def get_weight(layer: Any) -> Tensor:
    """[I, C, 1, ..]."""
    return layer if isinstance(layer, Tensor) else layer.weight


def why_not_plain(layer: Any, groups: int) -> str | None:
    """Why a layer is more than its weight: hooks, or another layer in its place."""
    if isinstance(layer, Tensor):
        return None
    if type(layer) not in CONV:
        return f"is a {type(layer).__name__}"
    if has_hooks(layer):
        return "has hooks"
    if layer.bias is not None:
        return "has a bias"
    if math.prod(layer.kernel_size) != 1 or math.prod(layer.stride) != 1 or any(layer.padding):
        return "is more than a product at each position"
    return None if layer.groups == groups else f"has {layer.groups} groups"


def has_hooks(layer: Any) -> bool:
    """Whether a module does more than its ``forward``."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def project(y: Tensor, w_z: Layer, dtype: torch.dtype) -> Tensor:
    """W_z y in this dtype, [B, G, C', *P] -> [B, C, *P]; float16 multiplies y divided by its peak.

    A layer that is more than its weight is called in y's own dtype, as it may not be linear.
    """
    groups = y.shape[1]
    if y.dtype != dtype and isinstance(w_z, nn.Module) and why_not_plain(w_z, groups) is not None:
        with reference.no_autocast(y):
            return _call_in_same_dtype(y.flatten(1, 2), w_z)
    if dtype != torch.float16 or y.dtype == dtype:
        return convolve(y.flatten(1, 2).to(dtype), w_z, groups)
    peak = y.detach().abs().amax(tuple(range(2, y.ndim)), keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    z = convolve((y / peak).flatten(1, 2).to(dtype), w_z, groups)
    return (z.unflatten(1, (groups, -1)) * peak).flatten(1, 2)


def add_residual(x: Tensor, z: Tensor, bias: Tensor | None, norm: Norm, groups: int) -> Tensor:
    """x + norm(z + bias) for x and z [B, C, *P] and a bias [B, C, 1, ..], or None; norm and sum in float32 at least."""
    z = z.to(accumulation_dtype(z))
    if bias is not None:
        z = z + _centre(bias, norm)
    # x + norm(z), but for a new block -0.0 stays -0.0: 0 - y is never -0.0. x first: the result has its strides.
    return (x - (0 - _normalise(z, norm, groups))).to(x.dtype)


def _normalise(z: Tensor, norm: Norm, groups: int) -> Tensor:
    if norm is None:
        return z
    if isinstance(norm, nn.Module):
        return _call_in_same_dtype(z, norm)
    if not isinstance(norm, BlockNorm):
        return norm(z)
    if norm.kind == "group":
        return F.group_norm(z, groups, norm.weight, norm.bias, norm.eps)
    if norm.process_group is not None:
        raise ValueError("without the fused kernels, statistics of several ranks need the module SyncBatchNorm")
    batch, momentum = norm.training or norm.running_mean is None, count_batch(norm)
    return F.batch_norm(
        z, norm.running_mean, norm.running_var, norm.weight, norm.bias, batch, float(momentum), norm.eps
    )


def _call_in_same_dtype(z: Tensor, layer: nn.Module) -> Tensor:
    """layer(z) where parameters may be in half precision, such as norms under FSDP, and z is not."""
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    cast = {name: t.to(z.dtype) for name, t in tensors.items() if t.dtype in (torch.float16, torch.bfloat16)}
    if not cast:
        return layer(z)
    out = torch.func.functional_call(layer, cast, (z,))
    with torch.no_grad():
        for name, buffer in layer.named_buffers():
            if name in cast:
                buffer.copy_(cast[name])
    return out


def count_batch(norm: BlockNorm) -> float | Tensor:
    """Count a batch that is trained on; returns the weight that its statistics have among the running ones."""
    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            return 1 / norm.num_batches_tracked
    return norm.momentum or 0.0


def uses_batch_statistics(norm: Any) -> bool:
    """Whether a norm trains on the statistics of the batch that this process sees."""
    if isinstance(norm, BlockNorm):
        return norm.kind == "batch" and norm.training and norm.process_group is None
    return type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and norm.training


def _centre(bias: Tensor, norm: Any) -> Tensor:
    """Subtract the mean over the batch from the bias where batch norm would do so next.

    The mean can be thousands of times the rest, which float32 would then lose. The running mean gets it directly.
    """
    momentum = norm.momentum if uses_batch_statistics(norm) else None
    if momentum is None or momentum == 1:
        return bias
    mean = bias.mean(0, keepdim=True)  # [1, C, 1, ..]
    if norm.running_mean is not None:
        # Before the norm multiplies it by 1 - momentum. By .data, since the last batch's backward holds this tensor
        # without reading it, and would refuse one that has changed.
        norm.running_mean.data.add_(mean.detach().flatten(), alpha=momentum / (1 - momentum))
    return bias - mean
