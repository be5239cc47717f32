"""Gradients of theta, phi, g and W_z, from dO and what is recomputed of the forward pass.

The norm's part is settled before: dz = a dO + u + v z, with a, u, v of each sample and channel.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .branch import Cut, choose_cut, choose_narrow_cut, find_branch_case, find_place, make_launch, weight_tile, z_tile
from .launch import Case, Hardware, Launch, Tile, cdiv, constants, find_case, plan, power_of_two
from .series import envelope, expm1, respond, slope, value
from .tiles import load_map, load_tile, store_inside


@triton.jit
def norm_factors(factors, b, C, channel, inside):
    """a, u and v of a sample at some channels. Each [1, OUT]"""
    a = tl.load(factors + 3 * b * C + channel, inside, 0.0)[None, :]
    u = tl.load(factors + (3 * b + 1) * C + channel, inside, 0.0)[None, :]
    v = tl.load(factors + (3 * b + 2) * C + channel, inside, 0.0)[None, :]
    return a, u, v


@triton.jit
def branch_bwd_kernel(
    theta,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    factors,  # a, u, v: [B, 3, C]
    grad,  # dO: [B, N, C]
    grad_theta,  # [B, N, stride]
    grad_x,  # [B, N, C], or anything
    grad_z,  # dW_z: [B, parts, C, width]
    grad_c,  # [B, parts, terms, I], to be summed over the channels of a group
    N, groups, steps, stride,
    residual: tl.constexpr,  # whether dO is dX's first part, and is copied
    form, cut,
):  # fmt: skip
    """All gradients of W_z y for a few groups that fit into a tile. theta may be overwritten by its gradient.

    For the dot kernel y is theta, and there is no gradient of its coefficient.
    """
    width: tl.constexpr = form.inner_per_group
    part, b, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(1)
    group, o, inside = find_place(groups, form, cut)
    C, start = groups * form.channels_per_group, group * form.channels_per_group
    r, i = tl.arange(0, cut.rows)[:, None], tl.arange(0, cut.depth)
    known = (i < cut.together * width) & (group * width + i < groups * width)
    w = weight_tile(z_weight, group, o, inside, 0, form, cut)
    a, u, v = norm_factors(factors, b, C, start + o, inside)
    c = coefficients + (b * groups + group + i[None, :] // width) * form.terms
    dw = tl.zeros((cut.depth, cut.out), tl.float32)
    slots: tl.constexpr = 16
    slot = tl.arange(0, slots)[:, None]
    dc = tl.zeros((slots, cut.depth), tl.float32)  # a row for each power
    for step in tl.range(0, steps, num_stages=cut.stages):
        n = (part * steps + step) * cut.rows
        row, here = b.to(tl.int64) * N + n, r < N - n
        t = load_tile(theta, b, n, group * width, cut.rows, cut.depth, form.tma)
        if cut.together * width != cut.depth:
            t = tl.where(known[None, :], t, 0.0)  # what belongs to other groups is being overwritten
        y, top = respond(t, c, known[None, :], t.dtype, form)
        z = tl.dot(y, w, input_precision=form.precision)  # [ROWS, OUT]
        if form.rescale:
            z *= top
        do = load_map(grad, b, n, start, form, cut.rows, cut.out)
        if residual:
            store_inside(grad_x, b, n, start, do, N, C, inside, form, cut.rows, cut.out)
        slopes = tl.where(here & inside[None, :], a * do.to(tl.float32) + u + v * z, 0.0)
        if form.rescale:  # where float16 cannot hold y, neither can it hold dz
            peak = tl.maximum(tl.max(tl.abs(slopes)), 1e-30)
            dz = (slopes / peak).to(t.dtype)  # [ROWS, OUT]
            dt = tl.dot(dz, w.T, input_precision=form.precision) * peak  # [ROWS, COLUMNS]
            dw += tl.dot(y.T, dz, input_precision=form.precision) * (top * peak)
        else:
            dz = slopes.to(t.dtype)
            dt = tl.dot(dz, w.T, input_precision=form.precision)
            dw = tl.dot(y.T, dz, dw, input_precision=form.precision)
        if not form.dot:
            x = t.to(tl.float32)
            power = dt
            if form.gamma > 0:
                if form.first == 0:
                    dc += tl.where(slot == 0, tl.sum(dt * expm1(x * x * -form.gamma), 0)[None, :], 0.0)
                power *= envelope(x, form.gamma)
            for p in tl.static_range(1, form.first + form.terms):
                power *= x
                if p >= form.first:
                    dc += tl.where(slot == p - form.first, tl.sum(power, 0)[None, :], 0.0)
            dt *= slope(x, c, known[None, :], form.first, form.terms, form.gamma)
        tl.store(grad_theta + row * stride + group * width + r * stride + i[None, :], dt, here & known[None, :])
    i = i[:, None]
    same = (i // width == o[None, :] // form.channels_per_group) & known[:, None] & inside[None, :]
    place = grad_z + ((b * parts + part).to(tl.int64) * C + start + o[None, :]) * width + i % width
    tl.store(place, dw, same)
    if not form.dot:
        i = tl.arange(0, cut.depth)[None, :]
        place = grad_c + ((b * parts + part) * form.terms + slot) * (groups * width) + group * width + i
        tl.store(place, dc, (slot < form.terms) & known[None, :])


@triton.jit
def dz_bwd_kernel(
    theta,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    factors,  # a, u, v: [B, 3, C]
    grad,  # dO: [B, N, C]
    grad_x,  # [B, N, C], or anything
    grad_z,  # dz: [B, N, C], where channels come last
    N, groups, steps,
    residual: tl.constexpr,  # whether dO is dX's first part, and is copied
    form, cut,
):  # fmt: skip
    """dz = a dO + u + v z."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = find_place(groups, form, cut)
    C, start = groups * form.channels_per_group, group * form.channels_per_group
    coefficients += b * groups * form.terms
    w = weight_tile(z_weight, group, o, inside, 0, form, cut)
    a, u, v = norm_factors(factors, b, C, start + o, inside)
    r = tl.arange(0, cut.rows)[:, None]
    for step in tl.range(0, steps, num_stages=cut.stages):
        n = (part * steps + step) * cut.rows
        z = z_tile(theta, z_weight, coefficients, w, b, n, group, groups, o, inside, form, cut)
        do = load_map(grad, b, n, start + tl.min(o), form, cut.rows, cut.out)
        if residual:
            store_inside(grad_x, b, n, start + tl.min(o), do, N, C, inside, form, cut.rows, cut.out)
        place = grad_z + (b.to(tl.int64) * N + n) * C + start + r * C + o[None, :]
        tl.store(place, a * do.to(tl.float32) + u + v * z, (r < N - n) & inside[None, :])


@triton.jit
def response_bwd_kernel(
    theta,  # [B, N, stride]
    coefficients,  # [B, G, terms]
    grad_y,  # [G, B N, width]
    grad_theta,  # [B, N, grad_stride]
    y,  # [G, B N, width]
    grad_c,  # [B, parts, terms, I]
    stride, grad_stride, N, groups, form, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y and the gradients of theta and of the coefficients, element by element. theta may be overwritten."""
    width: tl.constexpr = form.inner_per_group
    part, b = tl.program_id(1), tl.program_id(2)
    parts, rows = tl.num_programs(1), tl.num_programs(2).to(tl.int64) * N
    across = tl.cdiv(width, COLUMNS)
    group, start = tl.program_id(0) // across, tl.program_id(0) % across * COLUMNS
    r, i = tl.arange(0, ROWS)[:, None], start + tl.arange(0, COLUMNS)[None, :]
    row = b.to(tl.int64) * N + part * ROWS
    ok = (r < N - part * ROWS) & (i < width)
    x = tl.load(theta + row * stride + r * stride + group * width + i, ok, 0.0).to(tl.float32)
    grouped = (group * rows + row) * width
    dy = tl.load(grad_y + grouped + r * width + i, ok, 0.0).to(tl.float32)
    c = coefficients + (b * groups + group) * form.terms + i * 0
    place = grad_theta + row * grad_stride + r * grad_stride + group * width + i
    if form.dot:
        tl.store(y + grouped + r * width + i, x, ok)
        tl.store(place, dy, ok)
    else:
        tl.store(y + grouped + r * width + i, value(x, c, i < width, form.first, form.terms, form.gamma), ok)
        tl.store(place, dy * slope(x, c, i < width, form.first, form.terms, form.gamma), ok)
        out = grad_c + (b * parts + part).to(tl.int64) * form.terms * groups * width + group * width + i
        power = dy
        if form.first == 0:
            tl.store(out, tl.sum(dy * expm1(x * x * -form.gamma), 0)[None, :], i < width)
        if form.gamma > 0:
            power *= envelope(x, form.gamma)
        for p in tl.static_range(1, form.first + form.terms):
            power *= x
            if p >= form.first:
                tl.store(out + (p - form.first) * groups * width, tl.sum(power, 0)[None, :], i < width)


@triton.jit
def factors_bwd_kernel(
    phi,  # [B, N, stride]
    g,  # [B, N, stride]
    grad_sums,  # [B, G, terms]
    grad_squares,  # [B, G], of sum phi^2, or anything
    stride, N, groups, squares: tl.constexpr, width: tl.constexpr, first: tl.constexpr, terms: tl.constexpr,
    gamma: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """phi and g become their gradients: of sum_i exp(-gamma phi_i^2) phi_i^p g_i, and of sum_i phi_i^2."""
    i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    b, r = tl.program_id(2), tl.arange(0, ROWS)[:, None]
    n = tl.program_id(1) * ROWS
    place = (b.to(tl.int64) * N + n) * stride + r * stride + i
    known = i < groups * width
    ok = (r < N - n) & known
    x, weight = tl.load(phi + place, ok, 0.0).to(tl.float32), tl.load(g + place, ok, 0.0).to(tl.float32)
    c = grad_sums + (b * groups + i // width) * terms
    dg = value(x, c, known, first, terms, gamma)
    if first == 0:
        dg += tl.load(c, known, 0.0)
    dphi = weight * slope(x, c, known, first, terms, gamma)
    if squares:
        dphi += 2 * x * tl.load(grad_squares + b * groups + i // width, known, 0.0)
    tl.store(phi + place, dphi, ok)
    tl.store(g + place, dg, ok)


def is_narrow(case: Case) -> bool:
    """Whether one program can hold W_z of a group, and its gradient. In TF32 each operand is held as a sum of three."""
    most = 64 * 64 if case.dtype == torch.float32 and case.precision != "ieee" else 128 * 128
    width, wide = case.form.inner_per_group, case.form.channels_per_group
    return width <= 128 and wide <= 256 and width * wide <= most


def branch_backward(
    grad: Tensor, theta: Tensor, z_weight: Tensor, c: Tensor, factors: Tensor, grad_theta: Tensor,
    grad_x: Tensor | None, first: int, gamma: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Writes dtheta, and dO into grad_x; returns dW_z [C, width] and the gradients of the coefficients [B, G, K].

    grad is dO [B, N, C], factors [B, 3, C]; theta and grad_theta are [B, N, I] and may be the same. The dot kernel's
    coefficient is not seen here, and gets None.
    """
    case = find_branch_case(theta, grad, z_weight, c, first, gamma)
    run = _narrow if is_narrow(case) else _wide
    grad_z, grad_c = run(case, grad, theta, z_weight, c, factors, grad_theta, grad_x)
    if case.form.dot:
        return grad_z, None
    return grad_z, grad_c.sum(1).unflatten(2, (case.groups, -1)).sum(3).transpose(1, 2)


@plan
def make_narrow_plan(case: Case, stride: int, residual: bool) -> tuple[Cut, Launch]:
    cut = choose_narrow_cut(case)
    return cut, make_launch(branch_bwd_kernel, cut, case, 2, stride, residual)


def _narrow(case: Case, grad, theta, z_weight, c, factors, grad_theta, grad_x) -> tuple[Tensor, Tensor]:
    cut, launch = make_narrow_plan(case, grad_theta.stride(1), grad_x is not None)
    parts, form = launch.grid[1], case.form
    grad_z = c.new_empty((case.batch, parts, case.channels, form.inner_per_group))
    grad_c = c if form.dot else c.new_empty((case.batch, parts, form.terms, case.inner))
    theta_, grad_ = case.source(theta, 1, cut.rows, cut.depth), case.map_source(grad, cut.rows, cut.out)
    launch(theta_, z_weight, c, factors, grad_, grad_theta, grad if grad_x is None else grad_x, grad_z, grad_c)
    return grad_z.sum((0, 1)), grad_c


@plan
def make_wide_plan(case: Case, stride: int, grad_stride: int, residual: bool) -> tuple[Cut, Launch, Launch]:
    cut, width = choose_cut(case), case.form.inner_per_group
    dz = make_launch(dz_bwd_kernel, cut, case, 6, residual)
    rows, columns = 32, min(128, power_of_two(width))
    grid = case.groups * cdiv(width, columns), cdiv(case.positions, rows), case.batch
    sizes = stride, grad_stride, case.positions, case.groups
    return cut, dz, Launch(response_bwd_kernel, grid, 4, 1, *sizes, constants(case.form), rows, columns)


def _wide(case: Case, grad, theta, z_weight, c, factors, grad_theta, grad_x) -> tuple[Tensor, Tensor]:
    form, groups = case.form, case.groups
    cut, write_dz, write_response = make_wide_plan(case, theta.stride(1), grad_theta.stride(1), grad_x is not None)
    dtype = torch.float32 if form.rescale else theta.dtype
    dz = grad.new_empty(grad.shape, dtype=dtype)
    theta_, grad_ = case.source(theta, 1, cut.rows, cut.depth), case.map_source(grad, cut.rows, cut.out)
    write_dz(theta_, z_weight, c, factors, grad_, grad if grad_x is None else grad_x, dz)
    dz = dz.view(-1, groups, form.channels_per_group).transpose(0, 1)  # [G, B N, wide]
    dy = dz @ z_weight.view(groups, form.channels_per_group, form.inner_per_group).to(dtype)  # [G, B N, width]
    y = torch.empty_like(dy)
    grad_c = c.new_empty((case.batch, write_response.grid[1], form.terms, case.inner))
    write_response(theta, c, dy, grad_theta, y, grad_c)
    return (dz.transpose(1, 2) @ y).float().flatten(0, 1), grad_c


@triton.jit
def weight_bwd_kernel(
    grad,  # [B, N, I]
    x,  # [B, N, C]
    sums,  # [parts, I, C]
    samples, N, I, C,  # noqa: E741
    each,  # tiles of positions in a part
    form, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The weight's gradient over a part of all tiles of positions: ``grad.flatten(0, 1).T @ x.flatten(0, 1)``."""
    across, tiles = tl.cdiv(C, COLUMNS), tl.cdiv(N, DEPTH)
    row, column = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * COLUMNS
    part = tl.program_id(1)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(part * each, tl.minimum(part * each + each, samples * tiles)):
        b, n = tile // tiles, tile % tiles * DEPTH
        d = load_tile(grad, b, n, row, DEPTH, ROWS, form.tma)
        total = tl.dot(d.T, load_map(x, b, n, column, form, DEPTH, COLUMNS), total, input_precision=form.precision)
    i, c = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
    tl.store(sums + (part.to(tl.int64) * I + i) * C + c, total, (i < I) & (c < C))


def choose_weight_tile(dtype: torch.dtype, precision: str, on: Hardware) -> Tile:
    if dtype != torch.float32:
        return Tile(128, 128, 64, 8, 4) if on.tma else Tile(128, 128, 32, 8, 3)
    return Tile(32, 32, 32, 4, 2) if precision == "ieee" else Tile(64, 64, 32, 4, 3)


@plan
def make_weight_plan(case: Case) -> tuple[Tile, int, Launch]:
    """Positions are shared out such that the last programs to run leave few processors idle."""
    tile = choose_weight_tile(case.dtype, case.form.precision, case.on)
    blocks = cdiv(case.inner, tile.rows) * cdiv(case.channels, tile.columns)
    tiles = case.batch * cdiv(case.positions, tile.depth)
    most = min(tiles, max(8, case.on.processors // blocks))
    parts = min(range(1, most + 1), key=lambda parts: cdiv(blocks * parts, case.on.processors) / parts)
    each = cdiv(tiles, parts)
    parts = cdiv(tiles, each)
    launch = Launch(
        weight_bwd_kernel, (blocks, parts), tile.warps, tile.stages, case.batch, case.positions, case.inner,
        case.channels, each, constants(case.form), tile.rows, tile.columns, tile.depth,
    )  # fmt: skip
    return tile, parts, launch


def weight_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of a weight [I, C] from those of X W^T [B, N, I] and X [B, N, C], in float32.

    For positions last in memory: samples lie between those that a matrix product would sum over.
    """
    case = find_case(x, x, x.shape[2], grad.shape[2], 1, 1, 1, 0.0)
    tile, parts, launch = make_weight_plan(case)
    sums = x.new_empty((parts, case.inner, case.channels), dtype=torch.float32)
    grad_ = case.source(grad, 1, tile.depth, tile.rows)
    launch(grad_, case.map_source(x, tile.depth, tile.columns), sums)
    return sums.view(case.inner, case.channels) if parts == 1 else sums.sum(0)


@plan
def make_factors_plan(
    shape: torch.Size, groups: int, stride: int, squares: bool, first: int, terms: int, gamma: float, *_like: Any
) -> Launch:
    """For phi and g of this shape, dtype and device."""
    batch, positions, inner = shape
    rows, columns = 32, min(256, power_of_two(inner))
    return Launch(
        factors_bwd_kernel, (cdiv(inner, columns), cdiv(positions, rows), batch), 4, 1, stride, positions, groups,
        squares, inner // groups, first, terms, gamma, rows, columns,
    )  # fmt: skip


def factors_backward(
    phi: Tensor, g: Tensor, grad_sums: Tensor, grad_squares: Tensor | None, first: int, gamma: float
) -> None:
    """phi and g [B, N, I], with the same strides, become their gradients."""
    (_, groups, terms), squares = grad_sums.shape, grad_squares is not None
    launch = make_factors_plan(phi.shape, groups, phi.stride(1), squares, first, terms, gamma, phi.dtype, phi.device)
    launch(phi, g, grad_sums, grad_sums if grad_squares is None else grad_squares)
