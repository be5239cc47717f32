"""Second-order pooling: products of pairs of channels over all positions of a map.

Section 3.2 of the paper reviews bilinear pooling, X^T X, as the second-order term of the non-local operation. Centred
and divided by N it is the covariance of the channels. The paper's Phi^T g with one channel a group is its compact form.

x, phi and g are [B, C, *positions] with one, two or three position axes and any strides. Sums are accumulated in
float32, or float64 for float64 input. N is the number of positions.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .reference import check_inputs, check_whole, no_autocast
from .series import accumulation_dtype, under_function_transform

MOST_ITERATIONS = 20
"""Most iterations of the square root in float32: beyond them rounding grows if positions are fewer than channels."""


def bilinear_pool(x: Tensor) -> Tensor:
    """X^T X over positions (eq. 5): [B, C, *positions] -> [B, C, C], the pairwise dot product of X^T with itself."""
    check_inputs(x, x, x)
    return _products(x.flatten(2).to(accumulation_dtype(x))).to(x.dtype)


def covariance_pool(x: Tensor) -> Tensor:
    """The covariance of the channels over positions: [B, C, *positions] -> [B, C, C].

    Centred, and divided by N: ``torch.cov(correction=0)`` of each sample. One position has covariance zero.
    """
    check_inputs(x, x, x)
    rows = x.flatten(2).to(accumulation_dtype(x))  # [B, C, N]
    rows = rows - rows[:, :, :1].detach()  # a constant map is exactly zero now, and a large offset is gone
    centred = rows - rows.mean(2, keepdim=True)
    return (_products(centred) / centred.shape[2]).to(x.dtype)


def compact_pool(phi: Tensor, g: Tensor) -> Tensor:
    """Phi^T g of the dot kernel with one channel a group, divided by N.

    Args:
        phi, g: [B, D, *positions].

    Returns:
        [B, D] in g's dtype.
    """
    check_inputs(phi, phi, g)
    phi_, g_ = (t.flatten(2).to(accumulation_dtype(phi, g)) for t in (phi, g))  # [B, D, N]
    return (phi_ * g_).mean(2).to(g.dtype)


def _products(rows: Tensor) -> Tensor:
    """[B, C, N] -> [B, C, C]."""
    with no_autocast(rows):
        return rows @ rows.transpose(1, 2)


def signed_square_root(x: Tensor) -> Tensor:
    """sign(x) sqrt(|x|) of each entry of [B, ...].

    The slope at zero is infinite, and sums of products are often nearly zero: gradients then have no finite variance,
    and training diverges. Backward treats entries smaller than a hundredth of the sample's mean size as that large.
    """
    return _signed_square_root(x) if _in_plain_code() else _SignedSquareRoot.apply(x)


def _in_plain_code() -> bool:
    # The compiler differentiates Functions itself, and under_function_transform is wrong while it does.
    return not torch.compiler.is_compiling() and under_function_transform()


FLATTEST = 0.01
"""Share of a sample's mean size below which the slope is held constant."""


def _signed_square_root(x: Tensor) -> Tensor:
    return x.sign() * x.abs().sqrt()


class _SignedSquareRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _signed_square_root(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        size = x.abs()
        least = FLATTEST * size.flatten(1).mean(1).view(-1, *[1] * (x.ndim - 1))  # [B, 1, ..]
        return 0.5 * gradients[0] * torch.maximum(size, least).clamp_min(torch.finfo(x.dtype).tiny).rsqrt()


def matrix_square_root(a: Tensor, iterations: int = 5) -> Tensor:
    """The square root of symmetric positive semidefinite matrices, by Newton-Schulz iterations.

    With A = a / trace(a), Y_0 = A and Z_0 = I, each iteration has W = (3 I - Z Y) / 2, Y <- Y W and Z <- W Z. Y tends
    to the root of A, and Z to its inverse; the result is sqrt(trace(a)) Y. After a few iterations, small eigenvalues
    are still below their roots. A matrix of trace zero has the root zero and the gradient zero.

    Computed in float32 at least, autocast or not, and in TF32 only if torch allows it. Backward is the exact gradient
    of these iterations; it keeps only the input, and recomputes Y and Z.

    Args:
        a: [B, C, C].
        iterations: default 5; at most 20 in float32.

    Returns:
        [B, C, C], float32 or float64.
    """
    if not isinstance(a, Tensor) or a.ndim != 3 or a.shape[1] != a.shape[2] or a.shape[1] == 0:
        got = list(a.shape) if isinstance(a, Tensor) else f"a {type(a).__name__}"
        raise ValueError(f"expected square matrices [B, C, C], got {got}")
    if not a.is_floating_point():
        raise ValueError(f"expected a floating-point tensor, got {a.dtype}")
    dtype = accumulation_dtype(a)
    check_iterations(iterations, dtype)
    if _in_plain_code():
        return _square_root(a.to(dtype), iterations)
    return _SquareRoot.apply(a.to(dtype), iterations)


def check_iterations(iterations: int, dtype: torch.dtype) -> None:
    """Raise for a number of iterations that the dtype cannot take."""
    check_whole(iterations=iterations)
    most = math.inf if dtype == torch.float64 else MOST_ITERATIONS
    if not 1 <= iterations <= most:
        above = "" if dtype == torch.float64 else f" and at most {MOST_ITERATIONS} in float32"
        raise ValueError(f"iterations must be at least 1{above}, got iterations = {iterations}")


def _square_root(a: Tensor, iterations: int) -> Tensor:
    factor, trace, scaled = _by_trace(a)
    return factor * trace.sqrt() * _iterates(scaled, iterations)[-1][0]


LARGE = 2.0**64
"""Entries above this are divided by it first: the sum of some of them would be infinite in float32."""


def _by_trace(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(f, t, a / trace(a)) with trace(a) = f^2 t; of a matrix of trace zero, the matrix itself. f and t [B, 1, 1]."""
    large = a.diagonal(dim1=1, dim2=2).amax(1)[:, None, None] > LARGE
    factor = torch.where(large, LARGE**0.5, a.new_ones(()))  # a power of two: nothing is rounded
    a = a / factor.square()
    trace = a.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    return factor, trace, a / torch.where(trace == 0, 1.0, trace)


def _iterates(a: Tensor, iterations: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Y, Z and W of each iteration, then the final Y. Products with Z_0 = I are skipped."""
    eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    y, z, w = a, eye, 1.5 * eye - 0.5 * a
    found = [(y, z, w)]
    with no_autocast(a):
        for k in range(1, iterations):
            y, z = y @ w, w if k == 1 else w @ z  # [B, C, C]
            w = 1.5 * eye - 0.5 * (z @ y)
            found.append((y, z, w))
        return [*found, (y @ w, z, w)]


class _SquareRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, iterations: int) -> Tensor:
        ctx.save_for_backward(a)
        ctx.iterations = iterations
        return _square_root(a, iterations)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        factor, trace, scaled = _by_trace(a)
        *before, (root, _, _) = _iterates(scaled, ctx.iterations)
        with no_autocast(a):
            d_scaled = _iterates_backward(before, trace.sqrt() * gradients[0])
        safe = torch.where(trace == 0, 1.0, trace)
        d_trace = _inner(gradients[0], root) / (2 * safe.sqrt()) - _inner(d_scaled, scaled) / safe  # [B, 1, 1]
        eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
        return torch.where(trace == 0, 0.0, (d_scaled / safe + d_trace * eye) / factor), None


def _iterates_backward(before: list[tuple[Tensor, Tensor, Tensor]], d_y: Tensor) -> Tensor:
    """From the gradient of the last Y to that of A."""
    (a, _, first), *later = before
    d_z: Tensor | None = None  # the last Z is not used
    for y, z, w in reversed(later):  # Y W, W Z and W = (3 I - Z Y) / 2
        d_w = y.mT @ d_y if d_z is None else y.mT @ d_y + d_z @ z.mT
        through_w = -0.5 * (d_w @ y.mT)
        d_y, d_z = d_y @ w.mT - 0.5 * (z.mT @ d_w), through_w if d_z is None else w.mT @ d_z + through_w
    d_w = a.mT @ d_y if d_z is None else a.mT @ d_y + d_z  # A W, W and W = (3 I - A) / 2
    return d_y @ first.mT - 0.5 * d_w


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """[B, 1, 1]."""
    return (a * b).sum((1, 2), keepdim=True)
