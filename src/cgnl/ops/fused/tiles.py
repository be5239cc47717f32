"""How kernels read and write tiles: copied by the hardware from descriptors, or element by element through pointers.

Either way, a tile is zero beyond the tensor's edges, and what lies there is not written.
"""

# Kernels are read by Triton, not run by Python.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import triton
import triton.language as tl


@triton.jit
def load_rows(source, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, tma: tl.constexpr):
    """From a matrix. [ROWS, COLUMNS]"""
    if tma:
        tile = source.load([row, column])
    else:
        r, c = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        place = source.base + r.to(tl.int64) * source.row + c
        tile = tl.load(place, (r < source.rows) & (c < source.columns), 0.0)
    return tile


@triton.jit
def load_tile(source, b, n, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, tma: tl.constexpr):
    """Of sample b, from position n on. [ROWS, COLUMNS]"""
    if tma:
        tile = source.load([b, n, column]).reshape(ROWS, COLUMNS)
    else:
        r, c = n + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        place = source.base + b.to(tl.int64) * source.sample + r.to(tl.int64) * source.row + c
        tile = tl.load(place, (r < source.rows) & (c < source.columns), 0.0)
    return tile


@triton.jit
def load_pair(source, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, tma: tl.constexpr):
    """The same rows of two matrices, one below the other. [2 ROWS, COLUMNS]"""
    if tma:
        tile = source.load([0, row, column]).reshape(2 * ROWS, COLUMNS)
    else:
        both, c = tl.arange(0, 2 * ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        r = row + both % ROWS
        place = source.base + (both // ROWS).to(tl.int64) * source.sample + r * source.row + c
        tile = tl.load(place, (r < source.rows) & (c < source.columns), 0.0)
    return tile


@triton.jit
def store_rows(target, row, column, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, tma: tl.constexpr):
    """To a matrix, in its dtype."""
    if tma:
        target.store([row, column], tile.to(target.dtype))
    else:
        r, c = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        place = target.base + r.to(tl.int64) * target.row + c
        tl.store(place, tile.to(target.base.dtype.element_ty), (r < target.rows) & (c < target.columns))


@triton.jit
def halves(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a tile [ROWS, 2 COLUMNS]. Each thread holds both of its columns: nothing moves."""
    return tl.split(tl.permute(tl.reshape(tile, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def add(x, z):
    """x + z, but x itself where z is zero: a new block keeps -0.0."""
    return tl.where(z == 0, x, x + z)
