"""The two halves of Theta (Phi^T g), and nothing larger than their inputs.

``power_sums`` is Phi^T g, ``polynomial`` is Theta times a short vector. Each is the other's adjoint, and a Gaussian
times a polynomial stays one when differentiated, so two operators serve forward, backward and every derivative beyond.
They keep only their inputs for backward.

Shapes: x and weight [B, G, C', *positions], any strides; sums and coefficients [B, G, K], one for each power of x from
``first`` to ``first + K - 1``. Sums, coefficients and values are float32, or float64 for float64 input. ``fused`` asks
for Triton kernels, which read each input once; they run where there are some for the input, here and in backward.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


def accumulation_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if one of the tensors is, else float32."""
    return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32


def power_sums(
    x: Tensor, weight: Tensor | None, terms: int, first: int = 0, gamma: float = 0.0, fused: bool = False
) -> Tensor:
    """sum_i exp(-gamma x_i^2) x_i^p weight_i over a group, for ``terms`` powers p from ``first``.

    A weight of None counts as ones. Returns [B, G, terms].
    """
    if _transformed():
        return _power_sums(x, weight, terms, first, gamma)
    return _power_sums_op(x, weight, terms, first, gamma, _unless_traced(fused))


def polynomial(
    x: Tensor,
    coefficients: Tensor,
    weight: Tensor | None = None,
    first: int = 0,
    gamma: float = 0.0,
    fused: bool = False,
) -> Tensor:
    """weight_i exp(-gamma x_i^2) sum_p coefficients_p x_i^p, p counted from ``first``. Returns x's shape."""
    if _transformed():
        return _polynomial(x, coefficients, weight, first, gamma)
    return _polynomial_op(x, coefficients, weight, first, gamma, _unless_traced(fused))


def _unless_traced(fused: bool) -> bool:
    """What is traced runs elsewhere, too."""
    return fused and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def _transformed() -> bool:
    """Whether plain tensor code is needed: by compilers and exporters, torch.func, forward-mode derivatives."""
    return torch.compiler.is_compiling() or under_function_transform()


def exporting() -> bool:
    """Whether torch.export follows what is computed, for inputs of every size."""
    return torch.compiler._is_exporting_flag  # not is_exporting(): the compiler of torch 2.11 takes that to be true


def under_function_transform() -> bool:
    """Whether torch.func or forward-mode differentiation follows what is computed."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        or torch.autograd.forward_ad._current_level >= 0
    )


def _run_power_sums(
    x: Tensor, weight: Tensor | None, terms: int, first: int, gamma: float, fused: bool = False
) -> Tensor:
    if fused and (kernels := _find_kernels(x, weight, highest=first + terms - 1)):
        return kernels.run_series("power_sums", x, weight, terms, first, gamma)
    return _power_sums(x, weight, terms, first, gamma, in_place=True)


def _run_polynomial(
    x: Tensor, coefficients: Tensor, weight: Tensor | None, first: int, gamma: float, fused: bool = False
) -> Tensor:
    highest = first + coefficients.shape[-1] - 1
    if fused and (kernels := _find_kernels(x, weight, coefficients, highest=highest)):
        return kernels.run_series("polynomial", x, coefficients, weight, first, gamma)
    return _polynomial(x, coefficients, weight, first, gamma, in_place=True)


def _find_kernels(*tensors: Tensor | None, highest: int) -> Any:
    """The module ``fused`` if it has kernels for these tensors."""
    from . import fused

    return fused if fused.why_not_series(*(t for t in tensors if t is not None), highest=highest) is None else None


def _power_sums(
    x: Tensor, weight: Tensor | None, terms: int, first: int, gamma: float, in_place: bool = False
) -> Tensor:
    dtype, positions = accumulation_dtype(x, weight), tuple(range(3, x.ndim))
    power = torch.ones_like(x, dtype=dtype) if weight is None else weight.to(dtype)  # [B, G, C', *P]
    if gamma:
        power = power * _envelope(x, gamma)
    sums = []
    for p in range(first + terms):
        if p:
            power = power.mul_(x) if in_place and power is not weight else power * x
        if p >= first:
            total = power.sum(positions) if positions else power  # sum(()) would be over every axis
            sums.append(total.sum(-1))  # positions before channels: fast for channels_last too
    return torch.stack(sums, -1)  # [B, G, K]


def _polynomial(
    x: Tensor, coefficients: Tensor, weight: Tensor | None, first: int, gamma: float, in_place: bool = False
) -> Tensor:
    dtype = accumulation_dtype(x, coefficients, weight)
    out = torch.empty_like(x, dtype=dtype) if in_place else None  # x's strides, whatever those of weight
    *lower, highest = coefficients.to(dtype).unflatten(-1, (-1,) + (1,) * (x.ndim - 2)).unbind(2)  # each [B, G, 1, ..]
    value = highest
    for c in reversed(lower):  # Horner's rule
        value = torch.addcmul(c, value, x, out=out)  # [B, G, C', *P]
    factors = [x] * first + ([weight] if weight is not None else []) + ([_envelope(x, gamma)] if gamma else [])
    for factor in factors:
        value = torch.mul(value, factor, out=out)
    if value is not highest:
        return value
    return torch.empty_like(x, dtype=dtype).copy_(value) if in_place else value.expand(x.shape).clone()


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


# Not torch.library.custom_op: its first call imports torch._dynamo, which takes seconds.
_library = torch.library.Library("cgnl", "DEF")
_FLAG = "bool fused=False) -> Tensor"
_library.define(f"power_sums(Tensor x, Tensor? weight, int terms, int first, float gamma, {_FLAG}")
_library.define(f"polynomial(Tensor x, Tensor coefficients, Tensor? weight, int first, float gamma, {_FLAG}")
_library.impl("power_sums", _run_power_sums, "CompositeExplicitAutograd")
_library.impl("polynomial", _run_polynomial, "CompositeExplicitAutograd")
_power_sums_op, _polynomial_op = torch.ops.cgnl.power_sums.default, torch.ops.cgnl.polynomial.default


@torch.library.register_fake("cgnl::power_sums", lib=_library)
def _(x, weight, terms, *_, **__):
    return x.new_empty((*x.shape[:2], terms), dtype=accumulation_dtype(x, weight))


@torch.library.register_fake("cgnl::polynomial", lib=_library)
def _(x, coefficients, weight, *_, **__):
    return torch.empty_like(x, dtype=accumulation_dtype(x, coefficients, weight))


def _save_inputs(ctx, inputs, output):  # noqa: ARG001
    tensors = [t for t in inputs if t is None or isinstance(t, Tensor)]
    ctx.save_for_backward(*tensors)
    *_, ctx.first, ctx.gamma, ctx.fused = inputs


def _power_sums_backward(ctx, grad):
    (x, weight), (first, gamma, fused) = ctx.saved_tensors, (ctx.first, ctx.gamma, ctx.fused)
    needs_x, needs_weight, *_ = ctx.needs_input_grad
    slope, lowest = _derivative(grad, first, gamma)
    grad_x = polynomial(x, slope, weight, lowest, gamma, fused).to(x.dtype) if needs_x else None
    grad_weight = polynomial(x, grad, None, first, gamma, fused).to(weight) if needs_weight else None
    return grad_x, grad_weight, None, None, None, None


def _polynomial_backward(ctx, grad):
    (x, coefficients, weight), (first, gamma, fused) = ctx.saved_tensors, (ctx.first, ctx.gamma, ctx.fused)
    needs_x, needs_coefficients, needs_weight, *_ = ctx.needs_input_grad
    weighted = grad if weight is None else grad * weight
    # The sums first: their scratch memory is free again when grad_x needs as much.
    grad_c = power_sums(x, weighted, coefficients.shape[-1], first, gamma, fused) if needs_coefficients else None
    slope, lowest = _derivative(coefficients, first, gamma)
    grad_x = polynomial(x, slope, weighted, lowest, gamma, fused).to(x.dtype) if needs_x else None
    grad_weight = polynomial(x, coefficients, grad, first, gamma, fused).to(weight) if needs_weight else None
    return grad_x, grad_c, grad_weight, None, None, None


torch.library.register_autograd("cgnl::power_sums", _power_sums_backward, setup_context=_save_inputs, lib=_library)
torch.library.register_autograd("cgnl::polynomial", _polynomial_backward, setup_context=_save_inputs, lib=_library)


# One multiply-add, two operations, for each element and power: the paper's N C (P + 1), twice.
@register_flop_formula(torch.ops.cgnl.power_sums)
def _(x_shape, weight_shape, terms, *_, **__):  # noqa: ARG001
    return 2 * math.prod(x_shape) * terms


@register_flop_formula(torch.ops.cgnl.polynomial)
def _(x_shape, coefficients_shape, *_, **__):
    return 2 * math.prod(x_shape) * coefficients_shape[-1]
