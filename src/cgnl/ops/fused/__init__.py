"""The block as Triton kernels, and when they apply. Nothing here imports triton before it is needed."""

import contextlib
import importlib.util
import os
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..series import under_function_transform

TRITON = importlib.util.find_spec("triton") is not None
HIGHEST = 8
"""The highest power of a series that kernels are made for."""


class Weights(NamedTuple):
    """Of the projections [I, C, 1, ..] and of z [C, I / G, 1, ..]."""

    theta: Tensor
    phi: Tensor
    g: Tensor
    z: Tensor


class Statistics(NamedTuple):
    """What a norm learns from a batch."""

    mean: Tensor
    variance: Tensor
    """Unbiased."""


class BlockNorm(NamedTuple):
    """The norm after z."""

    kind: Literal["none", "batch", "group"]
    weight: Tensor | None = None
    bias: Tensor | None = None
    mean: Tensor | None = None
    """A given mean and variance, in place of the batch's own."""
    variance: Tensor | None = None
    eps: float = 0.0
    process_group: Any = None


def why_not(x: Tensor, channels: int, inner: int, groups: int, kernel: Kernel, normalize: bool) -> str | None:
    """The reason why the fused kernels do not apply, or None if they do."""
    if not (x.is_cuda or (interpreted() and x.device.type == "cpu")):
        return f"the input is on {x.device}, and the kernels run on CUDA"
    order, dtype = len(kernel.coefficients()) - 1, compute_dtype(x)
    width, wide = inner // groups, channels // groups
    reasons = (
        (not TRITON, "triton is not installed"),
        (dtype not in (torch.float16, torch.bfloat16, torch.float32), f"there are no kernels for {dtype}"),
        (normalize, "there are no kernels for normalize=True"),
        (order > HIGHEST, f"the series has order {order}, and the kernels go up to {HIGHEST}"),
        (
            bool(width % 8 or wide % 8),
            f"groups of {width} inner channels and {wide} channels are no multiples of 8",
        ),
        (x.shape[0] > 65535, f"a batch of {x.shape[0]} is beyond what a grid holds"),
        (_transformed(), "torch.func, forward-mode derivatives, tracing and exporting need plain tensor code"),
        (
            x.is_cuda and torch.cuda.get_device_properties(x.device).major < 9,
            "the kernels need compute capability 9 or higher",
        ),
    )
    return next((reason for fails, reason in reasons if fails), None)


def block(
    x: Tensor, weights: Weights, norm: BlockNorm, kernel: Kernel, groups: int, scale: str | None, recompute: bool
) -> tuple[Tensor, Statistics | None]:
    """x + norm(W_z y) for x [B, C, *positions], and the statistics of a batch norm that took those of the batch."""
    from .autograd import Block, Norm, infer, series_of

    dtype = compute_dtype(x)
    rows = x.movedim(1, -1)  # [B, *P, C]
    last = rows.is_contiguous()
    rows = rows.reshape(len(x), -1, x.shape[1]).contiguous()
    operand = rows.to(dtype)
    series = series_of(kernel, groups, scale, rows.shape[1], weights.theta.shape[0] // groups)
    theta, phi, g, z = (w.flatten(1) for w in weights)
    row_sums = z.sum(1, dtype=torch.float32) if series.first == 0 else None
    affine = [t for t in (norm.weight, norm.bias) if t is not None]
    fixed = (norm.mean, norm.variance) if norm.mean is not None and norm.variance is not None else None
    plain = norm.kind == "none" or fixed is not None
    with torch.autocast(x.device.type, enabled=False), _on(x):
        if plain and not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *affine))):
            both, theta, z = torch.stack((phi, g)).to(dtype), theta.to(dtype).contiguous(), z.to(dtype).contiguous()
            out = infer(operand, rows, theta, both, z, row_sums, series, [*(fixed or ()), *affine], norm.eps)
            statistics = None
        else:
            kind: Any = "fixed" if plain else norm.kind
            weight = torch.cat((theta, phi, g)).to(dtype)  # [3 I, C]
            apart = None if rows.dtype == dtype else rows
            out, *found = Block.apply(
                operand, apart, weight, z.to(dtype).contiguous(), row_sums, norm.weight, norm.bias, fixed, series,
                Norm(kind, norm.eps, norm.process_group), recompute,
            )  # fmt: skip
            statistics = Statistics(*found) if kind == "batch" else None
    out = out.unflatten(1, x.shape[2:]).movedim(-1, 1)
    return out if last else out.contiguous(), statistics


def compute_dtype(x: Tensor) -> torch.dtype:
    """What the projections are computed in."""
    kind = x.device.type
    if x.dtype != torch.float64 and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def _on(x: Tensor) -> contextlib.AbstractContextManager:
    """Kernels start on the current device, which need not be that of x."""
    return torch.cuda.device(x.device) if x.is_cuda and not torch.compiler.is_compiling() else contextlib.nullcontext()


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _transformed() -> bool:
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return under_function_transform() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
