"""Phi^T g without phi and g: one pass over X gives the coefficients of y as a polynomial in theta.

In float32, where cuBLAS multiplies several times as fast as Triton, phi and g are written, for some samples at a time.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import times_each
from .launch import Case, Hardware, Launch, Tile, cdiv, constants, find_case, plan, power_of_two, project
from .operator import power_sums
from .operators import torch_operator
from .series import envelope
from .tiles import find_tile, halves, load_map, load_pair


@triton.jit
def power_sums_fwd_kernel(
    x,  # [B, N, C]
    weight,  # of phi and g: [2, I, C], I = inner channels
    sums,  # [B N, I / unit, terms]
    samples, length, C, I, unit: tl.constexpr, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: E741
    DEPTH: tl.constexpr,
):  # fmt: skip
    """phi and g of a tile in registers, and their power sums over each ``unit`` of channels::

        phi, g = x @ w_phi.T, x @ w_g.T  # [B, N, I]
        powers = torch.stack([exp(-gamma * phi**2) * phi**p * g for p in range(first, first + terms)], -1)
        sums = powers.unflatten(2, (-1, unit)).sum(3)  # [B, N, I / unit, terms]

    phi and g come out of one product: twice as wide, it reads X from shared memory half as often.
    """
    across = tl.cdiv(I, COLUMNS)
    tiles = samples * tl.cdiv(length, ROWS) * across
    units: tl.constexpr = COLUMNS // unit
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        column = (tile % across) * COLUMNS
        b, n = find_tile(tile // across, length, form, ROWS)
        both = tl.zeros((ROWS, 2 * COLUMNS), tl.float32)
        for k in range(0, C, DEPTH):
            w = load_pair(weight, column, k, COLUMNS, DEPTH, form.tma)
            both = tl.dot(load_map(x, b, n, k, form, ROWS, DEPTH), w.T, both, input_precision=form.precision)
        phi, g = halves(both, ROWS, COLUMNS)
        if form.gamma > 0:
            g *= envelope(phi, form.gamma)
        r = n + tl.arange(0, ROWS)
        u = column // unit + tl.arange(0, units)
        out = sums + ((b.to(tl.int64) * length + r)[:, None] * (I // unit) + u[None, :]) * form.terms
        ok = (r[:, None] < length) & (u[None, :] < I // unit)
        for p in tl.static_range(form.first + form.terms):
            if p > 0:
                g *= phi
            if p >= form.first:
                tl.store(out + (p - form.first), tl.sum(tl.reshape(g, (ROWS, units, unit)), 2), mask=ok)


@triton.jit
def total_fwd_kernel(
    sums,  # [B, N, I / unit, terms]
    coefficients,  # [B, G, terms]
    N,
    units,  # in a group
    alphas: tl.constexpr, terms: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums of a sample and group, each times its weight: alpha_p^2 as alpha_p twice, since it can underflow::

    coefficients = sums.unflatten(2, (groups, -1)).sum((1, 3)) * alphas * alphas
    """
    b, group, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    n, i = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    sums += (b.to(tl.int64) * N * groups + group) * units * terms
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, N, ROWS):
        row = (start + n).to(tl.int64) * (groups * units * terms)
        total += tl.load(sums + row + i, mask=(start + n < N) & (i < units * terms), other=0.0)
    for p in tl.static_range(terms):
        s = tl.sum(tl.where(i % terms == p, total, 0.0))
        tl.store(coefficients + (b * groups + group) * terms + p, s * alphas[p] * alphas[p])


def choose_tile(on: Hardware) -> Tile:
    if on.tma:
        return Tile(rows=128, columns=128, depth=64, warps=8, stages=4)
    return Tile(128, 128, 32, 8, 4) if on.shared >= 160 else Tile(128, 64, 32, 8, 4)


@plan
def make_plan(case: Case, alphas: tuple[float, ...]) -> tuple[Tile, int, Launch, Launch]:
    """The tile, the number of parts of all groups over which a row is summed at first, and both launches."""
    form, terms = case.form, case.form.terms
    tile = choose_tile(case.on)
    unit = min(math.gcd(form.inner_per_group, 1 << 30), tile.columns)  # the largest power of two in a group's width
    units, (samples, length) = form.inner_per_group // unit, case.runs
    across = power_of_two(units * terms, 1)
    tiles = samples * cdiv(length, tile.rows) * cdiv(case.inner, tile.columns)
    programs = min(tiles, tile.resident * case.on.processors)
    power_sums = Launch(
        power_sums_fwd_kernel, (programs,), tile.warps, tile.stages, samples, length, case.channels, case.inner, unit,
        constants(form), tile.rows, tile.columns, tile.depth,
    )  # fmt: skip
    sizes = case.positions, units, alphas, terms, max(1, 1024 // across), across
    return tile, case.inner // unit, power_sums, Launch(total_fwd_kernel, (case.batch, case.groups), 4, 1, *sizes)


@torch_operator(
    fake=lambda x, _w, groups, _first, alphas, _: x.new_empty((x.shape[0], groups, len(alphas)), dtype=torch.float32),
    flops=lambda x, weight, _groups, _first, alphas, _: 2 * math.prod(x[:2]) * weight[1] * (2 * x[2] + len(alphas)),
)
def fused_coefficients(
    x: Tensor, weight: Tensor, groups: int, first: int, alphas: Sequence[float], gamma: float
) -> Tensor:
    """alpha_p^2 (Phi^T g)_p, [B, G, K], for x [B, N, C] and the weights of phi and g [2, I, C]."""
    if x.dtype == torch.float32:
        return sum_projections(x, weight, groups, first, alphas, gamma)
    (_, inner, channels), terms = weight.shape, len(alphas)
    case = find_case(x, x, channels, inner, groups, first, terms, gamma)
    tile, units, power_sums, total = make_plan(case, tuple(alphas))
    sums = x.new_empty((case.batch * case.positions, units, terms), dtype=torch.float32)
    out = x.new_empty((case.batch, groups, terms), dtype=torch.float32)
    w = case.source(weight, 2, tile.columns, tile.depth)
    power_sums(case.map_source(x, tile.rows, tile.depth, flat=True), w, sums)
    total(sums, out)
    return out


def sum_projections(
    x: Tensor, weight: Tensor, groups: int, first: int, alphas: Sequence[float], gamma: float
) -> Tensor:
    """The same, from phi and g of some samples at a time."""
    (_, inner, channels), found = weight.shape, []
    for rows in x.split(max(1, WRITTEN // (2 * inner * x.shape[1]))):
        phi, g = project(rows, weight.view(2 * inner, channels)).transpose(1, 2).unflatten(1, (2, groups, -1)).unbind(1)
        found.append(power_sums(phi, g, len(alphas), first, gamma))  # [b, G, K]
        del phi, g  # before the next are written
    return times_each(torch.cat(found), alphas)


WRITTEN = 2**23
"""Elements of phi and g that are written at a time."""
