"""How kernels read and write tiles: copied by the hardware from descriptors, or element by element through pointers.

Either way, a tile is zero beyond the tensor's edges, and what lies there is not written. A *map* is X or whatever has
its shape: [B, N, C], dense, with channels or positions last in memory as the ``Form`` says. Tiles of it are
[ROWS, COLUMNS], positions by channels, in both.
"""

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
    """Of sample b, from position n on, where channels come last. [ROWS, COLUMNS]"""
    if tma:
        tile = source.load([b, n, column]).reshape(ROWS, COLUMNS)
    else:
        r, c = n + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        place = source.base + b.to(tl.int64) * source.sample + r.to(tl.int64) * source.row + c
        tile = tl.load(place, (r < source.rows) & (c < source.columns), 0.0)
    return tile


@triton.jit
def find_tile(index, length, form, ROWS: tl.constexpr):
    """The sample and the first position of a tile. Where channels come last, all samples are read as a single one."""
    if form.last:
        b, n = index * 0, index * ROWS
    else:
        each = tl.cdiv(length, ROWS)
        b, n = index // each, index % each * ROWS
    return b, n


@triton.jit
def find_elements(b, n, column, N, C, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the elements of a map's tile lie. [ROWS, COLUMNS]"""
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if form.last:
        place = (b.to(tl.int64) * N + n) * C + column + r * C + c
    else:
        length = N // form.step * form.step  # N itself: the compiler sees how many neighbours it may take at once
        place = (b.to(tl.int64) * C + column) * length + n + c * length + r
    return place


@triton.jit
def are_inside(n, column, N, C, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which elements of a map's tile exist. [ROWS, COLUMNS]"""
    r, c = n + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
    return (r < N // form.step * form.step) & (c < C)


@triton.jit
def load_map(source, b, n, column, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Of sample b, from position n on. [ROWS, COLUMNS]"""
    if not form.map_tma:
        place = find_elements(b, n, column, source.rows, source.columns, form, ROWS, COLUMNS)
        inside = are_inside(n, column, source.rows, source.columns, form, ROWS, COLUMNS)
        tile = tl.load(source.base + place, inside, 0.0)
    elif form.last:
        tile = source.load([b, n, column]).reshape(ROWS, COLUMNS)
    else:
        tile = source.load([b, column, n]).reshape(COLUMNS, ROWS).T
    return tile


@triton.jit
def store_map(target, b, n, column, tile, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """To sample b, from position n on, in the map's dtype."""
    if not form.map_tma:
        place = find_elements(b, n, column, target.rows, target.columns, form, ROWS, COLUMNS)
        inside = are_inside(n, column, target.rows, target.columns, form, ROWS, COLUMNS)
        tl.store(target.base + place, tile.to(target.base.dtype.element_ty), inside)
    elif form.last:
        target.store([b, n, column], tile.to(target.dtype).reshape(1, ROWS, COLUMNS))
    else:
        target.store([b, column, n], tile.to(target.dtype).T.reshape(1, COLUMNS, ROWS))


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
def store_inside(target, b, n, column, tile, N, C, inside, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of a tile, to the map that begins at this pointer. inside [COLUMNS]"""
    place = find_elements(b, n, column, N, C, form, ROWS, COLUMNS)
    tl.store(target + place, tile, are_inside(n, column, N, C, form, ROWS, COLUMNS) & inside[None, :])


@triton.jit
def halves(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a tile [ROWS, 2 COLUMNS]. Each thread holds both of its columns: nothing moves."""
    return tl.split(tl.permute(tl.reshape(tile, (ROWS, 2, COLUMNS)), (0, 2, 1)))


@triton.jit
def add(x, z):
    """x + z, but x itself where z is zero: a new block keeps -0.0."""
    return tl.where(z == 0, x, x + z)
