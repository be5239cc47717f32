"""The second half of the block in one kernel, for groups that fit into a tile: X in, X + norm(W_z y) out."""

# Kernels are read by Triton, not run by Python.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .launch import (
    Form,
    Hardware,
    Launch,
    Tile,
    cdiv,
    constants,
    flatten_rows,
    hardware,
    is_dot,
    make_form,
    plan,
    power_of_two,
    precision,
    source,
)
from .series import value
from .tiles import add, halves, load_rows, store_rows


@triton.jit
def write(z, c_0, row, start, row_sums, mean, variance, weight, bias, residual, out, C, eps,
          normed: tl.constexpr, form, ROWS: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """X + norm(z) at OUT channels from ``start`` on; z [ROWS, OUT] still lacks the p = 0 term."""
    channel = start + tl.arange(0, OUT)[None, :]
    inside = channel < C
    if form.first == 0:
        z += c_0 * tl.load(row_sums + channel, inside, 0.0)
    if normed:
        scale = tl.load(weight + channel, inside, 0.0) * tl.rsqrt(tl.load(variance + channel, inside, 1.0) + eps)
        z = (z - tl.load(mean + channel, inside, 0.0)) * scale + tl.load(bias + channel, inside, 0.0)
    x = load_rows(residual, row, start, ROWS, OUT, form.tma).to(tl.float32)
    store_rows(out, row, start, add(x, z), ROWS, OUT, form.tma)


@triton.jit
def write_group(
    theta,  # [ROWS, SLOT]
    group,
    row,
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    M,
    N,
    groups,
    row_sums,
    mean,
    variance,
    weight,
    bias,
    residual,
    out,
    C,
    eps,
    normed: tl.constexpr,
    form,
    ROWS: tl.constexpr,
    SLOT: tl.constexpr,
    OUT: tl.constexpr,
):
    """y of one group, W_z y, and what is added to X."""
    width: tl.constexpr = form.inner_per_group
    wide: tl.constexpr = form.channels_per_group
    r, i = tl.arange(0, ROWS), tl.arange(0, SLOT)[:, None]
    present = (row + r < M) & (r * 0 + group < groups)
    c = coefficients + ((row + r) // N * groups + group) * form.terms  # [ROWS]
    c_0 = tl.load(c, present, 0.0)[:, None]  # for the dot kernel the only one
    top = 1.0
    if form.dot:
        y = theta.to(z_weight.dtype.element_ty)
    else:
        response = value(theta, c[:, None], present[:, None], form.first, form.terms, form.gamma)
        if form.rescale:
            top = tl.maximum(tl.max(tl.abs(response)), 1e-30)
        y = (response / top).to(z_weight.dtype.element_ty)
    for start in tl.static_range(0, wide, OUT):
        channel = group * wide + start + tl.arange(0, OUT)[None, :]
        w = tl.load(z_weight + channel * width + i, (i < width) & (channel < C), 0.0)  # [SLOT, OUT]
        z = tl.dot(y, w, input_precision=form.precision)  # [ROWS, OUT]
        if form.dot:
            z *= c_0
        if form.rescale:
            z *= top
        write(z, c_0, row, group * wide + start, row_sums, mean, variance, weight, bias, residual, out, C, eps,
              normed, form, ROWS, OUT)  # fmt: skip


@triton.jit
def output_fwd_kernel(
    x,  # [M, C]
    theta_weight,  # [I, C], I = inner channels
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    row_sums,  # of W_z, where there is a p = 0 term: [C]
    mean,  # of the norm, and so on: [C]
    variance,
    weight,
    bias,
    residual,  # [M, C]
    out,  # [M, C]
    M,
    N,
    C,
    groups,
    eps,
    normed: tl.constexpr,
    form,
    together: tl.constexpr,
    ROWS: tl.constexpr,
    SLOT: tl.constexpr,
    DEPTH: tl.constexpr,
    OUT: tl.constexpr,
):
    """theta of one or two groups in registers, and each of them from there to the output::

    theta = x @ w_theta.T  # [M, I]
    y = sum(c[p] * theta**p for p in powers)  # c of each sample and group
    z = y @ w_z.T  # of each group
    out = residual + (z - mean) / sqrt(variance + eps) * weight + bias
    """
    across = tl.cdiv(groups, together)
    row, group = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * together
    rest = (row_sums, mean, variance, weight, bias, residual, out, C, eps)
    theta = tl.zeros((ROWS, together * SLOT), tl.float32)
    for k in range(0, C, DEPTH):
        w = load_rows(theta_weight, group * form.inner_per_group, k, together * SLOT, DEPTH, form.tma)
        theta = tl.dot(load_rows(x, row, k, ROWS, DEPTH, form.tma), w.T, theta, input_precision=form.precision)
    if together == 1:
        write_group(theta, group, row, z_weight, coefficients, M, N, groups, *rest, normed, form, ROWS, SLOT, OUT)
    else:
        one, two = halves(theta, ROWS, SLOT)
        write_group(one, group, row, z_weight, coefficients, M, N, groups, *rest, normed, form, ROWS, SLOT, OUT)
        write_group(two, group + 1, row, z_weight, coefficients, M, N, groups, *rest, normed, form, ROWS, SLOT, OUT)


@triton.jit
def wide_output_fwd_kernel(
    operand,  # [M, K], or [M, groups K]
    product,  # [C, K]
    sizes,  # of the weight's rows: [C]
    coefficients,  # [B, G]
    mean,  # of the norm, and so on: [C]
    variance,
    weight,
    bias,
    residual,  # [M, C]
    out,  # [M, C]
    M,
    N,
    C,
    K,
    groups,
    stride,  # between the operands of two groups: K, or 0
    eps,
    normed: tl.constexpr,
    sized: tl.constexpr,
    form,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """A matrix product for twice OUT channels of one large group, times s, and what follows; the dot kernel only::

        z = s * (operand @ product.T)  # operand and product: X and W_z W_theta, or theta and W_z
        out = residual + (z - mean) / sqrt(variance + eps) * weight + bias

    Two programs share a processor: one writes while the other multiplies.
    """
    across = C // (2 * OUT)
    rest = (mean, mean, variance, weight, bias, residual, out, C, eps)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS) * across, tl.num_programs(0)):
        row, start = tile // across * ROWS, tile % across * (2 * OUT)
        group = start // form.channels_per_group
        z = tl.zeros((ROWS, 2 * OUT), tl.float32)
        for k in range(0, K, DEPTH):
            w = load_rows(product, start, k, 2 * OUT, DEPTH, form.tma)
            a = load_rows(operand, row, group * stride + k, ROWS, DEPTH, form.tma)
            z = tl.dot(a, w.T, z, input_precision=form.precision)
        r = row + tl.arange(0, ROWS)
        z *= tl.load(coefficients + r // N * groups + group, r < M, 0.0)[:, None]
        if sized:
            z *= tl.load(sizes + start + tl.arange(0, 2 * OUT))[None, :]
        left, right = halves(z, ROWS, OUT)
        write(left, 0.0, row, start, *rest, normed, form, ROWS, OUT)
        write(right, 0.0, row, start + OUT, *rest, normed, form, ROWS, OUT)


OUT = 64
"""Channels of the output that are written at a time."""


def choose_tile(dtype: torch.dtype, precision: str, on: Hardware) -> Tile:
    if dtype != torch.float32:
        return Tile(rows=128, columns=128, depth=64 if on.tma else 32, warps=4 if on.tma else 8, stages=3)
    return Tile(32, 32, 32, 4, 2) if precision == "ieee" else Tile(64, 64, 32, 4, 3)


class Plan(NamedTuple):
    tile: Tile
    slot: int
    """Columns that a group takes in a tile of theta."""
    together: int
    """Groups of a program."""
    block: int
    launch: Launch


@plan
def make_plan(
    batch: int,
    positions: int,
    channels: int,
    groups: int,
    form: Form,
    eps: float,
    normed: bool,
    dtype: torch.dtype,
    residual_dtype: torch.dtype,  # noqa: ARG001
    on: Hardware,
    device: torch.device,  # noqa: ARG001
    tile: Tile | None = None,
) -> Plan:
    tile = tile or choose_tile(dtype, form.precision, on)
    slot = power_of_two(form.inner_per_group)
    together = max(1, min(2, tile.columns // slot)) if slot == form.inner_per_group else 1
    block = min(OUT, math.gcd(form.channels_per_group, 1 << 30))  # a power of two that divides a group
    rows = batch * positions
    launch = Launch(
        output_fwd_kernel, (cdiv(rows, tile.rows) * cdiv(groups, together),), tile.warps, tile.stages, rows, positions,
        channels, groups, eps, normed, constants(form), together, tile.rows, slot, tile.depth, block,
    )  # fmt: skip
    return Plan(tile, slot, together, block, launch)


def output(
    x: Tensor,
    residual: Tensor,
    theta: Tensor,
    z_weight: Tensor,
    row_sums: Tensor | None,
    coefficients: Tensor,
    norm: Sequence[Tensor],
    eps: float,
    first: int,
    gamma: float,
    tile: Tile | None = None,
) -> Tensor:
    """residual + norm(W_z y) for x [B, N, C]; norm is its mean, variance, weight and bias, each [C], or nothing."""
    batch, positions, channels = x.shape
    form = make_form(z_weight, coefficients, first, gamma, precision(x))
    tile, slot, together, block, launch = make_plan(
        batch, positions, channels, coefficients.shape[1], form, eps, bool(norm), x.dtype, residual.dtype,
        hardware(x.device), x.device, tile,
    )  # fmt: skip
    out, tma = torch.empty_like(residual), form.tma
    launch(
        source(tma, flatten_rows(x), tile.rows, tile.depth),
        source(tma, theta, together * slot, tile.depth),
        z_weight,
        coefficients,
        coefficients if row_sums is None else row_sums,
        *(norm or [coefficients] * 4),
        source(tma, flatten_rows(residual), tile.rows, block),
        source(tma, flatten_rows(out), tile.rows, block),
    )
    return out


def is_whole(z_weight: Tensor, coefficients: Tensor, first: int, gamma: float) -> bool:
    """Whether ``wide_output`` applies: the dot kernel, in half precision, and groups of a multiple of 128 channels."""
    _, groups, terms = coefficients.shape
    return is_dot(first, terms, gamma) and z_weight.dtype != torch.float32 and len(z_weight) // groups % (2 * OUT) == 0


def composes(channels: int, inner: int, width: int) -> bool:
    """Whether W_z W_theta at once costs no more than one after the other, theta written and read in between."""
    return channels <= inner + width


def compose(z_weight: Tensor, theta: Tensor, groups: int) -> tuple[Tensor, Tensor | None]:
    """W_z W_theta [C, C], and in float16, which cannot hold small ones, the size that was divided out of each row."""
    z_weight, theta = z_weight.unflatten(0, (groups, -1)), theta.unflatten(0, (groups, -1))
    if theta.dtype != torch.float16:
        return (z_weight @ theta).flatten(0, 1), None
    both = (z_weight.float() @ theta.float()).flatten(0, 1)
    sizes = both.abs().amax(1, keepdim=True).clamp_min(torch.finfo(both.dtype).tiny)
    return (both / sizes).to(theta.dtype), sizes.flatten()


WIDE = Tile(rows=128, columns=2 * OUT, depth=64, warps=4, stages=3, resident=2)


@plan
def make_wide_plan(
    batch: int,
    positions: int,
    channels: int,
    depth: int,
    groups: int,
    stride: int,
    eps: float,
    normed: bool,
    sized: bool,
    form: Form,
    dtypes: tuple[torch.dtype, torch.dtype],  # noqa: ARG001
    programs: int,
    device: torch.device,  # noqa: ARG001
) -> Launch:
    tiles = cdiv(batch * positions, WIDE.rows) * (channels // WIDE.columns)
    return Launch(
        wide_output_fwd_kernel, (min(tiles, WIDE.resident * programs),), WIDE.warps, WIDE.stages, batch * positions,
        positions, channels, depth, groups, stride, eps, normed, sized, constants(form), WIDE.rows, OUT, WIDE.depth,
    )  # fmt: skip


def wide_output(
    x: Tensor,
    residual: Tensor,
    theta: Tensor,
    z_weight: Tensor,
    coefficients: Tensor,
    norm: Sequence[Tensor],
    eps: float,
) -> Tensor:
    """residual + norm(s W_z W_theta x) for x [B, N, C]; norm as for ``output``."""
    (batch, positions, channels), groups = x.shape, coefficients.shape[1]
    form = make_form(z_weight, coefficients, 1, 0.0, precision(x))
    if composes(channels, theta.shape[0], form.inner_per_group):
        operand, (product, sizes), stride = x, compose(z_weight, theta, groups), 0
    else:
        operand, product, sizes, stride = F.linear(x, theta), z_weight, None, form.inner_per_group
    launch = make_wide_plan(
        batch, positions, channels, product.shape[1], groups, stride, eps, bool(norm), sizes is not None, form,
        (x.dtype, residual.dtype), hardware(x.device).processors, x.device,
    )  # fmt: skip
    out, tma = torch.empty_like(residual), form.tma
    launch(
        source(tma, flatten_rows(operand), WIDE.rows, WIDE.depth),
        source(tma, product, WIDE.columns, WIDE.depth),
        coefficients if sizes is None else sizes,
        coefficients,
        *(norm or [coefficients] * 4),
        source(tma, flatten_rows(residual), WIDE.rows, OUT),
        source(tma, flatten_rows(out), WIDE.rows, OUT),
    )
    return out
