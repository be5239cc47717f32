"""The second half of the block in one kernel, for groups that fit into a tile: X in, X + norm(W_z y) out."""

# Kernels are read by Triton, not run by Python.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .machine import Tile, cdiv, descriptor, form_of, is_dot, launch, power_of_two, precision, processors, rows_of
from .series import add, halves, value


@triton.jit
def write(z, c_0, row, start, row_sums, mean, variance, weight, bias, residual_desc, out_desc, C, eps,
          normed: tl.constexpr, form: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """X + norm(z) at OUT channels from ``start`` on; z [ROWS, OUT] still lacks the p = 0 term."""
    channel = start + tl.arange(0, OUT)[None, :]
    inside = channel < C
    if form[2] == 0:
        z += c_0 * tl.load(row_sums + channel, inside, 0.0)
    if normed:
        scale = tl.load(weight + channel, inside, 0.0) * tl.rsqrt(tl.load(variance + channel, inside, 1.0) + eps)
        z = (z - tl.load(mean + channel, inside, 0.0)) * scale + tl.load(bias + channel, inside, 0.0)
    x = residual_desc.load([row, start]).to(tl.float32)
    out_desc.store([row, start], add(x, z).to(out_desc.dtype))


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
    residual_desc,
    out_desc,
    C,
    eps,
    normed: tl.constexpr,
    form: tl.constexpr,
    ROWS: tl.constexpr,
    SLOT: tl.constexpr,
    OUT: tl.constexpr,
):
    """y of one group, W_z y, and what is added to X."""
    width: tl.constexpr = form[0]
    wide: tl.constexpr = form[1]
    r, i = tl.arange(0, ROWS), tl.arange(0, SLOT)[:, None]
    present = (row + r < M) & (r * 0 + group < groups)
    c = coefficients + ((row + r) // N * groups + group) * form[3]  # [ROWS]
    c_0 = tl.load(c, present, 0.0)[:, None]  # for the dot kernel the only one
    top = 1.0
    if form[5]:
        y = theta.to(z_weight.dtype.element_ty)
    else:
        response = value(theta, c[:, None], present[:, None], form[2], form[3], form[4])
        if form[6]:
            top = tl.maximum(tl.max(tl.abs(response)), 1e-30)
        y = (response / top).to(z_weight.dtype.element_ty)
    for start in tl.static_range(0, wide, OUT):
        channel = group * wide + start + tl.arange(0, OUT)[None, :]
        w = tl.load(z_weight + channel * width + i, (i < width) & (channel < C), 0.0)  # [SLOT, OUT]
        z = tl.dot(y, w, input_precision=form[7])  # [ROWS, OUT]
        if form[5]:
            z *= c_0
        if form[6]:
            z *= top
        write(z, c_0, row, group * wide + start, row_sums, mean, variance, weight, bias, residual_desc, out_desc, C,
              eps, normed, form, OUT)  # fmt: skip


@triton.jit
def output_kernel(
    x_desc,  # [M, C]
    theta_desc,  # [I, C], I = inner channels
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    row_sums,  # of W_z, where there is a p = 0 term: [C]
    mean,  # of the norm, and so on: [C]
    variance,
    weight,
    bias,
    residual_desc,  # [M, C]
    out_desc,  # [M, C]
    M,
    N,
    C,
    groups,
    eps,
    normed: tl.constexpr,
    form: tl.constexpr,
    together: tl.constexpr,
    ROWS: tl.constexpr,
    SLOT: tl.constexpr,
    DEPTH: tl.constexpr,
    OUT: tl.constexpr,
):
    """theta of one or two groups in registers, and each of them from there to the output."""
    across = tl.cdiv(groups, together)
    row, group = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * together
    rest = (row_sums, mean, variance, weight, bias, residual_desc, out_desc, C, eps)
    theta = tl.zeros((ROWS, together * SLOT), tl.float32)
    for k in range(0, C, DEPTH):
        w = theta_desc.load([group * form[0], k])  # [together SLOT, DEPTH]
        theta = tl.dot(x_desc.load([row, k]), w.T, theta, input_precision=form[7])
    if together == 1:
        write_group(theta, group, row, z_weight, coefficients, M, N, groups, *rest, normed, form, ROWS, SLOT, OUT)
    else:
        one, two = halves(theta, ROWS, SLOT)
        write_group(one, group, row, z_weight, coefficients, M, N, groups, *rest, normed, form, ROWS, SLOT, OUT)
        write_group(two, group + 1, row, z_weight, coefficients, M, N, groups, *rest, normed, form, ROWS, SLOT, OUT)


@triton.jit
def wide_output_kernel(
    operand_desc,  # [M, K], or [M, groups K]
    weight_desc,  # [C, K]
    sizes,  # of the weight's rows: [C]
    coefficients,  # [B, G]
    mean,  # of the norm, and so on: [C]
    variance,
    weight,
    bias,
    residual_desc,  # [M, C]
    out_desc,  # [M, C]
    M,
    N,
    C,
    K,
    groups,
    stride,  # between the operands of two groups: K, or 0
    eps,
    normed: tl.constexpr,
    sized: tl.constexpr,
    form: tl.constexpr,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """A matrix product for twice OUT channels of one large group, times s, and what is added to X; the dot kernel only.

    Two programs share a processor: one writes while the other multiplies.
    """
    across = C // (2 * OUT)
    rest = (mean, mean, variance, weight, bias, residual_desc, out_desc, C, eps)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS) * across, tl.num_programs(0)):
        row, start = tile // across * ROWS, tile % across * (2 * OUT)
        group = start // form[1]
        z = tl.zeros((ROWS, 2 * OUT), tl.float32)
        for k in range(0, K, DEPTH):
            w = weight_desc.load([start, k])  # [2 OUT, DEPTH]
            z = tl.dot(operand_desc.load([row, group * stride + k]), w.T, z, input_precision=form[7])
        r = row + tl.arange(0, ROWS)
        z *= tl.load(coefficients + r // N * groups + group, r < M, 0.0)[:, None]
        if sized:
            z *= tl.load(sizes + start + tl.arange(0, 2 * OUT))[None, :]
        left, right = halves(z, ROWS, OUT)
        write(left, 0.0, row, start, *rest, normed, form, OUT)
        write(right, 0.0, row, start + OUT, *rest, normed, form, OUT)


OUT = 64
"""Channels of the output that are written at a time."""


def tile_for(dtype: torch.dtype, true_float32: bool) -> Tile:
    if dtype != torch.float32:
        return Tile(rows=128, columns=128, depth=64, warps=4, stages=3)
    return Tile(32, 32, 32, 4, 2) if true_float32 else Tile(64, 64, 32, 4, 3)


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
    groups, channels = coefficients.shape[1], x.shape[2]
    form = form_of(z_weight, coefficients, first, gamma, precision(x))
    tile = tile or tile_for(x.dtype, form.precision == "ieee")
    slot = power_of_two(form.width)
    together = max(1, min(2, tile.columns // slot)) if slot == form.width else 1
    block = min(OUT, math.gcd(form.wide, 1 << 30))  # a power of two that divides a group
    out, flat = torch.empty_like(residual), rows_of(x)
    launch(
        output_kernel,
        (cdiv(len(flat), tile.rows) * cdiv(groups, together),),
        tile.warps,
        tile.stages,
        descriptor(flat, tile.rows, tile.depth),
        descriptor(theta, together * slot, tile.depth),
        z_weight,
        coefficients,
        coefficients if row_sums is None else row_sums,
        *(norm or [coefficients] * 4),
        descriptor(rows_of(residual), tile.rows, block),
        descriptor(rows_of(out), tile.rows, block),
        len(flat),
        x.shape[1],
        channels,
        groups,
        eps,
        bool(norm),
        tuple(form),
        together,
        tile.rows,
        slot,
        tile.depth,
        block,
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
    form = form_of(z_weight, coefficients, 1, 0.0, precision(x))
    if composes(channels, len(theta), form.width):
        operand, (weight, sizes), stride = x, compose(z_weight, theta, groups), 0
    else:
        operand, weight, sizes, stride = x @ theta.t(), z_weight, None, form.width
    rows, depth = 128, 64
    out = torch.empty_like(residual)
    tiles = cdiv(batch * positions, rows) * (channels // (2 * OUT))
    launch(
        wide_output_kernel,
        (min(tiles, 2 * processors(x.device)),),
        4,
        3,
        descriptor(rows_of(operand), rows, depth),
        descriptor(weight, 2 * OUT, depth),
        coefficients if sizes is None else sizes,
        coefficients,
        *(norm or [coefficients] * 4),
        descriptor(rows_of(residual), rows, OUT),
        descriptor(rows_of(out), rows, OUT),
        batch * positions,
        positions,
        channels,
        weight.shape[1],
        groups,
        stride,
        eps,
        bool(norm),
        sizes is not None,
        tuple(form),
        rows,
        OUT,
        depth,
    )
    return out
