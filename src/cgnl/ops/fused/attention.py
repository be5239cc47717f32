"""Phi^T g without phi and g: one pass over X gives the coefficients of y as a polynomial in theta."""

# Kernels are read by Triton, not run by Python.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .machine import Tile, cdiv, descriptor, launch, power_of_two, precision, processors, rows_of
from .series import envelope, halves


@triton.jit
def power_sums_kernel(
    x_desc,  # [M, C]
    weight_desc,  # of phi and g: [2, I, C], I = inner channels
    sums,  # [M, I / unit, terms]
    M,
    C,
    I,  # noqa: E741
    unit: tl.constexpr,
    first: tl.constexpr,
    terms: tl.constexpr,
    gamma: tl.constexpr,
    input_precision: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """phi and g of a tile in registers, and sum_i exp(-gamma phi_i^2) phi_i^p g_i over each ``unit`` of channels.

    phi and g come out of one product: twice as wide, it reads X from shared memory half as often.
    """
    across = tl.cdiv(I, COLUMNS)
    tiles = tl.cdiv(M, ROWS) * across
    units: tl.constexpr = COLUMNS // unit
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = (tile // across) * ROWS, (tile % across) * COLUMNS
        both = tl.zeros((ROWS, 2 * COLUMNS), tl.float32)
        for k in range(0, C, DEPTH):
            w = weight_desc.load([0, column, k]).reshape(2 * COLUMNS, DEPTH)
            both = tl.dot(x_desc.load([row, k]), w.T, both, input_precision=input_precision)
        phi, g = halves(both, ROWS, COLUMNS)
        if gamma > 0:
            g *= envelope(phi, gamma)
        m = row + tl.arange(0, ROWS)
        u = column // unit + tl.arange(0, units)
        out = sums + (m.to(tl.int64)[:, None] * (I // unit) + u[None, :]) * terms
        ok = (m[:, None] < M) & (u[None, :] < I // unit)
        for p in tl.static_range(first + terms):
            if p > 0:
                g *= phi
            if p >= first:
                tl.store(out + (p - first), tl.sum(tl.reshape(g, (ROWS, units, unit)), 2), mask=ok)


@triton.jit
def total_kernel(
    sums,  # [B, N, I / unit, terms]
    coefficients,  # [B, G, terms]
    N,
    units,  # in a group
    alphas: tl.constexpr,
    terms: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The sums of a sample and group, each times its weight: alpha_p^2 as alpha_p twice, since it can underflow."""
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


def tile_for(dtype: torch.dtype, true_float32: bool) -> Tile:
    if dtype != torch.float32:
        return Tile(rows=128, columns=128, depth=64, warps=8, stages=4)
    return Tile(32, 32, 32, 4, 2) if true_float32 else Tile(128, 64, 32, 8, 3)


def coefficients(
    x: Tensor, weight: Tensor, groups: int, first: int, alphas: list[float], gamma: float, tile: Tile | None = None
) -> Tensor:
    """alpha_p^2 (Phi^T g)_p, [B, G, K], for x [B, N, C] and the weights of phi and g [2, I, C]."""
    batch, positions, channels = x.shape
    inner, terms = weight.shape[1], len(alphas)
    tile = tile or tile_for(x.dtype, precision(x) == "ieee")
    width = inner // groups
    unit = min(math.gcd(width, 1 << 30), tile.columns)  # the largest power of two in a group's width
    sums = x.new_empty((batch * positions, inner // unit, terms), dtype=torch.float32)
    flat = rows_of(x)
    tiles = cdiv(len(flat), tile.rows) * cdiv(inner, tile.columns)
    launch(
        power_sums_kernel,
        (min(tiles, tile.resident * processors(x.device)),),
        tile.warps,
        tile.stages,
        descriptor(flat, tile.rows, tile.depth),
        descriptor(weight, 2, tile.columns, tile.depth),
        sums,
        len(flat),
        channels,
        inner,
        unit,
        first,
        terms,
        gamma,
        precision(x),
        tile.rows,
        tile.columns,
        tile.depth,
    )
    out = x.new_empty((batch, groups, terms), dtype=torch.float32)
    units = width // unit
    across = power_of_two(units * terms, 1)
    launch(
        total_kernel, (batch, groups), 4, 1, sums, out, positions, units, tuple(alphas), terms, max(1, 1024 // across),
        across,
    )  # fmt: skip
    return out
