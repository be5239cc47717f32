"""Batch norm from the moments of z in each sample: what ``norm`` says in tensor operations, in one kernel each way.

A program takes a few channels of all samples. Dozens of operations on tensors this small take longer than the block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, cdiv, plan, power_of_two
from .operators import torch_operator

MOST = 256
"""Samples that one program holds."""


@triton.jit
def find_place(
    coefficients, B, C, wide: tl.constexpr, terms: tl.constexpr, SAMPLES: tl.constexpr, CHANNELS: tl.constexpr
):
    """Channels [1, CHANNELS] and whether they exist; places in [B, C], whether they exist, and their coefficients."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    b = tl.arange(0, SAMPLES)[:, None]
    known, ok = channel < C, (b < B) & (channel < C)
    at, c = b * C + channel, coefficients + (b * (C // wide) + channel // wide) * terms
    return channel, known, at, ok, c


@triton.jit
def batch_norm_fwd_kernel(
    moments,  # [2, B, C]
    coefficients,  # [B, G, terms]
    row_sums,  # of W_z: [C], where there is a p = 0 term
    weight,  # [C]
    bias,  # [C]
    standard,  # scale, shift and q: [3, B, C]
    found,  # mean, unbiased variance, p: [3, C]
    eps, B, N, C, wide: tl.constexpr, first: tl.constexpr, terms: tl.constexpr, dot: tl.constexpr,
    SAMPLES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """z^ = p z + q, and weight z^ + bias = scale z + shift; with the dot kernel it is s z that is normalised."""
    channel, known, at, ok, c = find_place(coefficients, B, C, wide, terms, SAMPLES, CHANNELS)
    means, squares = tl.load(moments + at, ok, 0.0), tl.load(moments + B * C + at, ok, 0.0)
    s = means * 0 + 1
    if dot:
        s = tl.load(c, ok, 0.0)
        means *= s
        squares *= s * s
    mean = tl.sum(means, 0)[None, :] / B
    away = means - mean
    whole, constant = mean, mean * 0
    if first == 0:  # it can be thousands of times the rest, so it is centred by itself
        constant = tl.load(c, ok, 0.0) * tl.load(row_sums + channel, known, 0.0)
        middle = tl.sum(constant, 0)[None, :] / B
        constant -= middle
        away += constant
        whole += middle
    squares = tl.sum(tl.where(ok, squares + N * away * away, 0.0), 0)[None, :]
    p = tl.div_rn(1.0, tl.sqrt_rn(squares / (B * N) + eps))  # exact: the size of z cancels only against itself
    gain = tl.load(weight + channel, known, 0.0)
    along = (constant - mean) * p + means * 0  # [SAMPLES, CHANNELS]
    tl.store(standard + at, gain * p * s, ok)
    tl.store(standard + B * C + at, gain * along + tl.load(bias + channel, known, 0.0), ok)
    tl.store(standard + 2 * B * C + at, along, ok)
    tl.store(found + channel, whole, known)
    tl.store(found + C + channel, squares / tl.maximum(B * N - 1, 1), known)
    tl.store(found + 2 * C + channel, p, known)


@triton.jit
def batch_norm_bwd_kernel(
    sums,  # of dO and of dO (z - mean): [2, B, C]
    moments,  # [2, B, C]
    coefficients,  # [B, G, terms]
    row_sums,  # [C]
    weight,  # [C]
    standard,  # of which q is read: [3, B, C]
    found,  # of which p is read: [3, C]
    factors,  # a, u, v: [B, 3, C]
    extra,  # [B, C], to be summed over a group: the gradient of the only or of the first coefficient
    grads,  # of weight, bias and row_sums: [3, C]
    B, N, C, wide: tl.constexpr, first: tl.constexpr, terms: tl.constexpr, dot: tl.constexpr, SAMPLES: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """a, u, v of dz = a dO + u + v z, and everything that follows from sums over positions alone."""
    channel, known, at, ok, c = find_place(coefficients, B, C, wide, terms, SAMPLES, CHANNELS)
    plain, along = tl.load(sums + at, ok, 0.0), tl.load(sums + B * C + at, ok, 0.0)
    means, squares = tl.load(moments + at, ok, 0.0), tl.load(moments + B * C + at, ok, 0.0)
    inverse, away = tl.load(found + 2 * C + channel, known, 0.0), tl.load(standard + 2 * B * C + at, ok, 0.0)
    gain = tl.load(weight + channel, known, 0.0)
    s = means * 0 + 1
    if dot:
        s = tl.load(c, ok, 0.0)
    standing = inverse * s * along + (inverse * s * means + away) * plain  # sum of dO z^
    bias, slope = tl.sum(plain, 0)[None, :], tl.sum(standing, 0)[None, :]
    m1, m2 = gain * bias / (B * N), gain * slope / (B * N)
    a, v = gain * inverse + means * 0, -inverse * inverse * m2 + means * 0
    u = -inverse * (m1 + away * m2)
    total = a * plain + N * (u + v * s * means)  # sum of dz
    total -= tl.sum(tl.where(ok, total, 0.0), 0)[None, :] / B  # over all samples it is zero: what is left was rounding
    if dot:
        tl.store(extra + at, a * along + v * s * squares + means * total, ok)
        a, u, v = s * a, s * u, s * s * v
    if first == 0:
        c_0 = tl.load(c, ok, 0.0)
        c_0 -= tl.sum(c_0, 0)[None, :] / B  # the sums of dz add up to zero over the samples
        tl.store(extra + at, total * tl.load(row_sums + channel, known, 0.0), ok)
        tl.store(grads + 2 * C + channel, tl.sum(tl.where(ok, total * c_0, 0.0), 0)[None, :], known)
    place = factors + 3 * at - 2 * channel  # of sample b: 3 b C + channel
    tl.store(place, a, ok)
    tl.store(place + C, u, ok)
    tl.store(place + 2 * C, v, ok)
    tl.store(grads + channel, slope, known)
    tl.store(grads + C + channel, bias, known)


@plan
def make_plan(
    way: str, moments: torch.Size, c: torch.Size, positions: int, first: int, dot: bool, _: torch.device, *eps: float
) -> Launch:
    kernel = {"fwd": batch_norm_fwd_kernel, "bwd": batch_norm_bwd_kernel}[way]  # which would be slow as a key of plans
    (_, batch, channels), (_, groups, terms) = moments, c
    samples = power_of_two(batch, 1)
    width = max(8, min(32, 2048 // samples))
    return Launch(
        kernel, (cdiv(channels, width),), 4, 1, *eps, batch, positions, channels, channels // groups, first, terms, dot,
        samples, width,
    )  # fmt: skip


@torch_operator(
    fake=lambda moments, *_: (moments.new_empty((3, *moments.shape[1:])), moments.new_empty((3, moments.shape[2])))
)
def fused_batch_norm(
    moments: Tensor, c: Tensor, row_sums: Tensor | None, weight: Tensor, bias: Tensor, positions: int, eps: float,
    first: int, dot: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """scale, shift and q [3, B, C], and the mean, unbiased variance and p [3, C]."""
    _, batch, channels = moments.shape
    launch = make_plan("fwd", moments.shape, c.shape, positions, first, dot, c.device, eps)
    standard, found = moments.new_empty((3, batch, channels)), moments.new_empty((3, channels))
    launch(moments, c, c if row_sums is None else row_sums, weight, bias, standard, found)
    return standard, found


@torch_operator(
    fake=lambda sums, *_: (
        sums.new_empty((sums.shape[1], 3, sums.shape[2])),
        torch.empty_like(sums[0]),
        sums.new_empty((3, sums.shape[2])),
    )
)
def fused_batch_norm_backward(
    sums: Tensor, moments: Tensor, c: Tensor, row_sums: Tensor | None, weight: Tensor, standard: Tensor, found: Tensor,
    positions: int, first: int, dot: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """factors [B, 3, C], extra [B, C], and the gradients of weight, bias and row_sums [3, C]."""
    _, batch, channels = moments.shape
    launch = make_plan("bwd", moments.shape, c.shape, positions, first, dot, c.device)
    factors, extra = sums.new_empty((batch, 3, channels)), sums.new_empty((batch, channels))
    grads = sums.new_empty((3, channels))
    launch(sums, moments, c, c if row_sums is None else row_sums, weight, standard, found, factors, extra, grads)
    return factors, extra, grads
