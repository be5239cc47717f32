"""The block as Triton kernels, and when they apply. Triton is imported only when they run."""

import contextlib
import functools
import importlib.util
import math
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import kernels, reference
from ..block import BlockNorm, count_batch
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


def why_not(
    x: Tensor, channels: int, inner: int, groups: int, kernel: Kernel, normalize: bool, scale: str | None = None
) -> str | None:
    """The reason why the fused kernels cannot take such a block and input, or None if they can."""
    if reason := _why_not(x, kernel, compute_dtype(x)):
        return reason
    if normalize:
        return "there are no kernels for normalize=True"
    if scale == "energy":
        return 'there are no kernels for scale="energy"'
    width, outer = inner // groups, channels // groups
    if width % 8 or outer % 8:
        return f"groups of {width} inner channels and {outer} channels are no multiples of 8"
    if x.shape[0] > 65535:
        return f"a batch of {x.shape[0]} is beyond what a grid holds"
    return None


def why_not_operator(theta: Tensor, phi: Tensor, g: Tensor, groups: int, kernel: Kernel) -> str | None:
    """The reason why the operator's kernels cannot take such inputs, or None if they can."""
    if reason := _why_not(theta, kernel, theta.dtype, phi.dtype, g.dtype):
        return reason
    if max(theta.shape[0], groups) > 65535:
        return f"{theta.shape[0]} samples of {groups} groups are beyond what a grid holds"
    return None


def why_not_series(x: Tensor, *others: Tensor, highest: int) -> str | None:
    """The reason why there are no kernels for power sums and polynomials of such tensors, or None if there are."""
    if not all(type(t) in (Tensor, nn.Parameter) for t in (x, *others)):
        return "these are not plain tensors"
    if highest > 2 * HIGHEST:
        return f"the series has order {highest}"
    if 0 in x.shape or max(x.shape[:2]) > 65535:
        return f"a grid cannot hold {list(x.shape)}"
    return _why_not_tensor(x, *(t.dtype for t in (x, *others)))


def _why_not(x: Tensor, kernel: Kernel, *dtypes: torch.dtype) -> str | None:
    """Why neither the block nor the operator has kernels for this device, kernel and these dtypes."""
    if reason := _why_not_tensor(x, *dtypes):
        return reason
    if _transformed():
        return "torch.func, forward-mode derivatives, tracing and exporting need plain tensor code"
    if (order := len(kernel.coefficients()) - 1) > HIGHEST:
        return f"the series has order {order}, and the kernels go up to {HIGHEST}"
    return None


def _why_not_tensor(x: Tensor, *dtypes: torch.dtype) -> str | None:
    if not (x.is_cuda or (interpreted() and x.device.type == "cpu")):
        return f"the input is on {x.device}, and the kernels run on CUDA"
    if not TRITON:
        return "triton is not installed"
    for dtype in dtypes:
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return f"there are no kernels for {dtype}"
        if dtype == torch.bfloat16 and interpreted():
            return "Triton's interpreter (TRITON_INTERPRET=1) computes bfloat16 wrongly"
    if x.is_cuda and _capability(x.device) < (8, 0):
        return "the kernels need compute capability 8 or higher"
    return None


def cgnl_block(
    x: Tensor, w_theta: Tensor, w_phi: Tensor, w_g: Tensor, w_z: Tensor, norm: BlockNorm | None = None, *,
    kernel: str | Kernel = "dot", groups: int = 1, scale: str | None = None, normalize: bool = False,
    recompute: bool = False,
) -> Tensor:  # fmt: skip
    """x + norm(W_z y), [B, C, *positions] -> the same: ``block.cgnl_block`` by Triton kernels."""
    from .autograd import Block, Norm, infer
    from .launch import make_series

    if normalize:
        raise ValueError("there are no kernels for normalize=True")
    kernel = kernels.resolve(kernel)
    dtype, weights = compute_dtype(x), Weights(w_theta, w_phi, w_g, w_z)
    series = make_series(kernel, groups, scale, math.prod(x.shape[2:]), len(w_theta) // groups)
    weight, bias, eps = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    fixed = None
    if norm is not None and not norm.training and norm.running_mean is not None and norm.running_var is not None:
        fixed = norm.running_mean, norm.running_var
    affine = [t for t in (weight, bias) if t is not None]
    with without_autocast(x), _on(x):
        if norm is None or fixed is not None:
            if not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *affine))):
                return infer(x, weights, dtype, series, [*(fixed or ()), *affine], eps)
            ours = Norm("fixed", eps)
        else:
            ours = Norm(norm.kind, eps, norm.process_group)
        out, mean, variance = Block.apply(x, *weights, weight, bias, fixed, dtype, series, ours, recompute)
    if norm is not None and norm.kind == "batch" and norm.training:
        _track(norm, mean, variance)
    return out


@torch.no_grad()
def _track(norm: BlockNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics with the batch's mean and unbiased variance, each [C]."""
    if norm.running_mean is not None and norm.running_var is not None:
        momentum = count_batch(norm)
        norm.running_mean.lerp_(mean, momentum)
        norm.running_var.lerp_(variance, momentum)


def compact_generalized_non_local(
    theta: Tensor, phi: Tensor, g: Tensor, *, kernel: str | Kernel = "dot", groups: int = 1, scale: str | None = None
) -> Tensor:
    """Theta (Phi^T g) by Triton kernels, [B, C, *positions] in g's dtype."""
    from .launch import make_series
    from .operator import compute

    kernel = kernels.resolve(kernel)
    reference.check_inputs(theta, phi, g, groups)
    series = make_series(kernel, groups, scale, math.prod(theta.shape[2:]), theta.shape[1] // groups)
    again = functools.partial(reference.compact_generalized_non_local, kernel=kernel, groups=groups, scale=scale)
    with _on(theta):
        return compute(theta, phi, g, series, again)


def run_series(name: str, x: Tensor, *arguments: Any) -> Tensor:
    """``series.power_sums`` or ``series.polynomial`` by a Triton kernel."""
    from . import operator

    with _on(x):
        return getattr(operator, name)(x, *arguments)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the projections."""
    kind = x.device.type
    if x.dtype != torch.float64 and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def without_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else contextlib.nullcontext()


def _on(x: Tensor) -> contextlib.AbstractContextManager:
    """Kernels start on the current device, which need not be that of x."""
    elsewhere = x.is_cuda and not torch.compiler.is_compiling() and torch.cuda.current_device() != x.device.index
    return torch.cuda.device(x.device) if elsewhere else contextlib.nullcontext()


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _transformed() -> bool:
    if torch.compiler.is_compiling():
        return exporting()
    return under_function_transform() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
