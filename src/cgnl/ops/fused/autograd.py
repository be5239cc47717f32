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
from .launch import Series, aligned, is_last, project
from .norm import Norm, standardise, standardise_backward
from .operators import (
    fused_apply,
    fused_backward,
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


def to_rows(x: Tensor, last: bool | None = None) -> Tensor:
    """[B, C, *P] -> [B, N, C] with channels or positions last in memory, as they are in x unless told.

    Nothing is copied but what lies otherwise.
    """
    rows = x.flatten(2).transpose(1, 2)
    (batch, positions, channels), strides = rows.shape, rows.stride()
    if batch == 1 or strides[0] == positions * channels:
        if last is not False and strides[2] == 1 and (strides[1] == channels or positions == 1):
            return aligned(rows)
        if not last and strides[1] == 1 and strides[2] == positions:
            return aligned(rows)
    return rows.contiguous() if last else rows.mT.contiguous().mT


def from_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """[B, N, C] -> [B, C, *P]."""
    return rows.transpose(1, 2).view(shape)


def sum_rows(z: Tensor, series: Series) -> Tensor | None:
    return z.flatten(1).sum(1, dtype=torch.float32) if series.first == 0 else None


def matrix(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[O, I, 1, ..] -> [O, I]."""
    weight = weight.flatten(1)
    if weight.dtype != dtype or not weight.is_contiguous():
        weight = weight.to(dtype).contiguous()
    return aligned(weight)


def vector(numbers: Tensor) -> Tensor:
    """What a norm has for each channel, as kernels take it. [C]"""
    if numbers.dtype != torch.float32 or not numbers.is_contiguous():
        numbers = numbers.float().contiguous()
    return aligned(numbers)


def infer(x: Tensor, weights: Weights, dtype: torch.dtype, series: Series, fixed: list[Tensor], eps: float) -> Tensor:
    """x + norm(W_z y) without gradients; fixed is mean, variance, weight and bias, or nothing."""
    residual, row_sums = to_rows(x), sum_rows(weights.z, series)
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
        out = fused_apply(residual, project(rows, theta), z, c, standard.affine, series.first, series.gamma)
    return from_rows(out, x.shape)


def unit(like: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, weight and bias of a norm that changes nothing."""
    zero, one = like.new_zeros(channels), like.new_ones(channels)
    return zero, one, one, zero


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
        residual, row_sums = to_rows(x), sum_rows(z_weight, series)
        rows, z = residual if x.dtype == dtype else residual.to(dtype), matrix(z_weight, dtype)
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
        out = fused_apply(residual, theta, z, c, standard.affine, series.first, series.gamma)
        kept = None if recompute else theta
        ctx.save_for_backward(rows, kept, weight, z, row_sums, gain, c, beta, standard.p, standard.q, moments)
        ctx.series, ctx.norm, ctx.count = series, norm, standard.number
        ctx.apart, ctx.normed = x.dtype != dtype, norm_weight is not None
        ctx.weight, ctx.z_weight = Like(theta_weight.shape, theta_weight.dtype), Like(z_weight.shape, z_weight.dtype)
        ctx.mark_non_differentiable(standard.mean, standard.variance)
        if not torch.compiler.is_compiling():
            ctx.set_materialize_grads(False)  # or mean and variance would get zeros
        return from_rows(out, x.shape), standard.mean, standard.variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_none: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if grad is None:
            return (None,) * 12
        x, theta, weight, z, row_sums, gain, c, beta, p, q, moments = ctx.saved_tensors
        series, first, gamma = ctx.series, ctx.series.first, ctx.series.gamma
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError('the fused kernels have no second derivatives: take CGNL(..., backend="reference")')
        rows = to_rows(grad, is_last(x))  # [B, N, C]
        again = project(x, weight.narrow(0, 0, weight.shape[0] // 3)) if theta is None else theta
        means = c.new_zeros((x.shape[0], z.shape[0])) if moments is None else moments  # begins with [B, C]
        sums = fused_gradient_sums(rows, again, z, c, means, first, gamma)  # [2, B, C]
        del again
        norm = standardise_backward(ctx.norm, ctx.count, sums, moments, c, row_sums, gain, p, q, x.shape[1], series)
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
        dnorm = (norm.weight, norm.bias) if ctx.normed else (None, None)
        return from_rows(dx, grad.shape), *dprojections, dz, *dnorm, None, None, None, None, None
