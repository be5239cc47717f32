"""The kernels as operators of torch: shapes for compilers, costs for counters."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .attention import coefficients
from .backward import branch_backward, factors_backward, weight_backward
from .batchnorm import backward, standardise
from .branch import apply, gradient_sums, moments
from .launch import aligned, is_last, project
from .output import composes, output, wide_output

_library = torch.library.Library("cgnl", "FRAGMENT")


def _backward(
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
    inner = weight.shape[0] // 3
    dx, total, total_z = torch.empty_like(x), None, None
    samples, parts = x.shape[0], count_parts(x, theta is not None)
    count = -(-samples // parts)
    for start in range(0, samples, count):

        def part(t: Tensor, axis: int = 0, start: int = start) -> Tensor:
            return t if parts == 1 else t.narrow(axis, start, min(count, samples - start))

        grad_, x_, dx_, theta_ = part(grad), part(x), part(dx), theta if theta is None else part(theta)
        c_, factors_, coefficient_ = aligned(part(c)), part(factors, 1).contiguous(), part(coefficient)
        flat = x.new_empty((*x_.shape[:2], 3 * inner))  # [B, N, 3 I]
        new_theta, phi, g = flat.split(inner, 2)
        if theta_ is None:
            project(x_, weight, flat)
        else:
            project(x_, weight.narrow(0, inner, 2 * inner), flat.narrow(2, inner, 2 * inner))
        old_theta = new_theta if theta_ is None else theta_
        before = old_theta.clone() if constant and theta_ is None else old_theta
        dz, dc = branch_backward(
            grad_, old_theta, z_weight, c_, factors_, new_theta, dx_ if residual else None, first, gamma
        )
        total_z = dz if total_z is None else total_z.add_(dz)
        ds, squares = _sums_backward(
            coefficient_, dc, c_, alphas, first, constant, beta if beta is None else part(beta)
        )
        if squares is not None:
            new_theta.add_((2 * squares).repeat_interleave(inner // c.shape[1], 1).unsqueeze(1) * before)
        factors_backward(phi, g, aligned(ds), squares, first, gamma)
        if is_last(x):
            out = dx_.flatten(0, 1)
            torch.addmm(out, flat.flatten(0, 1), weight, beta=1 if residual else 0, out=out)
        else:
            dx_.baddbmm_(flat, weight.expand(len(x_), -1, -1), beta=1 if residual else 0)
        dw = weight_backward(flat, x_)
        total = dw if total is None else total.add_(dw)
        del flat, new_theta, old_theta, before, phi, g, dz, dw  # before the next part takes as much
    assert total is not None
    assert total_z is not None
    return dx, total, total_z


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
        dc = torch.cat((dc[..., :1] + coefficient.unsqueeze(2), dc[..., 1:]), 2)
    ds = torch.stack([dc[..., i] * (a * a) for i, a in enumerate(alphas)], 2)
    if not constant or beta is None:
        return ds, None
    return ds * beta, -constant * (c * dc).sum(2)


def _define(schema: str, function: Callable) -> Callable:
    """An operator of this schema, called by compilers and counters; all others call the function itself.

    What goes through torch's dispatcher costs Python as much as a kernel does.
    """
    # Not torch.library.custom_op: its first call imports torch._dynamo, which takes seconds.
    _library.define(schema)
    name = schema.partition("(")[0]
    _library.impl(name, lambda *arguments: function(*map(_align, arguments)), "CompositeExplicitAutograd")
    operator = getattr(torch.ops.cgnl, name).default

    def call(*arguments):
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            return operator(*arguments)
        return function(*arguments)

    return call


def _align(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return aligned(argument)
    return [*map(_align, argument)] if isinstance(argument, list) else argument


fused_coefficients = _define(
    "fused_coefficients(Tensor x, Tensor weight, int groups, int first, float[] alphas, float gamma) -> Tensor",
    coefficients,
)
fused_output = _define(
    "fused_output(Tensor x, Tensor residual, Tensor theta, Tensor z_weight, Tensor? row_sums, Tensor c, Tensor[] norm, "
    "float eps, int first, float gamma) -> Tensor",
    output,
)
fused_wide_output = _define(
    "fused_wide_output(Tensor x, Tensor residual, Tensor theta, Tensor z_weight, Tensor c, Tensor[] norm, float eps) "
    "-> Tensor",
    wide_output,
)
fused_moments = _define(
    "fused_moments(Tensor theta, Tensor z_weight, Tensor c, int first, float gamma) -> Tensor",
    moments,
)
fused_apply = _define(
    "fused_apply(Tensor residual, Tensor theta, Tensor z_weight, Tensor c, Tensor scale, Tensor shift, int first, "
    "float gamma) -> Tensor",
    apply,
)
fused_gradient_sums = _define(
    "fused_gradient_sums(Tensor grad, Tensor theta, Tensor z_weight, Tensor c, Tensor means, int first, float gamma) "
    "-> Tensor",
    gradient_sums,
)
fused_batch_norm = _define(
    "fused_batch_norm(Tensor moments, Tensor c, Tensor? row_sums, Tensor weight, Tensor bias, int positions, "
    "float eps, int first, bool dot) -> (Tensor, Tensor, Tensor, Tensor)",
    standardise,
)
fused_batch_norm_backward = _define(
    "fused_batch_norm_backward(Tensor sums, Tensor moments, Tensor c, Tensor? row_sums, Tensor weight, Tensor p, "
    "Tensor q, int positions, int first, bool dot) -> (Tensor, Tensor, Tensor)",
    backward,
)
fused_backward = _define(
    "fused_backward(Tensor grad, Tensor x, Tensor? theta, Tensor weight, Tensor z_weight, Tensor c, Tensor factors, "
    "Tensor coefficient, int first, float[] alphas, float gamma, float constant, Tensor? beta, bool residual) "
    "-> (Tensor, Tensor, Tensor)",
    _backward,
)


@torch.library.register_fake("cgnl::fused_coefficients", lib=_library)
def _(x, weight, groups, first, alphas, gamma):  # noqa: ARG001
    return x.new_empty((len(x), groups, len(alphas)), dtype=torch.float32)


@torch.library.register_fake("cgnl::fused_output", lib=_library)
def _(x, residual, *_):  # noqa: ARG001
    return torch.empty_like(residual)


@torch.library.register_fake("cgnl::fused_wide_output", lib=_library)
def _(x, residual, *_):  # noqa: ARG001
    return torch.empty_like(residual)


@torch.library.register_fake("cgnl::fused_moments", lib=_library)
def _(theta, z_weight, *_):
    return theta.new_empty((2, len(theta), len(z_weight)), dtype=torch.float32)


@torch.library.register_fake("cgnl::fused_apply", lib=_library)
def _(residual, *_):
    return torch.empty_like(residual)


@torch.library.register_fake("cgnl::fused_gradient_sums", lib=_library)
def _(grad, *_):
    return grad.new_empty((2, len(grad), grad.shape[2]), dtype=torch.float32)


@torch.library.register_fake("cgnl::fused_batch_norm", lib=_library)
def _(moments, *_):
    each = torch.empty_like(moments[0])
    return each, torch.empty_like(each), torch.empty_like(each), moments.new_empty((3, moments.shape[2]))


@torch.library.register_fake("cgnl::fused_batch_norm_backward", lib=_library)
def _(sums, *_):
    _, batch, channels = sums.shape
    return sums.new_empty((3, batch, channels)), sums.new_empty((batch, channels)), sums.new_empty((3, channels))


@torch.library.register_fake("cgnl::fused_backward", lib=_library)
def _(grad, x, theta, weight, z_weight, *_):  # noqa: ARG001
    weights = (torch.empty_like(t, dtype=torch.float32) for t in (weight, z_weight))
    return torch.empty_like(x), *weights


# Two operations for each multiply-add.
@register_flop_formula(torch.ops.cgnl.fused_coefficients)
def _(x_shape, weight_shape, groups, first, alphas, *_, **__):  # noqa: ARG001
    return 2 * math.prod(x_shape[:2]) * weight_shape[1] * (2 * x_shape[2] + len(alphas))


@register_flop_formula(torch.ops.cgnl.fused_output)
def _(x_shape, residual_shape, theta_shape, z_shape, row_sums_shape, c_shape, *_, **__):  # noqa: ARG001
    return 2 * math.prod(x_shape[:2]) * (theta_shape[0] * (x_shape[2] + c_shape[2]) + math.prod(z_shape))


@register_flop_formula(torch.ops.cgnl.fused_wide_output)
def _(x_shape, residual_shape, theta_shape, z_shape, *_, **__):  # noqa: ARG001
    channels, inner = x_shape[2], theta_shape[0]
    each = channels**2 if composes(channels, inner, z_shape[1]) else inner * channels + math.prod(z_shape)
    return 2 * math.prod(x_shape[:2]) * (each + channels)


@register_flop_formula(torch.ops.cgnl.fused_apply)
def _(residual_shape, theta_shape, z_shape, c_shape, *_, **__):  # noqa: ARG001
    return 2 * math.prod(theta_shape[:2]) * (theta_shape[2] * c_shape[2] + math.prod(z_shape))


@register_flop_formula(torch.ops.cgnl.fused_backward)
def _(grad_shape, x_shape, theta_shape, weight_shape, z_shape, c_shape, *_, **__):  # noqa: ARG001
    each = 2 * math.prod(weight_shape) + 2 * math.prod(z_shape) + weight_shape[0] * c_shape[2]
    return 2 * math.prod(x_shape[:2]) * each
