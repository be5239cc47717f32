"""The kernels as operators of torch: shapes for compilers, costs for counters."""

# The views in the loop of backward are made in its first round.
# pyright: reportPossiblyUnboundVariable=false

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .attention import coefficients
from .backward import branch_backward, factors_backward, weight_backward
from .batchnorm import batch_norm, batch_norm_backward
from .branch import apply, gradient_sums, moments
from .launch import aligned, is_last
from .output import composes, output, wide_output

_library = torch.library.Library("cgnl", "FRAGMENT")


def backward(
    grad: Tensor,
    x: Tensor,
    theta: Tensor | None,
    weight: Tensor,
    z_weight: Tensor,
    c: Tensor,
    factors: Tensor,
    coefficient: Tensor,
    first: int,
    alphas: list[float],
    gamma: float,
    constant: float,
    beta: Tensor | None,
    residual: bool,
) -> tuple[Tensor, Tensor, Tensor]:
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
    coefficient: Tensor,
    dc: Tensor | None,
    c: Tensor,
    alphas: list[float],
    first: int,
    constant: float,
    beta: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the power sums [B, G, K], and of the sums of squares [B, G] under beta="norm"."""
    if dc is None:  # the dot kernel
        return (coefficient * (alphas[0] * alphas[0]) if alphas[0] != 1 else coefficient).unsqueeze(2), None
    if first == 0:
        dc.select(2, 0).add_(coefficient)
    ds = torch.stack([dc[..., i] * (a * a) for i, a in enumerate(alphas)], 2)
    if not constant or beta is None:
        return ds, None
    return ds * beta, -constant * (c * dc).sum(2)


def _define(function: Callable, fake: Callable, flops: Callable | None = None) -> Callable:
    """The operator ``fused_<name>`` for compilers and counters; all others call the function itself.

    What goes through torch's dispatcher costs Python as much as a kernel does. ``fake`` makes results without numbers,
    ``flops`` counts two operations for each multiply-add from the shapes of all tensors.
    """
    # Not torch.library.custom_op: its first call imports torch._dynamo, which takes seconds.
    name = f"fused_{function.__name__}"
    _library.define(name + torch.library.infer_schema(function, mutates_args=()))
    _library.impl(name, lambda *arguments: function(*map(_align, arguments)), "CompositeExplicitAutograd")
    torch.library.register_fake(f"cgnl::{name}", fake, lib=_library)
    packet = getattr(torch.ops.cgnl, name)
    if flops is not None:
        register_flop_formula(packet)(flops)
    operator = packet.default

    def call(*arguments):
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            return operator(*arguments)
        return function(*arguments)

    return call


def _align(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return aligned(argument)
    return [*map(_align, argument)] if isinstance(argument, list) else argument


def _like_first(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _like_second(_x: Tensor, residual: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(residual)


def _fake_coefficients(x, _weight, groups, _first, alphas, _gamma):
    return x.new_empty((len(x), groups, len(alphas)), dtype=torch.float32)


def _fake_moments(theta, z_weight, *_):
    return theta.new_empty((2, len(theta), len(z_weight)), dtype=torch.float32)


def _fake_gradient_sums(grad, *_):
    return grad.new_empty((2, len(grad), grad.shape[2]), dtype=torch.float32)


def _fake_batch_norm(moments, *_):
    _, batch, channels = moments.shape
    return moments.new_empty((3, batch, channels)), moments.new_empty((3, channels))


def _fake_batch_norm_backward(sums, *_):
    _, batch, channels = sums.shape
    return sums.new_empty((batch, 3, channels)), sums.new_empty((batch, channels)), sums.new_empty((3, channels))


def _fake_backward(_grad, x, _theta, weight, z_weight, *_):
    return torch.empty_like(x), *(torch.empty_like(t, dtype=torch.float32) for t in (weight, z_weight))


def _coefficients_flops(x, weight, _groups, _first, alphas, *_, **__):
    return 2 * math.prod(x[:2]) * weight[1] * (2 * x[2] + len(alphas))


def _output_flops(x, _residual, theta, z_weight, _row_sums, c, *_, **__):
    return 2 * math.prod(x[:2]) * (theta[0] * (x[2] + c[2]) + math.prod(z_weight))


def _wide_output_flops(x, _residual, theta, z_weight, *_, **__):
    channels, inner = x[2], theta[0]
    each = channels**2 if composes(channels, inner, z_weight[1]) else inner * channels + math.prod(z_weight)
    return 2 * math.prod(x[:2]) * (each + channels)


def _apply_flops(_residual, theta, z_weight, c, *_, **__):
    return 2 * math.prod(theta[:2]) * (theta[2] * c[2] + math.prod(z_weight))


def _backward_flops(_grad, x, _theta, weight, z_weight, c, *_, **__):
    return 2 * math.prod(x[:2]) * (2 * math.prod(weight) + 2 * math.prod(z_weight) + weight[0] * c[2])


fused_coefficients = _define(coefficients, _fake_coefficients, _coefficients_flops)
fused_output = _define(output, _like_second, _output_flops)
fused_wide_output = _define(wide_output, _like_second, _wide_output_flops)
fused_moments = _define(moments, _fake_moments)
fused_apply = _define(apply, _like_first, _apply_flops)
fused_gradient_sums = _define(gradient_sums, _fake_gradient_sums)
fused_batch_norm = _define(batch_norm, _fake_batch_norm)
fused_batch_norm_backward = _define(batch_norm_backward, _fake_batch_norm_backward)
fused_backward = _define(backward, _fake_backward, _backward_flops)
