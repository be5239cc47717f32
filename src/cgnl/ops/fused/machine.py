"""What kernels ask of the machine: tile sizes, descriptors, precision."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from . import interpreted


class Tile(NamedTuple):
    """How a kernel cuts its matrices, and how many warps and stages work on a tile."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    resident: int = 1
    """Programs for each processor, in kernels that take one tile after another."""


class Form(NamedTuple):
    """What of a block is known before its kernels are compiled."""

    width: int
    """Inner channels of a group."""
    wide: int
    """Channels of a group."""
    first: int
    terms: int
    gamma: float
    dot: bool
    """Whether y is theta times a number."""
    half: bool
    """Whether y may be beyond float16's reach."""
    precision: str


def is_dot(first: int, terms: int, gamma: float) -> bool:
    """Whether y is theta times a number."""
    return (first, terms, gamma) == (1, 1, 0)


def form_of(z_weight: Tensor, coefficients: Tensor, first: int, gamma: float, precision: str) -> Form:
    groups, terms = coefficients.shape[1:]
    dot = is_dot(first, terms, gamma)
    half = z_weight.dtype == torch.float16 and not dot
    return Form(z_weight.shape[1], len(z_weight) // groups, first, terms, gamma, dot, half, precision)


@functools.cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def precision(x: Tensor) -> str:
    """How float32 is multiplied. The kernels stand for convolutions, so the setting for those holds.

    Three products stand for one in TF32: the hardware cuts operands off where cuDNN rounds them, and that adds up.
    """
    return "tf32x3" if x.dtype != torch.float32 or torch.backends.cudnn.allow_tf32 else "ieee"


def rows_of(x: Tensor) -> Tensor:
    """[B, N, C] -> [B N, C], nothing copied."""
    return x.view(-1, x.shape[-1])


def descriptor(tensor: Tensor, *tile: int) -> TensorDescriptor:
    """A tensor that the hardware copies tile by tile, with zeros beyond its edges."""
    if tensor.data_ptr() % 16:  # it cannot begin just anywhere
        tensor = tensor.clone()
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(tile))


_compiled: dict[Any, Any] = {}
MOST = 4096
"""Entries of ``_compiled`` before it starts anew: where every batch has a size of its own, there is no end to them."""


def launch(kernel: Any, grid: tuple[int, ...], warps: int, stages: int, *arguments: Any) -> None:
    """Run a kernel. Triton looks at every argument each time, which takes longer than many a kernel; we look once."""
    if interpreted():
        kernel[grid](*arguments, num_warps=warps, num_stages=stages)
        return
    key = (id(kernel), warps, stages, torch.cuda.current_device(), *map(_kind, arguments))
    compiled = _compiled.get(key)
    if compiled is None:
        if len(_compiled) >= MOST:
            _compiled.clear()
        _compiled[key] = kernel[grid](*arguments, num_warps=warps, num_stages=stages)
    else:
        compiled[(*grid, 1, 1)[:3]](*arguments)


def _kind(argument: Any) -> Any:
    """All that a kernel is compiled for: of tensors dtype and alignment, of everything else the value itself.

    A descriptor's tile is among the values too.
    """
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument.base.dtype if isinstance(argument, TensorDescriptor) else argument


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own is made for kernels, and slow outside."""
    return -(-a // b)


def power_of_two(number: int, least: int = 16) -> int:
    """The next power of two, and no less than what a matrix product takes."""
    return max(least, 1 << (number - 1).bit_length())
