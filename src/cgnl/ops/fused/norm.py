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

from .batchnorm import MOST, fused_batch_norm, fused_batch_norm_backward
from .launch import Series


class Norm(NamedTuple):
    """What is normalised over, and how."""

    kind: Literal["fixed", "batch", "group"]
    """``fixed``: a given mean and variance. ``group``: over as many groups as the block has."""
    eps: float = 0.0
    process_group: Any = None  # processes that normalise together, where there are several

    def has_kernels(self, batch: int) -> bool:
        """Whether one kernel does it all, and another its gradient."""
        return self.kind == "batch" and self.process_group is None and batch <= MOST


class Standard(NamedTuple):
    """What the forward pass goes on with, and what the backward pass needs again.

    From the kernel of batch norm, p and q are the whole that it wrote them to.
    """

    affine: Tensor  # begins with scale and shift, each [B, C]
    q: Tensor
    mean: Tensor
    variance: Tensor  # unbiased, as a norm keeps it
    p: Tensor
    number: Tensor | float = 1.0  # of what was averaged over


class Gradients(NamedTuple):
    factors: Tensor  # a, u, v of dz = a dO + u + v z, [B, 3, C]
    coefficient: Tensor
    """To be summed over a group: gradient of the dot kernel's coefficient, or of the p = 0 one. [B, C]"""
    weight: Tensor
    bias: Tensor
    row_sums: Tensor  # of the sums over W_z's rows, by which the p = 0 term arrives. [C]


def expand_groups(numbers: Tensor, channels: int) -> Tensor:
    """[B, G] -> [B, C]."""
    return numbers.repeat_interleave(channels // numbers.shape[1], 1)


def standardise(
    norm: Norm, fixed: tuple[Tensor, Tensor] | None, moments: Tensor | None, c: Tensor, row_sums: Tensor | None,
    weight: Tensor, bias: Tensor, positions: int, series: Series,
) -> Standard:  # fmt: skip
    """From a fixed mean and variance [C], or from the moments of z [2, B, C]; row_sums [C] if there is a p = 0 term."""
    batch = c.shape[0]
    if moments is not None and norm.has_kernels(batch):
        standard, found = fused_batch_norm(
            moments, c, row_sums, weight, bias, positions, norm.eps, series.first, series.dot
        )
        mean, variance, _ = found.unbind(0)
        return Standard(standard, standard, mean, variance, found, float(batch * positions))
    leading = expand_groups(c[..., 0], len(weight))  # [B, C]
    s: Tensor | float = leading if series.dot else 1.0
    constant = torch.zeros_like(bias) if row_sums is None else leading * row_sums
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
            mean, variance, p, q = _over_group(means, squares, constant, positions, series.groups, norm.eps)
        else:
            mean, variance, p, q, count = _over_batch(means, squares, constant, positions, norm)
    affine = torch.stack([t.expand(batch, -1) for t in (weight * p * s, weight * q + bias)])  # [2, B, C]
    return Standard(affine, q, mean, variance, p, count)


def _over_group(means: Tensor, squares: Tensor, constant: Tensor, positions: int, groups: int, eps: float):
    means, squares = (t.unflatten(1, (groups, -1)) for t in (means + constant, squares))  # [B, G, C / G]
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


def standardise_backward(
    norm: Norm, count: Tensor | float, sums: Tensor, moments: Tensor | None, c: Tensor, row_sums: Tensor | None,
    weight: Tensor, p: Tensor, q: Tensor, positions: int, series: Series,
) -> Gradients:  # fmt: skip
    """From the sums over positions of dO and of dO (z - mean), [2, B, C]."""
    if moments is not None and norm.has_kernels(c.shape[0]):
        factors, extra, grads = fused_batch_norm_backward(
            sums, moments, c, row_sums, weight, q, p, positions, series.first, series.dot
        )
        return Gradients(factors, extra, *grads.unbind(0))
    plain, along = sums
    c_0 = expand_groups(c[..., 0], len(weight))  # [B, C]
    s: Tensor | float = c_0 if series.dot else 1.0
    row_sums = torch.zeros_like(weight) if row_sums is None else row_sums
    means, squares = moments if moments is not None else torch.zeros_like(sums)
    standing = p * s * along + (p * s * means + q) * plain  # sum of dO z^
    scaled = torch.stack((plain, standing)) * weight
    if norm.kind == "fixed":
        m1 = m2 = torch.zeros_like(p)
    elif norm.kind == "group":
        grouped = scaled.unflatten(2, (series.groups, -1))  # [2, B, G, C / G]
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
    coefficient = a * along + v * s * squares + means * total if series.dot else total * row_sums
    factors = torch.stack((s * a, s * u, s * s * v), 1)
    return Gradients(factors, coefficient, standing.sum(0), plain.sum(0), (total * c_0).sum(0))
