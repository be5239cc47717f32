"""The second half of the block in one kernel, for groups that fit into a tile: X in, X + norm(W_z y) out."""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Case, Hardware, Launch, Tile, cdiv, constants, find_case, is_dot, plan, power_of_two, project
from .operators import torch_operator
from .series import respond
from .tiles import add, find_tile, halves, load_map, load_rows, load_tile, store_map


@triton.jit
def write(z, c_0, b, n, start, row_sums, norm, residual, out, C, eps,
          normed: tl.constexpr, form, ROWS: tl.constexpr, OUT: tl.constexpr):  # fmt: skip
    """X + norm(z) at OUT channels from ``start`` on; z [ROWS, OUT] still lacks the p = 0 term."""
    channel = start + tl.arange(0, OUT)[None, :]
    inside = channel < C
    if form.first == 0:
        z += c_0 * tl.load(row_sums + channel, inside, 0.0)
    if normed:
        mean, variance, weight, bias = norm
        scale = tl.load(weight + channel, inside, 0.0) * tl.rsqrt(tl.load(variance + channel, inside, 1.0) + eps)
        z = (z - tl.load(mean + channel, inside, 0.0)) * scale + tl.load(bias + channel, inside, 0.0)
    x = load_map(residual, b, n, start, form, ROWS, OUT).to(tl.float32)
    store_map(out, b, n, start, add(x, z), form, ROWS, OUT)


@triton.jit
def find_samples(b, n, length, N, form, ROWS: tl.constexpr):
    """The sample of each row of a tile, and whether there is one. [ROWS]"""
    r = n + tl.arange(0, ROWS)
    return (r // N if form.last else b + r * 0), r < length


@triton.jit
def output_fwd_kernel(
    x,  # [B, N, C]
    theta_weight,  # [I, C], I = inner channels
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    row_sums,  # of W_z, where there is a p = 0 term: [C]
    norm,  # its mean, variance, weight and bias: each [C]
    residual,  # [B, N, C]
    out,  # [B, N, C]
    length, N, C, groups, eps, normed: tl.constexpr, form, together: tl.constexpr, ROWS: tl.constexpr,
    SLOT: tl.constexpr, DEPTH: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """theta of one or two groups in registers, and each of them from there to the output::

    theta = x @ w_theta.T  # [B, N, I]
    y = sum(c[p] * theta**p for p in powers)  # c of each sample and group
    z = y @ w_z.T  # of each group
    out = residual + (z - mean) / sqrt(variance + eps) * weight + bias
    """
    width: tl.constexpr = form.inner_per_group
    wide: tl.constexpr = form.channels_per_group
    across = tl.cdiv(groups, together)
    first_group = tl.program_id(0) % across * together
    b, n = find_tile(tl.program_id(0) // across, length, form, ROWS)
    theta = tl.zeros((ROWS, together * SLOT), tl.float32)
    for k in range(0, C, DEPTH):
        w = load_rows(theta_weight, first_group * width, k, together * SLOT, DEPTH, form.tma)
        theta = tl.dot(load_map(x, b, n, k, form, ROWS, DEPTH), w.T, theta, input_precision=form.precision)
    i = tl.arange(0, SLOT)[:, None]
    thetas = (theta,) if together == 1 else halves(theta, ROWS, SLOT)
    for j in tl.static_range(together):
        group = first_group + j
        sample, present = find_samples(b, n, length, N, form, ROWS)
        present = present & (sample * 0 + group < groups)
        c = coefficients + (sample * groups + group) * form.terms  # [ROWS]
        c_0 = tl.load(c, present, 0.0)[:, None]  # for the dot kernel the only one
        y, top = respond(thetas[j], c[:, None], present[:, None], z_weight.dtype.element_ty, form)
        for start in tl.static_range(0, wide, OUT):
            channel = group * wide + start + tl.arange(0, OUT)[None, :]
            w = tl.load(z_weight + channel * width + i, (i < width) & (channel < C), 0.0)  # [SLOT, OUT]
            z = tl.dot(y, w, input_precision=form.precision)  # [ROWS, OUT]
            if form.dot:
                z *= c_0
            if form.rescale:
                z *= top
            at = group * wide + start
            write(z, c_0, b, n, at, row_sums, norm, residual, out, C, eps, normed, form, ROWS, OUT)


@triton.jit
def wide_output_fwd_kernel(
    operand,  # X, or theta: [B, N, groups K]
    product,  # [C, K]
    sizes,  # of the weight's rows: [C]
    coefficients,  # [B, G]
    norm,  # its mean, variance, weight and bias: each [C]
    residual,  # [B, N, C]
    out,  # [B, N, C]
    samples, length, N, C, K, groups, eps, normed: tl.constexpr, composed: tl.constexpr, sized: tl.constexpr, form,
    ROWS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A matrix product for twice OUT channels of one large group, times s, and what follows; the dot kernel only::

        z = s * (operand @ product.T)  # composed: X and W_z W_theta; otherwise theta and W_z
        out = residual + (z - mean) / sqrt(variance + eps) * weight + bias

    Two programs share a processor: one writes while the other multiplies.
    """
    across = C // (2 * OUT)
    for tile in tl.range(tl.program_id(0), samples * tl.cdiv(length, ROWS) * across, tl.num_programs(0)):
        start = tile % across * (2 * OUT)
        b, n = find_tile(tile // across, length, form, ROWS)
        group = start // form.channels_per_group
        z = tl.zeros((ROWS, 2 * OUT), tl.float32)
        for k in range(0, K, DEPTH):
            w = load_rows(product, start, k, 2 * OUT, DEPTH, form.tma)
            if composed:
                a = load_map(operand, b, n, k, form, ROWS, DEPTH)
            else:
                a = load_tile(operand, b, n, group * K + k, ROWS, DEPTH, form.tma)
            z = tl.dot(a, w.T, z, input_precision=form.precision)
        sample, present = find_samples(b, n, length, N, form, ROWS)
        z *= tl.load(coefficients + sample * groups + group, present, 0.0)[:, None]
        if sized:
            z *= tl.load(sizes + start + tl.arange(0, 2 * OUT))[None, :]
        left, right = halves(z, ROWS, OUT)
        write(left, 0.0, b, n, start, sizes, norm, residual, out, C, eps, normed, form, ROWS, OUT)
        write(right, 0.0, b, n, start + OUT, sizes, norm, residual, out, C, eps, normed, form, ROWS, OUT)


OUT = 64
"""Channels of the output that are written at a time."""


def choose_tile(dtype: torch.dtype, precision: str, on: Hardware) -> Tile:
    if dtype != torch.float32:
        return Tile(rows=128, columns=128, depth=64 if on.tma else 32, warps=4 if on.tma else 8, stages=3)
    return Tile(32, 32, 32, 4, 2) if precision == "ieee" else Tile(64, 64, 32, 4, 3)


@plan
def make_plan(case: Case, eps: float, normed: bool) -> tuple[Tile, int, Launch]:
    """The tile, how many channels are written at a time, and the launch."""
    form = case.form
    tile = choose_tile(case.dtype, form.precision, case.on)
    slot = power_of_two(form.inner_per_group)  # columns that a group takes in a tile of theta
    together = max(1, min(2, tile.columns // slot)) if slot == form.inner_per_group else 1
    tile = tile._replace(columns=together * slot)
    block = min(OUT, math.gcd(form.channels_per_group, 1 << 30))  # a power of two that divides a group
    samples, length = case.runs
    grid = (samples * cdiv(length, tile.rows) * cdiv(case.groups, together),)
    launch = Launch(
        output_fwd_kernel, grid, tile.warps, tile.stages, length, case.positions, case.channels, case.groups, eps,
        normed, constants(form), together, tile.rows, slot, tile.depth, block,
    )  # fmt: skip
    return tile, block, launch


@torch_operator(
    fake=lambda _x, residual, *_: torch.empty_like(residual),
    flops=lambda x, _residual, theta, z_weight, _row_sums, c, *_: (
        2 * math.prod(x[:2]) * (theta[0] * (x[2] + c[2]) + math.prod(z_weight))
    ),
)
def fused_output(
    x: Tensor, residual: Tensor, theta: Tensor, z_weight: Tensor, row_sums: Tensor | None, c: Tensor,
    norm: Sequence[Tensor], eps: float, first: int, gamma: float,
) -> Tensor:  # fmt: skip
    """residual + norm(W_z y) for x [B, N, C]; norm is its mean, variance, weight and bias, each [C], or nothing."""
    (inner, channels), (_, groups, terms) = theta.shape, c.shape
    case = find_case(x, residual, channels, inner, groups, first, terms, gamma)
    tile, block, launch = make_plan(case, eps, bool(norm))
    out = torch.empty_like(residual)
    x_, weight = case.map_source(x, tile.rows, tile.depth, flat=True), case.source(theta, tile.columns, tile.depth)
    maps = (case.map_source(t, tile.rows, block, flat=True) for t in (residual, out))
    launch(x_, weight, z_weight, c, c if row_sums is None else row_sums, tuple(norm) or (c,) * 4, *maps)
    return out


def is_whole(z_weight: Tensor, c: Tensor, first: int, gamma: float) -> bool:
    """Whether ``fused_wide_output`` applies: dot kernel, half precision, groups of a multiple of 128 channels."""
    _, groups, terms = c.shape
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
def make_wide_plan(case: Case, depth: int, eps: float, normed: bool, composed: bool, sized: bool) -> Launch:
    samples, length = case.runs
    tiles = samples * cdiv(length, WIDE.rows) * (case.channels // WIDE.columns)
    return Launch(
        wide_output_fwd_kernel, (min(tiles, WIDE.resident * case.on.processors),), WIDE.warps, WIDE.stages, samples,
        length, case.positions, case.channels, depth, case.groups, eps, normed, composed, sized, constants(case.form),
        WIDE.rows, OUT, WIDE.depth,
    )  # fmt: skip


@torch_operator(
    fake=lambda _x, residual, *_: torch.empty_like(residual),
    flops=lambda x, _, theta, z_weight, *__: 2 * math.prod(x) * (1 + min(x[2], theta[0] + z_weight[1])),
)
def fused_wide_output(
    x: Tensor, residual: Tensor, theta: Tensor, z_weight: Tensor, c: Tensor, norm: Sequence[Tensor], eps: float,
) -> Tensor:  # fmt: skip
    """residual + norm(s W_z W_theta x) for x [B, N, C]; norm as for ``fused_output``."""
    (inner, channels), groups = theta.shape, c.shape[1]
    case = find_case(x, residual, channels, inner, groups, 1, 1, 0.0)
    product, sizes = z_weight, None
    if composed := composes(channels, inner, inner // groups):
        product, sizes = compose(z_weight, theta, groups)
        operand = case.map_source(x, WIDE.rows, WIDE.depth, flat=True)
    else:
        operand = case.source(project(x, theta).view(*case.runs, -1), 1, WIDE.rows, WIDE.depth)
    launch = make_wide_plan(case, product.shape[1], eps, bool(norm), composed, sizes is not None)
    out = torch.empty_like(residual)
    weight = case.source(product, WIDE.columns, WIDE.depth)
    maps = (case.map_source(t, WIDE.rows, OUT, flat=True) for t in (residual, out))
    launch(operand, weight, c if sizes is None else sizes, c, tuple(norm) or (c,) * 4, *maps)
    return out
