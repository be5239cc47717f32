"""The two halves of Theta (Phi^T g), and nothing larger than their inputs.

``power_sums`` is Phi^T g, ``polynomial`` is Theta times a short vector. Each is the other's adjoint, and a Gaussian
times a polynomial stays one when differentiated, so two operators serve forward, backward and every derivative beyond.
They keep only their inputs for backward.

Shapes: x and weight [B, G, C', *positions], any strides; sums and coefficients [B, G, K], one for each power of x from
``first`` to ``first + K - 1``. Sums, coefficients and values are float32, or float64 for float64 input.
"""

import math

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


def accumulation_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if one of the tensors is, else float32."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32


def power_sums(x: Tensor, weight: Tensor | None, terms: int, first: int = 0, gamma: float = 0.0) -> Tensor:
    """sum_i exp(-gamma x_i^2) x_i^p weight_i over a group, for ``terms`` powers p from ``first``.

    A weight of None counts as ones. Returns [B, G, terms].
    """
    if torch.compiler.is_compiling():  # in the open, for the compiler to fuse and for exporters to read
        return _power_sums(x, weight, terms, first, gamma, in_place=False)
    return _power_sums_op(x, weight, terms, first, gamma)


def polynomial(
    x: Tensor, coefficients: Tensor, weight: Tensor | None = None, first: int = 0, gamma: float = 0.0
) -> Tensor:
    """weight_i exp(-gamma x_i^2) sum_p coefficients_p x_i^p, p counted from ``first``. Returns x's shape."""
    if torch.compiler.is_compiling():
        return _polynomial(x, coefficients, weight, first, gamma, in_place=False)
    return _polynomial_op(x, coefficients, weight, first, gamma)


def _power_sums(x: Tensor, weight: Tensor | None, terms: int, first: int, gamma: float, in_place: bool) -> Tensor:
    dtype, axes = accumulation_dtype(x, weight), tuple(range(2, x.ndim))
    power = torch.ones_like(x, dtype=dtype) if weight is None else weight.to(dtype)  # [B, G, C', *P]
    if gamma:
        power = power * _envelope(x, gamma)
    sums = []
    for p in range(first + terms):
        if p:
            power = power.mul_(x) if in_place and power is not weight else power * x
        if p >= first:
            sums.append(power.sum(axes))
    return torch.stack(sums, -1)  # [B, G, K]


def _polynomial(
    x: Tensor, coefficients: Tensor, weight: Tensor | None, first: int, gamma: float, in_place: bool
) -> Tensor:
    *lower, highest = coefficients.unflatten(-1, (-1,) + (1,) * (x.ndim - 2)).unbind(2)  # each [B, G, 1, ..]
    value = highest
    for c in reversed(lower):  # Horner's rule
        value = torch.addcmul(c, value, x, out=value if in_place and value is not highest else None)  # [B, G, C', *P]
    factors = [x] * first + ([weight] if weight is not None else []) + ([_envelope(x, gamma)] if gamma else [])
    for factor in factors:
        value = value.mul_(factor) if in_place and value is not highest else value * factor
    return value.expand_as(x).clone() if value is highest else value


def _envelope(x: Tensor, gamma: float) -> Tensor:
    return x.to(accumulation_dtype(x)).square().mul(-gamma).exp()  # [B, G, C', *P]


def _derivative(coefficients: Tensor, first: int, gamma: float) -> tuple[Tensor, int]:
    """(c, first) of d/dx exp(-gamma x^2) sum_p c_p x^p, under the same envelope: p c_p goes down, -2 gamma c_p up."""
    c = dict(enumerate(coefficients.unbind(-1), first))  # power -> [B, G]
    lowest, highest = max(first - 1, 0), max(c) + (1 if gamma else -1)
    terms = []
    for p in range(lowest, max(highest, lowest) + 1):
        term = torch.zeros_like(coefficients[..., 0])
        if p + 1 in c:
            term = term + (p + 1) * c[p + 1]
        if gamma and p - 1 in c:
            term = term - 2 * gamma * c[p - 1]
        terms.append(term)
    return torch.stack(terms, -1), lowest


@torch.library.custom_op("cgnl::power_sums", mutates_args=())
def _power_sums_op(x: Tensor, weight: Tensor | None, terms: int, first: int, gamma: float) -> Tensor:
    return _power_sums(x, weight, terms, first, gamma, in_place=True)


@torch.library.custom_op("cgnl::polynomial", mutates_args=())
def _polynomial_op(x: Tensor, coefficients: Tensor, weight: Tensor | None, first: int, gamma: float) -> Tensor:
    return _polynomial(x, coefficients, weight, first, gamma, in_place=True)


@_power_sums_op.register_fake
def _(x, weight, terms, first, gamma):  # noqa: ARG001
    return x.new_empty((*x.shape[:2], terms), dtype=accumulation_dtype(x, weight))


@_polynomial_op.register_fake
def _(x, coefficients, weight, first, gamma):  # noqa: ARG001
    return torch.empty_like(x, dtype=accumulation_dtype(x, coefficients, weight))


def _save_inputs(ctx, inputs, output):  # noqa: ARG001
    tensors = [t for t in inputs if t is None or isinstance(t, Tensor)]
    ctx.save_for_backward(*tensors)
    *_, ctx.first, ctx.gamma = inputs


def _power_sums_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, *_ = ctx.needs_input_grad
    slope, lowest = _derivative(grad, ctx.first, ctx.gamma)
    grad_x = polynomial(x, slope, weight, lowest, ctx.gamma).to(x.dtype) if needs_x else None
    grad_weight = polynomial(x, grad, None, ctx.first, ctx.gamma).to(weight) if needs_weight else None
    return grad_x, grad_weight, None, None, None


def _polynomial_backward(ctx, grad):
    x, coefficients, weight = ctx.saved_tensors
    needs_x, needs_coefficients, needs_weight, *_ = ctx.needs_input_grad
    weighted = grad if weight is None else grad * weight
    slope, lowest = _derivative(coefficients, ctx.first, ctx.gamma)
    grad_x = polynomial(x, slope, weighted, lowest, ctx.gamma).to(x.dtype) if needs_x else None
    grad_c = power_sums(x, weighted, coefficients.shape[-1], ctx.first, ctx.gamma) if needs_coefficients else None
    grad_weight = polynomial(x, coefficients, grad, ctx.first, ctx.gamma).to(weight) if needs_weight else None
    return grad_x, grad_c, grad_weight, None, None


_power_sums_op.register_autograd(_power_sums_backward, setup_context=_save_inputs)
_polynomial_op.register_autograd(_polynomial_backward, setup_context=_save_inputs)


# One multiply-add, two operations, for each element and power: the paper's N C (P + 1), twice.
@register_flop_formula(torch.ops.cgnl.power_sums)
def _(x_shape, weight_shape, terms, *_, **__):  # noqa: ARG001
    return 2 * math.prod(x_shape) * terms


@register_flop_formula(torch.ops.cgnl.polynomial)
def _(x_shape, coefficients_shape, *_, **__):
    return 2 * math.prod(x_shape) * coefficients_shape[-1]
