"""The whole block: which kernels follow one another, and how gradients come back.

    forward    X --power_sums, total--> c = Phi^T g      [B, G, K]     attention.py
               X W_theta^T --> theta                     [B, N, I]     cuBLAS
               theta, c --moments--> of z = W_z y        [2, B, C]     branch.py: z itself is never written
               moments --batch_norm--> scale, shift      [B, C]        batchnorm.py, or norm.py for the others
               X, theta, c --apply--> X + scale z + shift              branch.py
    inference  X, c --output--> X + norm(W_z y)                        output.py: theta is not written either
    backward   dO, theta --gradient_sums--> of dO, dO z  [2, B, C]     branch.py
               these --batch_norm--> a, u, v of dz = a dO + u + v z    batchnorm.py, or norm.py
               for a part of the samples at a time:                    fused_backward
               X W_phi^T, X W_g^T --> phi, g             [B, N, I]     cuBLAS, recomputed
               dO, theta --branch--> dtheta, dW_z, dc                  backward.py
               phi, g, dc --factors--> dphi, dg                        backward.py: in their places
               dtheta, dphi, dg --> dX, dW                             cuBLAS

Tensors come and go as the block has them. In between x is [B, N, C], the projections' weights are [I, C], those of z
[C, I / G], all rounded to one dtype; what the branch is added to is not rounded. ``row_sums`` are those of W_z, by
which the p = 0 term arrives, of weights that were not rounded: after a norm that cancels their size, how they were
rounded would be all that is left.
"""

import math
from typing import Any

import torch
from torch import Tensor

from . import Weights, without_autocast
from .attention import fused_coefficients
from .backward import branch_backward, factors_backward, weight_backward
from .branch import fused_apply, fused_gradient_sums, fused_moments
from .launch import Series, aligned, is_last, project
from .norm import Norm, standardise, standardise_backward
from .operators import torch_operator
from .output import fused_output, fused_wide_output, is_whole

WIDEST = 128
"""Inner channels of a group that ``fused_output`` can hold."""


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
    if z.shape[1] <= WIDEST and dtype != torch.float32:  # as in ``attention``
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
        ctx: Any, x: Tensor, theta_weight: Tensor, phi_weight: Tensor, g_weight: Tensor, z_weight: Tensor,
        norm_weight: Tensor | None, norm_bias: Tensor | None, fixed: tuple[Tensor, Tensor] | None, dtype: torch.dtype,
        series: Series, norm: Norm, recompute: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
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
        ctx.shapes, ctx.dtypes = (theta_weight.shape, z_weight.shape), (theta_weight.dtype, z_weight.dtype)
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
        with without_autocast(x):
            again = project(x, weight.narrow(0, 0, weight.shape[0] // 3)) if theta is None else theta
        means = c.new_zeros((x.shape[0], z.shape[0])) if moments is None else moments  # begins with [B, C]
        sums = fused_gradient_sums(rows, again, z, c, means, first, gamma)  # [2, B, C]
        del again
        norm = standardise_backward(ctx.norm, ctx.count, sums, moments, c, row_sums, gain, p, q, x.shape[1], series)
        coefficient = norm.coefficient.view(*c.shape[:2], -1).sum(2)  # [B, G]
        with without_autocast(x):
            dx, dweight, dz = fused_backward(
                rows, x, theta, weight, z, c, norm.factors, coefficient, first, series.alphas, gamma, series.constant,
                beta, not ctx.apart,
            )  # fmt: skip
        if ctx.apart:
            dx = rows + dx
        if row_sums is not None:
            dz = dz + norm.row_sums.unsqueeze(1)
        (shape, z_shape), (dtype, z_dtype) = ctx.shapes, ctx.dtypes
        dprojections, dz = dweight.to(dtype).view(3, *shape).unbind(0), dz.to(z_dtype).view(z_shape)
        dnorm = (norm.weight, norm.bias) if ctx.normed else (None, None)
        return from_rows(dx, grad.shape), *dprojections, dz, *dnorm, None, None, None, None, None


@torch_operator(
    fake=lambda _grad, x, _theta, weight, z_weight, *_: (
        torch.empty_like(x),
        *(torch.empty_like(t, dtype=torch.float32) for t in (weight, z_weight)),
    ),
    flops=lambda _grad, x, _theta, weight, z_weight, c, *_: (
        2 * math.prod(x[:2]) * (2 * math.prod(weight) + 2 * math.prod(z_weight) + weight[0] * c[2])
    ),
)
def fused_backward(
    grad: Tensor, x: Tensor, theta: Tensor | None, weight: Tensor, z_weight: Tensor, c: Tensor, factors: Tensor,
    coefficient: Tensor, first: int, alphas: list[float], gamma: float, constant: float, beta: Tensor | None,
    residual: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dX, and in float32 the gradient of the stacked projections and dW_z.

    A part of the samples at a time: theta, phi and g, recomputed where they were not kept, become their gradients.
    ``coefficient`` is what is known already of the first coefficient's gradient, [B, G].
    """
    inner, samples, last = weight.shape[0] // 3, x.shape[0], is_last(x)
    parts, dx, total, total_z = min(samples, count_parts(x, theta is not None)), torch.empty_like(x), None, None
    count, scale = -(-samples // parts), 1 if residual else 0
    again = (weight if theta is None else weight.narrow(0, inner, 2 * inner)).t()  # what is projected again
    whole = x.new_empty((count, x.shape[1], 3 * inner))  # of one part after the other
    none = [None] * -(-samples // count)
    given = (grad, x, dx, theta, c, factors, coefficient, beta)
    each = [none if t is None else [t] if parts == 1 else t.chunk(parts) for t in given]
    flat = None
    for grad_, x_, dx_, theta_, c_, factors_, coefficient_, beta_ in zip(*each, strict=True):
        if flat is None or flat.shape[0] != x_.shape[0]:
            flat = whole.narrow(0, 0, x_.shape[0])
            new_theta, phi, g = flat.chunk(3, 2)
            projected = flat if theta is None else flat.narrow(2, inner, 2 * inner)
            flat_rows, projected_rows = flat.view(-1, 3 * inner), projected.view(-1, again.shape[1])
        if last:
            rows, out = x_.view(-1, x.shape[2]), dx_.view(-1, x.shape[2])
            torch.mm(rows, again, out=projected_rows)
        else:
            torch.bmm(x_, again.expand(x_.shape[0], -1, -1), out=projected)
        old_theta = new_theta if theta_ is None else theta_
        before = old_theta.clone() if constant and theta_ is None else old_theta
        c_ = aligned(c_)
        dz, dc = branch_backward(
            grad_, old_theta, z_weight, c_, factors_, new_theta, dx_ if residual else None, first, gamma
        )
        total_z = dz if total_z is None else total_z.add_(dz)
        ds, squares = _sums_backward(coefficient_, dc, c_, alphas, first, constant, beta_)
        if squares is not None:
            new_theta.add_((2 * squares).repeat_interleave(inner // c.shape[1], 1).unsqueeze(1) * before)
        factors_backward(phi, g, aligned(ds), squares, first, gamma)
        if last:
            torch.addmm(out, flat_rows, weight, beta=scale, out=out)
            dw = _product(flat_rows.t(), rows)
        else:
            dx_.baddbmm_(flat, weight.expand(x_.shape[0], -1, -1), beta=scale)
            dw = weight_backward(flat, x_)
        total = dw if total is None else total.add_(dw)
        del before, dz, dw  # before the next part takes as much
    assert total is not None
    assert total_z is not None
    return dx, total, total_z


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product in float32."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def count_parts(x: Tensor, kept: bool) -> int:
    """How many parts the samples are cut into, so that the scratch memory stays well below that of X."""
    return 1 if x.numel() * x.element_size() < 2**24 else 2 if kept else 4


def _sums_backward(
    coefficient: Tensor, dc: Tensor | None, c: Tensor, alphas: list[float], first: int, constant: float,
    beta: Tensor | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the power sums [B, G, K], and of the sums of squares [B, G] under beta="norm"."""
    if dc is None:  # the dot kernel
        return (coefficient * (alphas[0] * alphas[0]) if alphas[0] != 1 else coefficient).unsqueeze(2), None
    if first == 0:
        dc.select(2, 0).add_(coefficient)
    ds = torch.stack([dc[..., i] * (a * a) for i, a in enumerate(alphas)], 2)
    if not constant or beta is None:
        return ds, None
    return ds * beta, -constant * (c * dc).sum(2)
