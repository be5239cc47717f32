"""The block as Triton kernels, and when they apply. Nothing here imports triton before it is needed."""

import contextlib
import importlib.util
import math
import os
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel
from ..series import exporting, under_function_transform

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


def why_not(
    x: Tensor, channels: int, inner: int, groups: int, kernel: Kernel, normalize: bool, scale: str | None = None
) -> str | None:
    """The reason why the fused kernels do not apply, or None if they do."""
    if not (x.is_cuda or (interpreted() and x.device.type == "cpu")):
        return f"the input is on {x.device}, and the kernels run on CUDA"
    if not TRITON:
        return "triton is not installed"
    if (dtype := compute_dtype(x)) not in (torch.float16, torch.bfloat16, torch.float32):
        return f"there are no kernels for {dtype}"
    if normalize:
        return "there are no kernels for normalize=True"
    if scale == "energy":
        return 'there are no kernels for scale="energy"'
    if (order := len(kernel.coefficients()) - 1) > HIGHEST:
        return f"the series has order {order}, and the kernels go up to {HIGHEST}"
    width, wide = inner // groups, channels // groups
    if width % 8 or wide % 8:
        return f"groups of {width} inner channels and {wide} channels are no multiples of 8"
    if _transformed():
        return "torch.func, forward-mode derivatives, tracing and exporting need plain tensor code"
    if x.shape[0] > 65535:
        return f"a batch of {x.shape[0]} is beyond what a grid holds"
    if x.is_cuda and torch.cuda.get_device_properties(x.device).major < 9:
        return "the kernels need compute capability 9 or higher"
    return None


def block(
    x: Tensor, weights: Weights, norm: BlockNorm, kernel: Kernel, groups: int, scale: str | None, recompute: bool
) -> tuple[Tensor, Statistics | None]:
    """x + norm(W_z y) for x [B, C, *positions], and the statistics of a batch norm that took those of the batch."""
    from .autograd import Block, Norm, infer, series_of

    dtype = compute_dtype(x)
    series = series_of(kernel, groups, scale, math.prod(x.shape[2:]), weights.theta.shape[0] // groups)
    affine = [t for t in (norm.weight, norm.bias) if t is not None]
    fixed = (norm.mean, norm.variance) if norm.mean is not None and norm.variance is not None else None
    plain = norm.kind == "none" or fixed is not None
    with torch.autocast(x.device.type, enabled=False), _on(x):
        if plain and not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *affine))):
            return infer(x, weights, dtype, series, [*(fixed or ()), *affine], norm.eps), None
        kind: Any = "fixed" if plain else norm.kind
        ours = Norm(kind, norm.eps, norm.process_group)
        out, *found = Block.apply(x, *weights, norm.weight, norm.bias, fixed, dtype, series, ours, recompute)
        return out, Statistics(*found) if kind == "batch" else None


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
        return exporting()
    return under_function_transform() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
