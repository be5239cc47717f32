"""z = W_z y tile by tile, and what is done with it: its moments, the output, sums for the norm's gradient.

theta is kept here, z never is. For the dot kernel y is theta itself, and its coefficient, a number of each sample and
group, is left to whoever calls.

A program takes a few whole groups, or a part of a large one, of one sample: OUT channels, for which it needs W_z of
DEPTH inner channels at a time. It goes through ``steps`` times ROWS of the sample's positions, and reads the next while
it works on the last.
"""

# Kernels are read by Triton, not run by Python.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .machine import Form, cdiv, descriptor, form_of, launch, power_of_two, precision, processors
from .series import add, value


@triton.jit
def place_of(groups, form: tl.constexpr, together: tl.constexpr, OUT: tl.constexpr):
    """The first group of this program, and its channels counted from there. [OUT]"""
    across: tl.constexpr = (together * form[1] + OUT - 1) // OUT
    group = tl.program_id(0) // across * together
    o = tl.program_id(0) % across * OUT + tl.arange(0, OUT)
    return group, o, (o < together * form[1]) & (group * form[1] + o < groups * form[1])


@triton.jit
def weight_tile(z_weight, group, o, inside, k, form: tl.constexpr, together: tl.constexpr, DEPTH: tl.constexpr):
    """W_z, transposed, from inner channel k of these groups on; zero between different groups. [DEPTH, OUT]"""
    i = k + tl.arange(0, DEPTH)
    ok = (i[:, None] // form[0] == o[None, :] // form[1]) & (i[:, None] < together * form[0]) & inside[None, :]
    return tl.load(z_weight + (group * form[1] + o)[None, :] * form[0] + i[:, None] % form[0], ok, 0.0)


@triton.jit
def project(
    theta, w, z, coefficients, group, groups, k, form: tl.constexpr, together: tl.constexpr, DEPTH: tl.constexpr
):
    """z + w^T y, the p = 0 term left out. [ROWS, OUT]"""
    if form[5]:
        z = tl.dot(theta, w, z, input_precision=form[7])
    else:
        i = k + tl.arange(0, DEPTH)[None, :]
        known = (i < together * form[0]) & (group * form[0] + i < groups * form[0])
        c = coefficients + (group + i // form[0]) * form[3]
        y = value(theta.to(tl.float32), c, known, form[2], form[3], form[4])  # [ROWS, DEPTH]
        if form[6]:
            top = tl.maximum(tl.max(tl.abs(y)), 1e-30)
            z += tl.dot((y / top).to(w.dtype), w, input_precision=form[7]) * top
        else:
            z = tl.dot(y.to(w.dtype), w, z, input_precision=form[7])
    return z


@triton.jit
def z_tile(
    theta_desc,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # of this sample: [G, terms]
    w,  # the first tile of W_z, [DEPTH, OUT]
    b,
    n,
    group,
    groups,
    o,
    inside,
    form: tl.constexpr,
    together: tl.constexpr,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """W_z y from position n on. [ROWS, OUT]"""
    z = tl.zeros((ROWS, OUT), tl.float32)
    if together * form[0] <= DEPTH:
        theta = theta_desc.load([b, n, group * form[0]]).reshape(ROWS, DEPTH)
        z = project(theta, w, z, coefficients, group, groups, 0, form, together, DEPTH)
    else:
        for k in range(0, form[0], DEPTH):
            theta = theta_desc.load([b, n, group * form[0] + k]).reshape(ROWS, DEPTH)
            w = weight_tile(z_weight, group, o, inside, k, form, together, DEPTH)
            z = project(theta, w, z, coefficients, group, groups, k, form, together, DEPTH)
    return z


@triton.jit
def moments_kernel(
    theta_desc,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    moments,  # [2, B, parts, C]
    N,
    groups,
    steps,
    form: tl.constexpr,
    together: tl.constexpr,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Mean of z over a part of a sample's positions, and the sum of squares about it."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = place_of(groups, form, together, OUT)
    coefficients += b * groups * form[3]
    w = weight_tile(z_weight, group, o, inside, 0, form, together, DEPTH)
    r = tl.arange(0, ROWS)[:, None]
    begin = part * steps * ROWS
    # Squares are taken about the mean of the first tile, which is near that of all: nothing large is subtracted.
    z = z_tile(
        theta_desc, z_weight, coefficients, w, b, begin, group, groups, o, inside, form, together, ROWS, OUT, DEPTH
    )
    pilot = tl.sum(tl.where(r < N - begin, z, 0.0), 0)[None, :] / tl.minimum(N - begin, ROWS)
    plain, squares = tl.zeros((ROWS, OUT), tl.float32), tl.zeros((ROWS, OUT), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        n = begin + step * ROWS
        z = z_tile(
            theta_desc, z_weight, coefficients, w, b, n, group, groups, o, inside, form, together, ROWS, OUT, DEPTH
        )
        away = tl.where(r < N - n, z - pilot, 0.0)
        plain += away
        squares += away * away
    count = tl.minimum(N - begin, steps * ROWS)
    shift = tl.sum(plain, 0) / count
    out = moments + (b * tl.num_programs(1) + part) * groups * form[1] + group * form[1] + o
    tl.store(out, tl.sum(pilot, 0) + shift, inside)
    out += tl.num_programs(2) * tl.num_programs(1) * groups * form[1]
    tl.store(out, tl.maximum(tl.sum(squares, 0) - count * shift * shift, 0.0), inside)


@triton.jit
def merge_kernel(
    moments,  # [2, B, parts, C]
    merged,  # [2, B, C]
    N,
    each,  # positions of a part; the last has what is left
    C,
    parts,
    CHANNELS: tl.constexpr,
):
    """Moments of parts to those of the whole, by Chan's rule."""
    channel, b = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS), tl.program_id(1)
    inside, samples = channel < C, tl.num_programs(1)
    mean, squares = tl.zeros((CHANNELS,), tl.float32), tl.zeros((CHANNELS,), tl.float32)
    for part in range(parts):
        before, count = part * each, tl.minimum(each, N - part * each)
        place = moments + (b * parts + part) * C + channel
        away = tl.load(place, inside, 0.0) - mean
        share = count.to(tl.float32) / (before + count).to(tl.float32)
        mean += away * share
        squares += tl.load(place + samples * parts * C, inside, 0.0) + away * away * (before * share)
    tl.store(merged + b * C + channel, mean, inside)
    tl.store(merged + (samples + b) * C + channel, squares, inside)


@triton.jit
def apply_kernel(
    theta_desc,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    scale,  # [B, C]
    shift,  # [B, C]
    residual_desc,  # [B, N, C]
    out,  # [B, N, C]
    N,
    groups,
    steps,
    form: tl.constexpr,
    together: tl.constexpr,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """residual + (scale z + shift)."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = place_of(groups, form, together, OUT)
    C, start = groups * form[1], group * form[1]
    coefficients += b * groups * form[3]
    w = weight_tile(z_weight, group, o, inside, 0, form, together, DEPTH)
    a = tl.load(scale + b * C + start + o, inside, 0.0)[None, :]
    d = tl.load(shift + b * C + start + o, inside, 0.0)[None, :]
    r = tl.arange(0, ROWS)[:, None]
    for step in tl.range(0, steps, num_stages=STAGES):
        n = (part * steps + step) * ROWS
        z = z_tile(
            theta_desc, z_weight, coefficients, w, b, n, group, groups, o, inside, form, together, ROWS, OUT, DEPTH
        )
        x = residual_desc.load([b, n, start + tl.min(o)]).reshape(ROWS, OUT).to(tl.float32)
        place = out + (b.to(tl.int64) * N + n) * C + start + r * C + o[None, :]
        tl.store(place, add(x, z * a + d), (r < N - n) & inside[None, :])


@triton.jit
def gradient_sums_kernel(
    theta_desc,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    means,  # [B, C]
    grad_desc,  # [B, N, C]
    sums,  # [2, B, parts, C]
    groups,
    steps,
    form: tl.constexpr,
    together: tl.constexpr,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums of dO and of dO (z - mean) over a part of a sample's positions."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = place_of(groups, form, together, OUT)
    C, start = groups * form[1], group * form[1]
    coefficients += b * groups * form[3]
    w = weight_tile(z_weight, group, o, inside, 0, form, together, DEPTH)
    mean = tl.load(means + b * C + start + o, inside, 0.0)[None, :]
    plain, along = tl.zeros((ROWS, OUT), tl.float32), tl.zeros((ROWS, OUT), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        n = (part * steps + step) * ROWS
        z = z_tile(
            theta_desc, z_weight, coefficients, w, b, n, group, groups, o, inside, form, together, ROWS, OUT, DEPTH
        )
        # Zero beyond the last position.
        do = grad_desc.load([b, n, start + tl.min(o)]).reshape(ROWS, OUT).to(tl.float32)
        plain += do
        along += do * (z - mean)
    out = sums + (b * tl.num_programs(1) + part) * C + start + o
    tl.store(out, tl.sum(plain, 0), inside)
    tl.store(out + tl.num_programs(2) * tl.num_programs(1) * C, tl.sum(along, 0), inside)


class Cut(NamedTuple):
    """How channels and positions are shared out."""

    together: int
    """Groups of a program; 1 where a group is shared out itself."""
    rows: int
    out: int
    depth: int
    warps: int = 4
    stages: int = 3


def most_of(form: Form, dtype: torch.dtype) -> int:
    """Channels of a tile."""
    return 32 if form.precision == "ieee" else 128 if dtype != torch.float32 else 64


def together_of(form: Form, groups: int, most: int) -> int:
    """Whole groups that fit into this many channels, and half as many inner ones."""
    return max(1, min(most // form.wide, most // 2 // form.width, groups))


def cut_of(form: Form, groups: int, dtype: torch.dtype, warps: int = 4) -> Cut:
    """Whole groups where they fit, parts of one otherwise."""
    most = most_of(form, dtype)
    together = together_of(form, groups, most)
    out = min(most, power_of_two(together * form.wide))
    depth = min(max(16, most // 2), power_of_two(together * form.width))
    return Cut(together, min(64, most), out, depth, warps if out == 128 else 4)


def grid_of(
    cut: Cut, form: Form, groups: int, batch: int, positions: int, waves: int, device: torch.device
) -> tuple[tuple[int, int, int], int]:
    """(blocks of channels, parts of positions, samples) and steps, for about this many programs on each processor."""
    blocks = cdiv(groups, cut.together) * cdiv(cut.together * form.wide, cut.out)
    tiles = cdiv(positions, cut.rows)
    parts = min(tiles, max(1, round(waves * processors(device) / (blocks * batch))))
    steps = cdiv(tiles, parts)
    return (blocks, cdiv(tiles, steps), batch), steps


def moments(theta: Tensor, z_weight: Tensor, c: Tensor, first: int, gamma: float) -> Tensor:
    """Mean of z over the positions of each sample, and the sum of squares about it. [2, B, C]"""
    (batch, positions, _), groups, channels = theta.shape, c.shape[1], len(z_weight)
    form = form_of(z_weight, c, first, gamma, precision(theta))
    cut = cut_of(form, groups, theta.dtype, warps=8)
    grid, steps = grid_of(cut, form, groups, batch, positions, 2, theta.device)
    out = c.new_empty((2, batch, grid[1], channels))
    launch(
        moments_kernel, grid, cut.warps, cut.stages, descriptor(theta, 1, cut.rows, cut.depth), z_weight, c, out,
        positions, groups, steps, tuple(form), cut.together, cut.rows, cut.out, cut.depth, cut.stages,
    )  # fmt: skip
    return out[:, :, 0] if grid[1] == 1 else merge(out, positions, steps * cut.rows)


def merge(moments: Tensor, positions: int, each: int) -> Tensor:
    """Moments of parts [2, B, parts, C], of this many positions each but the last, to the whole's [2, B, C]."""
    _, batch, parts, channels = moments.shape
    merged = moments.new_empty((2, batch, channels))
    launch(merge_kernel, (cdiv(channels, 256), batch), 4, 1, moments, merged, positions, each, channels, parts, 256)
    return merged


def apply(
    residual: Tensor, theta: Tensor, z_weight: Tensor, c: Tensor, scale: Tensor, shift: Tensor, first: int, gamma: float
) -> Tensor:
    """residual + (scale z + shift), [B, N, C]; scale and shift are [B, C]."""
    (batch, positions, _), groups = theta.shape, c.shape[1]
    form = form_of(z_weight, c, first, gamma, precision(theta))
    cut = cut_of(form, groups, residual.dtype)
    grid, steps = grid_of(cut, form, groups, batch, positions, 6, theta.device)
    out = torch.empty_like(residual)
    launch(
        apply_kernel, grid, cut.warps, cut.stages, descriptor(theta, 1, cut.rows, cut.depth), z_weight, c, scale, shift,
        descriptor(residual, 1, cut.rows, cut.out), out, positions, groups, steps, tuple(form), cut.together, cut.rows,
        cut.out, cut.depth, cut.stages,
    )  # fmt: skip
    return out


def gradient_sums(
    grad: Tensor, theta: Tensor, z_weight: Tensor, c: Tensor, means: Tensor, first: int, gamma: float
) -> Tensor:
    """Sums over the positions of each sample of dO, and of dO (z - mean). [2, B, C]"""
    (batch, positions, _), groups = theta.shape, c.shape[1]
    form = form_of(z_weight, c, first, gamma, precision(theta))
    cut = cut_of(form, groups, grad.dtype, warps=8)
    grid, steps = grid_of(cut, form, groups, batch, positions, 2, theta.device)
    out = c.new_empty((2, batch, grid[1], len(z_weight)))
    launch(
        gradient_sums_kernel, grid, cut.warps, cut.stages, descriptor(theta, 1, cut.rows, cut.depth), z_weight, c,
        means, descriptor(grad, 1, cut.rows, cut.out), out, groups, steps, tuple(form), cut.together, cut.rows, cut.out,
        cut.depth, cut.stages,
    )  # fmt: skip
    return out.sum(2) if grid[1] > 1 else out[:, :, 0]
