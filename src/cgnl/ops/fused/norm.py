"""The block's norm, from the moments of z in each sample: small tensors, whatever the size of z.

z^ = p z + q with p, q of each channel, or of each sample and channel, and what is added to X is weight z^ + bias =
scale z + shift. z leaves out the p = 0 term of the series, a constant of each sample and channel that is added here.
With the dot kernel it leaves out the coefficient s, so that it is s z that is normalised: s and its gradient are found
among numbers of each sample and channel, in float32, where a norm that cancels s leaves nothing but zeros.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Norm(NamedTuple):
    """What is normalised over, and how."""

    kind: Literal["fixed", "batch", "group"]
    """``fixed``: a given mean and variance. ``group``: over as many groups as the block has."""
    eps: float = 0.0
    process_group: Any = None
    """Processes that normalise together, where there are several."""


class Standard(NamedTuple):
    """What the forward pass goes on with, and what the backward pass needs again.

    From the kernel of batch norm, p and q are the whole that it wrote them to.
    """

    affine: Tensor
    """Begins with scale and shift, each [B, C]."""
    q: Tensor
    mean: Tensor
    variance: Tensor
    """Unbiased, as a norm keeps it."""
    p: Tensor
    number: Tensor | float = 1.0
    """Of what was averaged over."""


class Gradients(NamedTuple):
    factors: Tensor
    """a, u, v of dz = a dO + u + v z, [B, 3, C]."""
    coefficient: Tensor
    """To be summed over a group: gradient of the dot kernel's coefficient, or of the p = 0 one. [B, C]"""
    weight: Tensor
    bias: Tensor
    row_sums: Tensor
    """Of the sums over W_z's rows, by which the p = 0 term arrives. [C]"""


def standardise(
    norm: Norm,
    fixed: tuple[Tensor, Tensor] | None,
    moments: Tensor | None,
    strength: Tensor | None,
    constant: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    batch: int,
    positions: int,
    groups: int,
) -> Standard:
    """From a fixed mean and variance, or from the moments of z [2, B, C]; strength (s) and constant: [B, C] or None."""
    s: Tensor | float = 1.0 if strength is None else strength
    constant = torch.zeros_like(bias) if constant is None else constant
    count: Tensor | float = 1.0
    if norm.kind == "fixed":
        assert fixed is not None
        mean, variance = fixed
        p = torch.rsqrt(variance.float() + norm.eps)  # [C]
        q = (constant - mean) * p
    else:
        assert moments is not None
        means, squares = moments[0] * s, moments[1] * s * s  # [B, C]
        if norm.kind == "group":
            mean, variance, p, q = _over_group(means, squares, constant, positions, groups, norm.eps)
        else:
            mean, variance, p, q, count = _over_batch(means, squares, constant, positions, norm)
    affine = torch.stack([t.expand(batch, -1) for t in (weight * p * s, weight * q + bias)])  # [2, B, C]
    return Standard(affine, q, mean, variance, p, count)


def _over_group(means: Tensor, squares: Tensor, constant: Tensor, positions: int, groups: int, eps: float):
    means, squares = ((t).unflatten(1, (groups, -1)) for t in (means + constant, squares))  # [B, G, C / G]
    mean = means.mean(2, keepdim=True)
    variance = (squares + positions * (means - mean).square()).mean(2, keepdim=True) / positions  # [B, G, 1]
    mean, variance = (t.expand_as(means).flatten(1) for t in (mean, variance))
    p = torch.rsqrt(variance + eps)
    return mean, variance, p, (constant - mean) * p


def _over_batch(means: Tensor, squares: Tensor, constant: Tensor, positions: int, norm: Norm):
    mean, middle = means.mean(0), constant.mean(0) if constant.ndim == 2 else constant  # [C]
    constant = constant - middle  # it can be thousands of times the rest, so it is centred by itself
    away = means - mean + constant
    squares = squares.sum(0) + positions * away.square().sum(0)
    count: Tensor | float = float(len(means) * positions)
    whole = mean + middle
    if norm.process_group is not None:
        every, squares, count = _over_processes(norm.process_group, whole, squares, count)
        mean, whole = mean + (every - whole), every
    p = torch.rsqrt(squares / count + norm.eps)
    return whole, squares / (count - 1), p, (constant - mean) * p, count


def _over_processes(group: Any, mean: Tensor, squares: Tensor, count: float) -> tuple[Tensor, Tensor, Tensor]:
    """Moments of all processes' samples, by Chan's rule."""
    mine = torch.cat((mean, squares, mean.new_full((1,), count)))
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    table = torch.stack(every)  # [processes, 2 C + 1]
    means, each, counts = table[:, : len(mean)], table[:, len(mean) : -1], table[:, -1:]
    total = counts.sum()
    whole = (means * counts).sum(0) / total
    return whole, (each + counts * (means - whole).square()).sum(0), total


def backward(
    norm: Norm,
    p: Tensor,
    q: Tensor,
    count: Tensor | float,
    weight: Tensor,
    sums: Tensor,
    moments: Tensor | None,
    strength: Tensor | None,
    c_0: Tensor,
    row_sums: Tensor,
    positions: int,
    groups: int,
) -> Gradients:
    """From the sums over positions of dO and of dO (z - mean), [2, B, C]; c_0 is [B, C], row_sums [C]."""
    plain, along = sums
    s: Tensor | float = 1.0 if strength is None else strength
    means, squares = moments if moments is not None else torch.zeros_like(sums)
    standing = p * s * along + (p * s * means + q) * plain  # sum of dO z^
    scaled = torch.stack((plain, standing)) * weight
    if norm.kind == "fixed":
        m1 = m2 = torch.zeros_like(p)
    elif norm.kind == "group":
        grouped = scaled.unflatten(2, (groups, -1))  # [2, B, G, C / G]
        m1, m2 = (grouped.mean(3, keepdim=True) / positions).expand_as(grouped).flatten(2)  # [B, C]
    else:
        total = scaled.sum(1)  # [2, C]
        if norm.process_group is not None:
            dist.all_reduce(total, group=norm.process_group)
        m1, m2 = total / count  # [C]
        if norm.process_group is None:
            c_0 = c_0 - c_0.mean(0)  # the sums of dz add up to zero over the samples
    a, v, u = (p * weight).expand_as(plain), (-p * p * m2).expand_as(plain), -p * (m1 + q * m2).expand_as(plain)
    total = a * plain + positions * (u + v * s * means)  # sum of dz
    if norm.kind == "batch" and norm.process_group is None:
        total = total - total.mean(0)  # over all samples it is zero: what is left was rounding
    coefficient = total * row_sums if strength is None else a * along + v * s * squares + means * total
    factors = torch.stack((s * a, s * u, s * s * v), 1)
    return Gradients(factors, coefficient, standing.sum(0), plain.sum(0), (total * c_0).sum(0))
