"""The operator Theta (Phi^T g) for theta, phi and g of any strides: two kernels forward, two backward.

The two forward kernels also serve as ``ops.series.power_sums`` and ``polynomial``, of which all else is made: the
operator with normalised rows or split over ranks, and the reference block.

    sums   phi, g -> Phi^T g, a row of sums for each part of a sample and group
    apply  theta, sums -> y
    back   dy, theta, sums -> dtheta, and the gradient of Phi^T g, again in parts
    back   phi, g, these parts -> dphi, dg

A program takes BLOCK elements of one sample and group, and adds up the parts that it needs by itself. Nothing is added
atomically, so results are the same bits each time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, Series, aligned, cdiv, plan, power_of_two
from .series import envelope


class Plane(NamedTuple):
    """A tensor [B, G, C', N] as kernels see it: its elements, and how far apart they lie."""

    base: Tensor
    sample: int
    group: int
    fast: int  # between elements of a row: along the axis of positions, or of channels where these come last in memory
    slow: int  # between rows


class Form(NamedTuple):
    """What kernels know when they are compiled."""

    first: int  # the lowest power with a coefficient
    terms: int
    alphas: tuple[float, ...]  # square roots of what the sums are multiplied by
    gamma: float
    row: bool  # whether the elements of a sample and group follow one another without gaps
    weighted: bool  # whether there is a weight for each element, or they all count as one


@triton.jit
def find_place(plane, form, length, BLOCK: tl.constexpr):
    """Where this program's elements lie. [BLOCK]"""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = plane.base + tl.program_id(2).to(tl.int64) * plane.sample + tl.program_id(1).to(tl.int64) * plane.group
    return place + (e if form.row else (e // length) * plane.slow + (e % length) * plane.fast)


@triton.jit
def load_elements(plane, form, size, length, BLOCK: tl.constexpr):
    """This program's elements in float32, zeros beyond the last. [BLOCK]"""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return tl.load(find_place(plane, form, length, BLOCK), e < size, 0.0).to(tl.float32)


@triton.jit
def store_elements(plane, values, form, size, length, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(find_place(plane, form, length, BLOCK), values.to(plane.base.dtype.element_ty), e < size)


@triton.jit
def store_sums(out, x, weight, form):
    """sum_i exp(-gamma x_i^2) x_i^p weight_i of this part, for each power p."""
    group = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    out += (group * tl.num_programs(0) + tl.program_id(0)) * form.terms
    if form.gamma > 0:
        weight *= envelope(x, form.gamma)
    for p in tl.static_range(form.first + form.terms):
        if p > 0:
            weight *= x
        if p >= form.first:
            tl.store(out + (p - form.first), tl.sum(weight))


@triton.jit
def coefficient(sums, i: tl.constexpr, parts, form, PARTS: tl.constexpr):
    """alpha^2 times the sum over the parts of this sample and group; alpha twice, since its square can underflow."""
    group = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    part = tl.arange(0, PARTS)
    total = tl.sum(tl.load(sums + (group * parts + part) * form.terms + i, part < parts, 0.0))
    return total * form.alphas[i] * form.alphas[i]


@triton.jit
def value_and_slope(x, sums, parts, form, PARTS: tl.constexpr):
    """exp(-gamma x^2) sum_p c_p x^p, and its derivative by x. [BLOCK]"""
    value, slope = x * 0, x * 0
    for i in tl.static_range(form.terms):  # Horner's rule, from the highest power down
        slope = slope * x + value
        value = value * x + coefficient(sums, form.terms - 1 - i, parts, form, PARTS)
    for _ in tl.static_range(form.first):
        slope = slope * x + value
        value = value * x
    if form.gamma > 0:
        bell = envelope(x, form.gamma)
        slope = (slope - x * value * (2 * form.gamma)) * bell
        value *= bell
    return value, slope


@triton.jit
def operator_sums_fwd_kernel(phi, g, sums, size, length, form, BLOCK: tl.constexpr):
    """``sums = (exp(-gamma * phi**2) * phi**p * g).sum()`` of each part: [B, G, parts, terms]"""
    x = load_elements(phi, form, size, length, BLOCK)
    if form.weighted:
        weight = load_elements(g, form, size, length, BLOCK)
    else:
        e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        weight = (e < size).to(tl.float32)
    store_sums(sums, x, weight, form)


@triton.jit
def operator_apply_fwd_kernel(
    theta, y, weight, sums, size, length, parts, form, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """``y = weight * exp(-gamma * theta**2) * sum(c[p] * theta**p)``."""
    x = load_elements(theta, form, size, length, BLOCK)
    value, _ = value_and_slope(x, sums, parts, form, PARTS)
    if form.weighted:
        value *= load_elements(weight, form, size, length, BLOCK)
    store_elements(y, value, form, size, length, BLOCK)


@triton.jit
def operator_theta_bwd_kernel(
    theta, dy, dtheta, sums, dsums, size, length, parts, form, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """``dtheta = dy * dy_dtheta`` and ``dc[p] = (dy * exp(-gamma * theta**2) * theta**p).sum()`` of each part."""
    x, grad = load_elements(theta, form, size, length, BLOCK), load_elements(dy, form, size, length, BLOCK)
    _, slope = value_and_slope(x, sums, parts, form, PARTS)
    store_elements(dtheta, grad * slope, form, size, length, BLOCK)
    store_sums(dsums, x, grad, form)


@triton.jit
def operator_factors_bwd_kernel(
    phi, g, dphi, dg, dsums, size, length, parts, form, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """``dg = exp(-gamma * phi**2) * sum(dc[p] * phi**p)`` and ``dphi = g * ddg_dphi``."""
    x, weight = load_elements(phi, form, size, length, BLOCK), load_elements(g, form, size, length, BLOCK)
    value, slope = value_and_slope(x, dsums, parts, form, PARTS)
    store_elements(dg, value, form, size, length, BLOCK)
    store_elements(dphi, weight * slope, form, size, length, BLOCK)


BLOCK = 4096
"""Elements of a program."""
PARTS = 64
"""Parts of a sample and group that each program adds up by itself; more are added up once."""
KERNELS = {
    "sums_fwd": operator_sums_fwd_kernel,
    "apply_fwd": operator_apply_fwd_kernel,
    "theta_bwd": operator_theta_bwd_kernel,
    "factors_bwd": operator_factors_bwd_kernel,
}


@plan
def make_plan(
    name: str,
    shape: torch.Size,
    series: Series,
    strides: tuple[tuple[int, int, int], ...],
    dtypes: tuple[torch.dtype, ...],  # noqa: ARG001
    device: torch.device,  # noqa: ARG001
    parts: int,
    weighted: bool,
) -> tuple[list[tuple[int, int, int, int]], Launch]:
    """The strides of each plane, and the launch. All tensors are read in the order of the first one's memory."""
    (batch, channels, positions), (groups, first, alphas, gamma, *_) = shape, series
    width, terms = channels // groups, len(alphas)
    size, programs = width * positions, cdiv(width * positions, BLOCK)
    last = strides[0][1] < strides[0][2]  # whether channels come last in memory
    length = width if last else positions
    planes = [(b, width * c, c, n) if last else (b, width * c, n, c) for b, c, n in strides]
    row = all(fast == 1 and (slow == length or length == size) for _, _, fast, slow in planes)
    form = Form._make(map(tl.constexpr, (first, terms, alphas, gamma, row, weighted)))
    added = (form, BLOCK) if name == "sums_fwd" else (parts, form, BLOCK, power_of_two(parts, 1))
    return planes, Launch(KERNELS[name], (programs, groups, batch), 4, 1, size, length, *added)


def launch(name: str, series: Series, tensors: list[Tensor], *sums: Tensor, weighted: bool = True) -> None:
    """Run a kernel on tensors [B, C, N] and sums [B, G, parts, terms]; without weights the last tensor is not read."""
    strides, dtypes = tuple(t.stride() for t in tensors), tuple(t.dtype for t in tensors)
    shape, device, parts = tensors[0].shape, tensors[0].device, sums[0].shape[2]
    planes, run = make_plan(name, shape, series, strides, dtypes, device, parts, weighted)
    run(*(Plane(t, *steps) for t, steps in zip(tensors, planes, strict=True)), *sums)


def flatten(x: Tensor) -> Tensor:
    """[B, C, *P] -> [B, C, N], copied where positions do not follow one another at equal steps."""
    return aligned(x.flatten(2))


def make_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor [B, C, N], its channels last in memory if those of x are."""
    batch, channels, positions = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty((batch, positions, channels), dtype=dtype).transpose(1, 2)
    return x.new_empty((batch, channels, positions), dtype=dtype)


def make_sums(x: Tensor, series: Series) -> Tensor:
    """[B, G, parts, terms]"""
    batch, channels, positions = x.shape
    parts = cdiv(channels // series.groups * positions, BLOCK)
    return x.new_empty((batch, series.groups, parts, len(series.alphas)), dtype=torch.float32)


def add_parts(sums: Tensor) -> Tensor:
    """[B, G, parts, terms], few enough of them."""
    return sums.sum(2, keepdim=True) if sums.shape[2] > PARTS else sums


def forward(theta: Tensor, phi: Tensor, g: Tensor, series: Series) -> tuple[Tensor, Tensor]:
    """y and the sums of Phi^T g, for theta, phi and g [B, C, N]."""
    sums, y = make_sums(phi, series), make_like(theta, g.dtype)
    launch("sums_fwd", series, [phi, g], sums)
    sums = add_parts(sums)
    launch("apply_fwd", series, [theta, y, theta], sums, weighted=False)
    return y, sums


def power_sums(x: Tensor, weight: Tensor | None, terms: int, first: int, gamma: float) -> Tensor:
    """``ops.series.power_sums`` of x and weight [B, G, C', *P]."""
    series = Series(x.shape[1], first, (1.0,) * terms, gamma, 0.0, dot=False)
    rows = [flatten(t.flatten(1, 2)) for t in ((x,) if weight is None else (x, weight))]
    sums = make_sums(rows[0], series)
    launch("sums_fwd", series, [rows[0], rows[-1]], sums, weighted=weight is not None)
    return sums.sum(2)


def polynomial(x: Tensor, coefficients: Tensor, weight: Tensor | None, first: int, gamma: float) -> Tensor:
    """``ops.series.polynomial`` of x and weight [B, G, C', *P], in float32."""
    series = Series(x.shape[1], first, (1.0,) * coefficients.shape[2], gamma, 0.0, dot=False)
    rows = [flatten(t.flatten(1, 2)) for t in ((x,) if weight is None else (x, weight))]
    y = make_like(rows[0], torch.float32)
    c = aligned(coefficients.float().contiguous().unsqueeze(2))
    launch("apply_fwd", series, [rows[0], y, rows[-1]], c, weighted=weight is not None)
    return y.view(*y.shape[:2], *x.shape[3:]).unflatten(1, x.shape[1:3])


class CompactOperator(torch.autograd.Function):
    """Keeps theta, phi, g and the sums of Phi^T g for backward."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, phi: Tensor, g: Tensor, series: Series, again: Callable) -> Tensor:
        flat = flatten(theta), flatten(phi), flatten(g)
        y, sums = forward(*flat, series)
        ctx.save_for_backward(theta, phi, g, *flat, sums)
        ctx.series, ctx.again = series, again
        return y.view(theta.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        *inputs, theta, phi, g, sums = ctx.saved_tensors
        if torch.is_grad_enabled():  # derivatives of higher order are the reference's
            return *torch.autograd.grad(ctx.again(*inputs), inputs, dy, create_graph=True), None, None
        dtheta, dphi, dg, dsums = make_like(theta), make_like(phi), make_like(g), make_sums(theta, ctx.series)
        launch("theta_bwd", ctx.series, [theta, flatten(dy), dtheta], sums, dsums)
        launch("factors_bwd", ctx.series, [phi, g, dphi, dg], add_parts(dsums))
        return *(t.view(dy.shape) for t in (dtheta, dphi, dg)), None, None


def compute(theta: Tensor, phi: Tensor, g: Tensor, series: Series, again: Callable) -> Tensor:
    """y for inputs [B, C, *P]; ``again`` computes the same with derivatives of any order."""
    if torch.is_grad_enabled() and (theta.requires_grad or phi.requires_grad or g.requires_grad):
        return CompactOperator.apply(theta, phi, g, series, again)
    return forward(flatten(theta), flatten(phi), flatten(g), series)[0].view(theta.shape)
