"""The whole block: which kernels follow one another, and how gradients come back.

x is [B, N, C], the projections' weights [I, C], those of z [C, I / G]; all of one dtype. ``residual`` is what the
branch is added to, where that is not x itself: x before autocast rounded it. ``row_sums`` are those of W_z, by which
the p = 0 term arrives, of weights that were not rounded: after a norm that cancels their size, how they were rounded
would be all that is left.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..kernels import Kernel
from . import norm as norms
from .batchnorm import MOST
from .machine import is_dot
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


class Series(NamedTuple):
    """The kernel, for so many positions and channels."""

    groups: int
    first: int
    alphas: tuple[float, ...]
    """Square roots of what the sums are multiplied by."""
    gamma: float
    constant: float
    dot: bool


def series_of(kernel: Kernel, groups: int, scale: str | None, positions: int, width: int) -> Series:
    first, alpha_squared = reference.leading(kernel)
    factor = reference.scale_factor(scale, positions, width)
    alphas = tuple(math.sqrt(a) * math.sqrt(factor) for a in alpha_squared)
    dot = is_dot(first, len(alphas), kernel.envelope)
    return Series(groups, first, alphas, kernel.envelope, kernel.constant, dot)


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


def of_channels(numbers: Tensor, channels: int) -> Tensor:
    """[B, G] -> [B, C]."""
    return numbers.repeat_interleave(channels // numbers.shape[1], 1)


def infer(
    x: Tensor,
    residual: Tensor,
    theta: Tensor,
    both: Tensor,
    z: Tensor,
    row_sums: Tensor | None,
    series: Series,
    fixed: list[Tensor],
    eps: float,
) -> Tensor:
    """residual + norm(W_z y) without gradients; fixed is mean, variance, weight and bias, or nothing."""
    c, _ = coefficients(x, theta, both, series)
    if z.shape[1] <= WIDEST:
        return fused_output(x, residual, theta, z, row_sums, c, fixed, eps, series.first, series.gamma)
    if is_whole(z, c, series.first, series.gamma):
        return fused_wide_output(x @ theta.t(), residual, z, c, fixed, eps)
    mean, variance, weight, bias = fixed or unit(c, len(z))
    standard = standardise(Norm("fixed", eps), (mean, variance), None, c, row_sums, weight, bias, x.shape[1], series)
    scale, shift = (t.expand(len(x), -1).contiguous() for t in (standard.scale, standard.shift))
    return fused_apply(residual, x @ theta.t(), z, c, scale, shift, series.first, series.gamma)


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
    if is_small(norm, len(c)):
        scale, shift, q, found = fused_batch_norm(
            moments, c, row_sums, weight, bias, positions, norm.eps, series.first, series.dot
        )
        mean, variance, p = found
        return Standard(scale, shift, q, mean, variance, p, float(len(c) * positions))
    first = of_channels(c[..., 0], len(weight))
    constant = None if row_sums is None else first * row_sums
    strength = first if series.dot else None
    return norms.standardise(norm, fixed, moments, strength, constant, weight, bias, positions, series.groups)


def is_small(norm: Norm, batch: int) -> bool:
    """Whether the norm is one that has kernels of its own."""
    return norm.kind == "batch" and norm.process_group is None and batch <= MOST


class Block(torch.autograd.Function):
    """residual + norm(W_z y), and the mean and variance that the norm took from the batch."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        z: Tensor,
        row_sums: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        fixed: tuple[Tensor, Tensor] | None,
        series: Series,
        norm: Norm,
        recompute: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        theta_weight, *_ = three = weight.unflatten(0, (3, -1))  # [3, I, C]
        c, beta = coefficients(x, theta_weight, three[1:], series)
        theta = x @ theta_weight.t()  # [B, N, I]
        moments = fused_moments(theta, z, c, series.first, series.gamma) if norm.kind != "fixed" else None  # [2, B, C]
        if norm_weight is None or norm_bias is None:
            mean, variance, gain, bias = unit(c, len(z))
            fixed = mean, variance
        else:
            gain, bias = norm_weight, norm_bias
        standard = standardise(norm, fixed, moments, c, row_sums, gain, bias, x.shape[1], series)
        scale, shift = (t.expand(len(x), -1).contiguous() for t in (standard.scale, standard.shift))
        out = fused_apply(x if residual is None else residual, theta, z, c, scale, shift, series.first, series.gamma)
        kept = None if recompute else theta
        ctx.save_for_backward(x, kept, weight, z, row_sums, norm_weight, c, beta, standard.p, standard.q, moments)
        ctx.series, ctx.norm, ctx.count, ctx.apart = series, norm, standard.number, residual is not None
        ctx.mark_non_differentiable(standard.mean, standard.variance)
        return out, standard.mean, standard.variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_none: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, theta, weight, z, row_sums, norm_weight, c, beta, _, _, moments = ctx.saved_tensors
        series, first, gamma = ctx.series, ctx.series.first, ctx.series.gamma
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError('the fused kernels have no second derivatives: take CGNL(..., backend="reference")')
        grad = grad.contiguous()
        again = x @ weight[: len(weight) // 3].t() if theta is None else theta
        means = moments[0] if moments is not None else c.new_zeros((len(x), len(z)))  # [B, C]
        sums = fused_gradient_sums(grad, again, z, c, means, first, gamma)  # [2, B, C]
        del again
        norm = Block.norm_backward(ctx, sums)
        coefficient = norm.coefficient.unflatten(1, (series.groups, -1)).sum(2)  # [B, G]
        dx, dweight, dz = fused_backward(
            grad, x, theta, weight, z, c, norm.factors, coefficient, first, series.alphas, gamma, series.constant, beta,
            not ctx.apart,
        )  # fmt: skip
        drows = None if row_sums is None else norm.row_sums
        dnorm = (None, None) if norm_weight is None else (norm.weight, norm.bias)
        return dx, grad if ctx.apart else None, dweight, dz.to(z.dtype), drows, *dnorm, None, None, None, None

    @staticmethod
    def norm_backward(ctx: Any, sums: Tensor) -> Gradients:
        x, _, _, _, row_sums, weight, c, _, p, q, moments = ctx.saved_tensors
        series, positions = ctx.series, x.shape[1]
        if is_small(ctx.norm, len(x)):
            factors, extra, grads = fused_batch_norm_backward(
                sums, moments, c, row_sums, weight, p, q, positions, series.first, series.dot
            )
            dweight, dbias, drows = grads
            return Gradients(factors, extra, dweight, dbias, drows)
        first = of_channels(c[..., 0], q.shape[-1])
        weight = torch.ones_like(p) if weight is None else weight
        rows = torch.zeros_like(p) if row_sums is None else row_sums
        return norms.backward(
            ctx.norm, p, q, ctx.count, weight, sums, moments, first if series.dot else None, first, rows, positions,
            series.groups,
        )  # fmt: skip
