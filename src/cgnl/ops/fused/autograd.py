"""The whole block: which kernels follow one another, and how gradients come back.

    forward    X --power_sums, total--> c = Phi^T g      [B, G, K]     attention.py
               X W_theta^T --> theta                     [B, N, I]     cuBLAS
               theta, c --moments--> of z = W_z y        [2, B, C]     branch.py: z itself is never written
               moments --batch_norm--> scale, shift      [B, C]        batchnorm.py, or norm.py for the others
               X, theta, c --apply--> X + scale z + shift              branch.py
    inference  X, c --output--> X + norm(W_z y)                        output.py: theta is not written either
    backward   dO, theta --gradient_sums--> of dO, dO z  [2, B, C]     branch.py
               these --batch_norm--> a, u, v of dz = a dO + u + v z    batchnorm.py, or norm.py
               for a part of the samples at a time:                    operators.py
               X W_phi^T, X W_g^T --> phi, g             [B, N, I]     cuBLAS, recomputed
               dO, theta --branch--> dtheta, dW_z, dc                  backward.py
               phi, g, dc --factors--> dphi, dg                        backward.py: in their places
               dtheta, dphi, dg --> dX, dW                             cuBLAS

Tensors come and go as the block has them. In between x is [B, N, C], the projections' weights are [I, C], those of z
[C, I / G], all rounded to one dtype; what the branch is added to is not rounded. ``row_sums`` are those of W_z, by
which the p = 0 term arrives, of weights that were not rounded: after a norm that cancels their size, how they were
rounded would be all that is left.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import Weights
from . import norm as norms
from .batchnorm import MOST
from .launch import Series, aligned, is_last, project
from .norm import Gradients, Norm, Standard
from .operators import (
    fused_apply,
    fused_backward,
    fused_batch_norm,
    fused_batch_norm_backward,
    fused_coefficients,
    fused_gradient_sums,
    fused_moments,
    fused_output,
    fused_wide_output,
)
from .output import is_whole

WIDEST = 128
"""Inner channels of a group that ``fused_output`` can hold."""


class Like(NamedTuple):
    """What a gradient shall look like."""

    shape: torch.Size
    dtype: torch.dtype


def coefficients(x: Tensor, theta: Tensor, both: Tensor, series: Series) -> tuple[Tensor, Tensor | None]:
    """c of y = sum_p c_p theta^p, [B, G, K], and the constant of beta="norm" in it, [B, G, 1].

    theta is its weight [I, C], both are those of phi and g [2, I, C].
    """
    c = fused_coefficients(x, both, series.groups, series.first, series.alphas, series.gamma)
    if not series.constant:
        return c, None
    squares = [fused_coefficients(x, torch.stack((w, w)), series.groups, 1, [1.0], 0.0) for w in (theta, both[0])]
    beta = torch.exp(-series.constant * (squares[0] + squares[1]))
    return c * beta, beta


def expand_groups(numbers: Tensor, channels: int) -> Tensor:
    """[B, G] -> [B, C]."""
    return numbers.repeat_interleave(channels // numbers.shape[1], 1)


def has_channels_last(x: Tensor) -> bool:
    return x.movedim(1, -1).is_contiguous()


def to_rows(x: Tensor, last: bool) -> Tensor:
    """[B, C, *P] -> [B, N, C] with channels or positions last in memory, copied only where they are not so."""
    if last:
        return aligned(x.movedim(1, -1).reshape(x.shape[0], -1, x.shape[1]).contiguous())
    return aligned(x.contiguous().flatten(2)).transpose(1, 2)


def from_rows(rows: Tensor, positions: torch.Size) -> Tensor:
    """[B, N, C] -> [B, C, *P]."""
    if is_last(rows):
        return rows.view(rows.shape[0], *positions, rows.shape[2]).movedim(-1, 1)
    return rows.transpose(1, 2).view(rows.shape[0], rows.shape[2], *positions)


def sum_rows(z: Tensor, series: Series) -> Tensor | None:
    return z.flatten(1).sum(1, dtype=torch.float32) if series.first == 0 else None


def matrix(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[O, I, 1, ..] -> [O, I]."""
    return aligned(weight.flatten(1).to(dtype).contiguous())


def vector(numbers: Tensor) -> Tensor:
    """What a norm has for each channel, as kernels take it. [C]"""
    return aligned(numbers.float().contiguous())


def infer(x: Tensor, weights: Weights, dtype: torch.dtype, series: Series, fixed: list[Tensor], eps: float) -> Tensor:
    """x + norm(W_z y) without gradients; fixed is mean, variance, weight and bias, or nothing."""
    residual, row_sums = to_rows(x, has_channels_last(x)), sum_rows(weights.z, series)
    rows, theta, z = residual.to(dtype), matrix(weights.theta, dtype), matrix(weights.z, dtype)
    both = torch.stack((weights.phi, weights.g)).flatten(2).to(dtype)  # [2, I, C]
    c, _ = coefficients(rows, theta, both, series)
    fixed = [vector(t) for t in fixed]
    if z.shape[1] <= WIDEST:
        out = fused_output(rows, residual, theta, z, row_sums, c, fixed, eps, series.first, series.gamma)
    elif is_whole(z, c, series.first, series.gamma):
        out = fused_wide_output(rows, residual, theta, z, c, fixed, eps)
    else:
        mean, variance, weight, bias = fixed or unit(c, len(z))
        norm = Norm("fixed", eps)
        standard = standardise(norm, (mean, variance), None, c, row_sums, weight, bias, rows.shape[1], series)
        scale, shift = (expand_samples(t, len(x)) for t in (standard.scale, standard.shift))
        out = fused_apply(residual, project(rows, theta), z, c, scale, shift, series.first, series.gamma)
    return from_rows(out, x.shape[2:])


def expand_samples(numbers: Tensor, batch: int) -> Tensor:
    """[C] or [B, C] -> [B, C]."""
    return numbers if numbers.is_contiguous() and numbers.ndim == 2 else numbers.expand(batch, -1).contiguous()


def unit(like: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, weight and bias of a norm that changes nothing."""
    zero, one = like.new_zeros(channels), like.new_ones(channels)
    return zero, one, one, zero


def standardise(
    norm: Norm,
    fixed: tuple[Tensor, Tensor] | None,
    moments: Tensor | None,
    c: Tensor,
    row_sums: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    positions: int,
    series: Series,
) -> Standard:
    if is_small(norm, c.shape[0]):
        scale, shift, q, found = fused_batch_norm(
            moments, c, row_sums, weight, bias, positions, norm.eps, series.first, series.dot
        )
        mean, variance, p = found.unbind(0)
        return Standard(scale, shift, q, mean, variance, p, float(c.shape[0] * positions))
    first = expand_groups(c[..., 0], len(weight))
    constant = None if row_sums is None else first * row_sums
    strength = first if series.dot else None
    return norms.standardise(norm, fixed, moments, strength, constant, weight, bias, positions, series.groups)


def is_small(norm: Norm, batch: int) -> bool:
    """Whether the norm is one that has kernels of its own."""
    return norm.kind == "batch" and norm.process_group is None and batch <= MOST


class Block(torch.autograd.Function):
    """x + norm(W_z y), and the mean and variance that the norm took from the batch.

    It takes tensors as they are, and does the reshaping and rounding itself: each would be a step of its own on the way
    back, which costs Python more time than the GPU.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        theta_weight: Tensor,
        phi_weight: Tensor,
        g_weight: Tensor,
        z_weight: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        fixed: tuple[Tensor, Tensor] | None,
        dtype: torch.dtype,
        series: Series,
        norm: Norm,
        recompute: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        residual, row_sums = to_rows(x, has_channels_last(x)), sum_rows(z_weight, series)
        rows, z = residual.to(dtype), matrix(z_weight, dtype)
        weight = matrix(torch.cat((theta_weight, phi_weight, g_weight)), dtype)  # [3 I, C]
        three = weight.view(3, -1, weight.shape[1])  # [3, I, C]
        first = three.select(0, 0)
        c, beta = coefficients(rows, first, three.narrow(0, 1, 2), series)
        theta = project(rows, first)  # [B, N, I]
        moments = fused_moments(theta, z, c, series.first, series.gamma) if norm.kind != "fixed" else None  # [2, B, C]
        if norm_weight is None or norm_bias is None:
            mean, variance, gain, bias = unit(c, z.shape[0])
            fixed = mean, variance
        else:
            gain, bias = vector(norm_weight), vector(norm_bias)
            fixed = None if fixed is None else (fixed[0].float(), fixed[1].float())
        standard = standardise(norm, fixed, moments, c, row_sums, gain, bias, rows.shape[1], series)
        scale, shift = (expand_samples(t, x.shape[0]) for t in (standard.scale, standard.shift))
        out = fused_apply(residual, theta, z, c, scale, shift, series.first, series.gamma)
        kept = None if recompute else theta
        ctx.save_for_backward(rows, kept, weight, z, row_sums, norm_weight, c, beta, standard.p, standard.q, moments)
        ctx.series, ctx.norm, ctx.count, ctx.apart = series, norm, standard.number, x.dtype != dtype
        ctx.weight, ctx.z_weight = Like(theta_weight.shape, theta_weight.dtype), Like(z_weight.shape, z_weight.dtype)
        ctx.mark_non_differentiable(standard.mean, standard.variance)
        return from_rows(out, x.shape[2:]), standard.mean, standard.variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_none: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, theta, weight, z, row_sums, norm_weight, c, beta, _, _, moments = ctx.saved_tensors
        series, first, gamma = ctx.series, ctx.series.first, ctx.series.gamma
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError('the fused kernels have no second derivatives: take CGNL(..., backend="reference")')
        rows = to_rows(grad, is_last(x))  # [B, N, C]
        again = project(x, weight.narrow(0, 0, weight.shape[0] // 3)) if theta is None else theta
        means = moments.select(0, 0) if moments is not None else c.new_zeros((x.shape[0], z.shape[0]))  # [B, C]
        sums = fused_gradient_sums(rows, again, z, c, means, first, gamma)  # [2, B, C]
        del again
        norm = Block.norm_backward(ctx, sums)
        coefficient = norm.coefficient.view(*c.shape[:2], -1).sum(2)  # [B, G]
        dx, dweight, dz = fused_backward(
            rows, x, theta, weight, z, c, norm.factors, coefficient, first, series.alphas, gamma, series.constant, beta,
            not ctx.apart,
        )  # fmt: skip
        if ctx.apart:
            dx = rows + dx
        if row_sums is not None:
            dz = dz + norm.row_sums.unsqueeze(1)
        dprojections = dweight.to(ctx.weight.dtype).view(3, *ctx.weight.shape).unbind(0)
        dz = dz.to(ctx.z_weight.dtype).view(ctx.z_weight.shape)
        dnorm = (None, None) if norm_weight is None else (norm.weight, norm.bias)
        return from_rows(dx, grad.shape[2:]), *dprojections, dz, *dnorm, None, None, None, None, None

    @staticmethod
    def norm_backward(ctx: Any, sums: Tensor) -> Gradients:
        x, _, _, _, row_sums, weight, c, _, p, q, moments = ctx.saved_tensors
        series, positions = ctx.series, x.shape[1]
        weight = None if weight is None else vector(weight)
        if is_small(ctx.norm, x.shape[0]):
            factors, extra, grads = fused_batch_norm_backward(
                sums, moments, c, row_sums, weight, p, q, positions, series.first, series.dot
            )
            dweight, dbias, drows = grads.unbind(0)
            return Gradients(factors, extra, dweight, dbias, drows)
        first = expand_groups(c[..., 0], q.shape[-1])
        weight = torch.ones_like(p) if weight is None else weight
        rows = torch.zeros_like(p) if row_sums is None else row_sums
        return norms.backward(
            ctx.norm, p, q, ctx.count, weight, sums, moments, first if series.dot else None, first, rows, positions,
            series.groups,
        )  # fmt: skip
