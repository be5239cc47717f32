"""z = W_z y tile by tile, and what is done with it: its moments, the output, sums for the norm's gradient.

theta is kept here, z never is. For the dot kernel y is theta itself, and its coefficient, a number of each sample and
group, is left to whoever calls.

A program takes a few whole groups, or a part of a large one, of one sample: OUT channels, for which it needs W_z of
DEPTH inner channels at a time. It goes through ``steps`` times ROWS of the sample's positions, and reads the next while
it works on the last. These sizes are those of its ``Cut``.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Case, Launch, cdiv, constants, find_case, plan, power_of_two
from .operators import torch_operator
from .series import respond
from .tiles import add, load_map, load_tile, store_inside


@triton.jit
def find_place(groups, form, cut):
    """The first group of this program, its channels counted from there, and which of them exist. [OUT]"""
    outer: tl.constexpr = form.channels_per_group
    across: tl.constexpr = (cut.together * outer + cut.out - 1) // cut.out
    group = tl.program_id(0) // across * cut.together
    o = tl.program_id(0) % across * cut.out + tl.arange(0, cut.out)
    return group, o, (o < cut.together * outer) & (group * outer + o < groups * outer)


@triton.jit
def weight_tile(z_weight, group, o, inside, k, form, cut):
    """W_z, transposed, from inner channel k of these groups on; zero between different groups. [DEPTH, OUT]"""
    inner: tl.constexpr = form.inner_per_group
    outer: tl.constexpr = form.channels_per_group
    i = k + tl.arange(0, cut.depth)
    ok = (i[:, None] // inner == o[None, :] // outer) & (i[:, None] < cut.together * inner) & inside[None, :]
    return tl.load(z_weight + (group * outer + o)[None, :] * inner + i[:, None] % inner, ok, 0.0)


@triton.jit
def project(theta, w, z, coefficients, group, groups, k, form, cut):
    """z + w^T y, the p = 0 term left out. [ROWS, OUT]"""
    if form.dot:
        z = tl.dot(theta, w, z, input_precision=form.precision)
    else:
        i = k + tl.arange(0, cut.depth)[None, :]
        width: tl.constexpr = form.inner_per_group
        known = (i < cut.together * width) & (group * width + i < groups * width)
        y, top = respond(theta, coefficients + (group + i // width) * form.terms, known, w.dtype, form)
        if form.rescale:
            z += tl.dot(y, w, input_precision=form.precision) * top
        else:
            z = tl.dot(y, w, z, input_precision=form.precision)
    return z


@triton.jit
def z_tile(theta, z_weight, coefficients, w, b, n, group, groups, o, inside, form, cut):
    """W_z y of sample b from position n on; w is the first tile of W_z, coefficients [G, terms]. [ROWS, OUT]"""
    z = tl.zeros((cut.rows, cut.out), tl.float32)
    if cut.together * form.inner_per_group <= cut.depth:
        t = load_tile(theta, b, n, group * form.inner_per_group, cut.rows, cut.depth, form.tma)
        z = project(t, w, z, coefficients, group, groups, 0, form, cut)
    else:
        for k in range(0, form.inner_per_group, cut.depth):
            t = load_tile(theta, b, n, group * form.inner_per_group + k, cut.rows, cut.depth, form.tma)
            w = weight_tile(z_weight, group, o, inside, k, form, cut)
            z = project(t, w, z, coefficients, group, groups, k, form, cut)
    return z


@triton.jit
def moments_fwd_kernel(
    theta,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    moments,  # [2, B, parts, C]
    N, groups, steps, form, cut,
):  # fmt: skip
    """Mean of z over a part of a sample's positions, and the sum of squares about it."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = find_place(groups, form, cut)
    coefficients += b * groups * form.terms
    w = weight_tile(z_weight, group, o, inside, 0, form, cut)
    r = tl.arange(0, cut.rows)[:, None]
    begin = part * steps * cut.rows
    # Squares are taken about the mean of the first tile, which is near that of all: nothing large is subtracted.
    z = z_tile(theta, z_weight, coefficients, w, b, begin, group, groups, o, inside, form, cut)
    pilot = tl.sum(tl.where(r < N - begin, z, 0.0), 0)[None, :] / tl.minimum(N - begin, cut.rows)
    plain, squares = tl.zeros((cut.rows, cut.out), tl.float32), tl.zeros((cut.rows, cut.out), tl.float32)
    for step in tl.range(0, steps, num_stages=cut.stages):
        n = begin + step * cut.rows
        z = z_tile(theta, z_weight, coefficients, w, b, n, group, groups, o, inside, form, cut)
        away = tl.where(r < N - n, z - pilot, 0.0)
        plain += away
        squares += away * away
    count = tl.minimum(N - begin, steps * cut.rows)
    shift = tl.sum(plain, 0) / count
    C = groups * form.channels_per_group
    out = moments + (b * tl.num_programs(1) + part) * C + group * form.channels_per_group + o
    tl.store(out, tl.sum(pilot, 0) + shift, inside)
    out += tl.num_programs(2) * tl.num_programs(1) * C
    tl.store(out, tl.maximum(tl.sum(squares, 0) - count * shift * shift, 0.0), inside)


@triton.jit
def merge_moments_fwd_kernel(
    moments,  # [2, B, parts, C]
    merged,  # [2, B, C]
    N,
    each,  # positions of a part; the last has what is left
    C, parts, CHANNELS: tl.constexpr,
):  # fmt: skip
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
def apply_fwd_kernel(
    theta,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    affine,  # scale and shift: [2, B, C]
    residual,  # [B, N, C]
    out,  # [B, N, C]
    N, groups, steps, form, cut,
):  # fmt: skip
    """residual + (scale z + shift)."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = find_place(groups, form, cut)
    C, start = groups * form.channels_per_group, group * form.channels_per_group
    coefficients += b * groups * form.terms
    w = weight_tile(z_weight, group, o, inside, 0, form, cut)
    a = tl.load(affine + b * C + start + o, inside, 0.0)[None, :]
    d = tl.load(affine + (tl.num_programs(2) + b) * C + start + o, inside, 0.0)[None, :]
    for step in tl.range(0, steps, num_stages=cut.stages):
        n = (part * steps + step) * cut.rows
        z = z_tile(theta, z_weight, coefficients, w, b, n, group, groups, o, inside, form, cut)
        x = load_map(residual, b, n, start + tl.min(o), form, cut.rows, cut.out).to(tl.float32)
        store_inside(out, b, n, start + tl.min(o), add(x, z * a + d), N, C, inside, form, cut.rows, cut.out)


@triton.jit
def gradient_sums_bwd_kernel(
    theta,  # [B, N, I]
    z_weight,  # [C, width]
    coefficients,  # [B, G, terms]
    means,  # [B, C]
    grad,  # [B, N, C]
    sums,  # [2, B, parts, C]
    N, groups, steps, form, cut,  # noqa: ARG001
):  # fmt: skip
    """Sums of dO and of dO (z - mean) over a part of a sample's positions."""
    part, b = tl.program_id(1), tl.program_id(2)
    group, o, inside = find_place(groups, form, cut)
    C, start = groups * form.channels_per_group, group * form.channels_per_group
    coefficients += b * groups * form.terms
    w = weight_tile(z_weight, group, o, inside, 0, form, cut)
    mean = tl.load(means + b * C + start + o, inside, 0.0)[None, :]
    plain, along = tl.zeros((cut.rows, cut.out), tl.float32), tl.zeros((cut.rows, cut.out), tl.float32)
    for step in tl.range(0, steps, num_stages=cut.stages):
        n = (part * steps + step) * cut.rows
        z = z_tile(theta, z_weight, coefficients, w, b, n, group, groups, o, inside, form, cut)
        # Zero beyond the last position.
        do = load_map(grad, b, n, start + tl.min(o), form, cut.rows, cut.out).to(tl.float32)
        plain += do
        along += do * (z - mean)
    out = sums + (b * tl.num_programs(1) + part) * C + start + o
    tl.store(out, tl.sum(plain, 0), inside)
    tl.store(out + tl.num_programs(2) * tl.num_programs(1) * C, tl.sum(along, 0), inside)


class Cut(NamedTuple):
    """How channels and positions are shared out."""

    together: int  # groups of a program; 1 where a group is shared out itself
    rows: int
    out: int
    depth: int
    warps: int = 4
    stages: int = 3


def max_channels(case: Case, dtype: torch.dtype) -> int:
    """Channels of a tile."""
    return 32 if case.precision == "ieee" else 128 if dtype != torch.float32 else 64


def count_groups(case: Case, most: int) -> int:
    """Whole groups that fit into this many channels, and half as many inner ones."""
    form = case.form
    return max(1, min(most // form.channels_per_group, most // 2 // form.inner_per_group, case.groups))


def choose_cut(case: Case, warps: int = 4) -> Cut:
    """Whole groups where they fit, parts of one otherwise."""
    most = max_channels(case, case.map_dtype)
    together = count_groups(case, most)
    out = min(most, power_of_two(together * case.form.channels_per_group))
    depth = min(max(16, most // 2), power_of_two(together * case.form.inner_per_group))
    return Cut(together, min(64, most), out, depth, warps if out == 128 else 4)


def choose_narrow_cut(case: Case) -> Cut:
    """For ``branch_bwd_kernel``, which holds whole groups: W_z of them and its gradient."""
    together = count_groups(case, max_channels(case, case.dtype))
    out = power_of_two(together * case.form.channels_per_group)
    depth = power_of_two(together * case.form.inner_per_group)
    large = out * depth > 128 * 64 or case.dtype == torch.float32
    return Cut(together, 32, out, depth, 8 if large else 4, 3)


def choose_grid(cut: Cut, case: Case, waves: int) -> tuple[tuple[int, int, int], int]:
    """(blocks of channels, parts of positions, samples) and steps, for about this many programs on each processor."""
    blocks = cdiv(case.groups, cut.together) * cdiv(cut.together * case.form.channels_per_group, cut.out)
    tiles = cdiv(case.positions, cut.rows)
    parts = min(tiles, max(1, round(waves * case.on.processors / (blocks * case.batch))))
    steps = cdiv(tiles, parts)
    return (blocks, cdiv(tiles, steps), case.batch), steps


def make_launch(kernel: Any, cut: Cut, case: Case, waves: int, *given: Any) -> Launch:
    """Of a kernel with these constants after its steps, in about so many waves of programs."""
    grid, steps = choose_grid(cut, case, waves)
    return Launch(
        kernel, grid, cut.warps, cut.stages, case.positions, case.groups, steps, *given, constants(case.form),
        constants(cut),
    )  # fmt: skip


@plan
def make_plan(kernel: Any, waves: int, warps: int, case: Case) -> tuple[Cut, Launch]:
    cut = choose_cut(case, warps)
    return cut, make_launch(kernel, cut, case, waves)


@plan
def make_moments_plan(case: Case) -> tuple[Cut, Launch, Launch | None]:
    """The cut, the launch, and another that merges parts where there are several."""
    cut, launch = make_plan(moments_fwd_kernel, 2, 8, case)
    (_, parts, _), steps = choose_grid(cut, case, 2)
    if parts == 1:
        return cut, launch, None
    grid, sizes = (cdiv(case.channels, 256), case.batch), (case.positions, steps * cut.rows, case.channels, parts, 256)
    return cut, launch, Launch(merge_moments_fwd_kernel, grid, 4, 1, *sizes)


def find_branch_case(theta: Tensor, maps: Tensor, z_weight: Tensor, c: Tensor, first: int, gamma: float) -> Case:
    """For theta [B, N, I], or a part of a wider tensor."""
    return find_case(theta, maps, len(z_weight), theta.shape[2], c.shape[1], first, c.shape[2], gamma)


@torch_operator(
    fake=lambda theta, z_weight, *_: theta.new_empty((2, theta.shape[0], len(z_weight)), dtype=torch.float32)
)
def fused_moments(theta: Tensor, z_weight: Tensor, c: Tensor, first: int, gamma: float) -> Tensor:
    """Mean of z over the positions of each sample, and the sum of squares about it. [2, B, C]"""
    case = find_branch_case(theta, theta, z_weight, c, first, gamma)
    cut, launch, merge = make_moments_plan(case)
    merged = c.new_empty((2, case.batch, case.channels))
    out = merged if merge is None else c.new_empty((2, case.batch, launch.grid[1], case.channels))
    launch(case.source(theta, 1, cut.rows, cut.depth), z_weight, c, out)
    if merge is not None:
        merge(out, merged)
    return merged


@torch_operator(
    fake=lambda residual, *_: torch.empty_like(residual),
    flops=lambda _, theta, z_weight, c, *__: 2 * math.prod(theta[:2]) * (theta[2] * c[2] + math.prod(z_weight)),
)
def fused_apply(
    residual: Tensor, theta: Tensor, z_weight: Tensor, c: Tensor, affine: Tensor, first: int, gamma: float
) -> Tensor:
    """residual + (scale z + shift), [B, N, C]; affine begins with scale and shift, each [B, C]."""
    case = find_branch_case(theta, residual, z_weight, c, first, gamma)
    cut, launch = make_plan(apply_fwd_kernel, 6, 4, case)
    out = torch.empty_like(residual)
    theta_ = case.source(theta, 1, cut.rows, cut.depth)
    launch(theta_, z_weight, c, affine, case.map_source(residual, cut.rows, cut.out), out)
    return out


@torch_operator(fake=lambda grad, *_: grad.new_empty((2, grad.shape[0], grad.shape[2]), dtype=torch.float32))
def fused_gradient_sums(
    grad: Tensor, theta: Tensor, z_weight: Tensor, c: Tensor, means: Tensor, first: int, gamma: float
) -> Tensor:
    """Sums over the positions of each sample of dO, and of dO (z - mean), [2, B, C]; means begins with [B, C]."""
    case = find_branch_case(theta, grad, z_weight, c, first, gamma)
    cut, launch = make_plan(gradient_sums_bwd_kernel, 2, 8, case)
    out = c.new_empty((2, case.batch, launch.grid[1], case.channels))
    theta_ = case.source(theta, 1, cut.rows, cut.depth)
    launch(theta_, z_weight, c, means, case.map_source(grad, cut.rows, cut.out), out)
    return out.sum(2) if out.shape[2] > 1 else out.view(2, case.batch, case.channels)
