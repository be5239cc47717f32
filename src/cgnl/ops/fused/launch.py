"""How kernels are launched: what the device offers, tiles, descriptors, and plans that are made once for a size."""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .. import reference
from ..kernels import Kernel
from ..precision import convolutions_in_tf32
from . import interpreted


class Hardware(NamedTuple):
    processors: int
    tma: bool  # whether the hardware copies tiles by itself: compute capability 9 and higher
    shared: int  # KiB of shared memory that a program may take


pretended: Hardware | None = None
"""Taken in place of the device's own, in tests and benchmarks."""


def hardware(device: torch.device) -> Hardware:
    return pretended or _find_hardware(device)


@functools.cache
def _find_hardware(device: torch.device) -> Hardware:
    if device.type != "cuda":
        return Hardware(4, True, 227)
    found = torch.cuda.get_device_properties(device)
    return Hardware(found.multi_processor_count, found.major >= 9, found.shared_memory_per_block_optin // 1024)


class Tile(NamedTuple):
    """How a kernel cuts its matrices, and how many warps and stages work on a tile."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    resident: int = 1  # programs for each processor, in kernels that take one tile after another


class Form(NamedTuple):
    """What of a block is known before its kernels are compiled."""

    inner_per_group: int
    channels_per_group: int
    first: int
    terms: int
    gamma: float
    dot: bool  # whether y is theta times a number
    rescale: bool  # whether y may be beyond float16's reach, and is divided by its peak before a product
    precision: str
    tma: bool  # whether the hardware copies tiles of inner channels and of weights
    map_tma: bool  # whether it copies tiles of maps
    last: bool  # whether channels, and not positions, come last in the memory of maps
    step: int  # a power of two that divides the number of positions, where these come last


def is_dot(first: int, terms: int, gamma: float) -> bool:
    """Whether y is theta times a number."""
    return (first, terms, gamma) == (1, 1, 0)


class Series(NamedTuple):
    """The kernel, for this many positions and channels."""

    groups: int
    first: int
    alphas: tuple[float, ...]  # square roots of what the sums are multiplied by
    gamma: float
    constant: float
    dot: bool


def make_series(kernel: Kernel, groups: int, scale: str | None, positions: int, width: int) -> Series:
    first, alpha_squared = reference.leading(kernel)
    factor = reference.scale_factor(scale, positions, width)
    alphas = tuple(math.sqrt(a) * math.sqrt(factor) for a in alpha_squared)
    gamma = kernel.envelope
    return Series(groups, first, alphas, gamma, kernel.constant, is_dot(first, len(alphas), gamma))


class Descriptor(TensorDescriptor):
    """A tensor that the hardware copies tile by tile, with zeros beyond its edges."""

    def __init__(self, tensor: Tensor, tile: list[int], shape: list[int] | None = None):
        # Not the dataclass's own: its checks take longer than a launch, and hold for all tensors of a plan.
        self.base, self.block_shape, self.padding = tensor, tile, "zero"
        if shape is None:
            self.shape, self.strides = list(tensor.shape), list(tensor.stride())
        else:  # dense, whatever axes of one element say
            self.shape, self.strides = shape, [shape[1] * shape[2], shape[2], 1]


class Pointers(NamedTuple):
    """The same where the hardware cannot: kernels then compute the place of each element. Rows are contiguous."""

    base: Tensor
    rows: int
    columns: int
    row: int  # elements from one row to the next
    sample: int = 0  # elements from one sample to the next


@dataclass(eq=False)
class Case:
    """What plans are made for. ``find_case`` gives the same object for the same case, so plans are found at once."""

    batch: int
    positions: int
    channels: int
    inner: int
    groups: int
    first: int
    terms: int
    gamma: float
    dtype: torch.dtype  # of the operands of products
    map_dtype: torch.dtype
    last: bool
    precision: str
    on: Hardware
    device: torch.device

    def __post_init__(self):
        dot, last = is_dot(self.first, self.terms, self.gamma), self.last
        row = self.positions * min(self.dtype.itemsize, self.map_dtype.itemsize)
        map_tma = self.on.tma and (last or row % 16 == 0)  # rows that are copied begin at multiples of 16 bytes
        self.form = Form(
            self.inner // self.groups, self.channels // self.groups, self.first, self.terms, self.gamma, dot,
            self.dtype == torch.float16 and not dot, self.precision, self.on.tma, map_tma, last,
            1 if last else math.gcd(self.positions, 16),
        )  # fmt: skip

    @property
    def runs(self) -> tuple[int, int]:
        """Samples and their length as kernels see them that take all samples as one where channels come last."""
        return (1, self.batch * self.positions) if self.last else (self.batch, self.positions)

    def source(self, tensor: Tensor, *tile: int) -> Descriptor | Pointers:
        """[M, C] or [B, N, C], for ``load_rows`` and ``load_tile`` to read by such tiles."""
        if self.on.tma:
            return Descriptor(tensor, list(tile))
        rows, columns = tensor.shape[-2:]
        return Pointers(tensor, rows, columns, tensor.stride(-2), tensor.stride(0) if tensor.ndim == 3 else 0)

    def map_source(self, tensor: Tensor, rows: int, columns: int, flat: bool = False) -> Descriptor | Pointers:
        """A map, for ``load_map`` and ``store_map``; ``flat`` if the kernel sees all samples as one (``runs``)."""
        batch, positions = self.runs if flat else (self.batch, self.positions)
        if not self.form.map_tma:
            return Pointers(tensor, positions, self.channels, 0)
        if self.last:
            return Descriptor(tensor, [1, rows, columns], [batch, positions, self.channels])
        return Descriptor(tensor, [1, columns, rows], [batch, self.channels, positions])


make_case = functools.lru_cache(maxsize=4096)(Case)


def find_case(
    rows: Tensor, maps: Tensor, channels: int, inner: int, groups: int, first: int, terms: int, gamma: float
) -> Case:
    """For operands like ``rows`` [B, N, C or I], and maps [B, N, C] like ``maps``."""
    (batch, positions, _), device = rows.shape, rows.device
    return make_case(
        batch, positions, channels, inner, groups, first, terms, gamma, rows.dtype, maps.dtype, is_last(maps),
        precision(rows), hardware(device), device,
    )  # fmt: skip


def constants(values: Any) -> Any:
    """A named tuple as kernels take it: ``form.dot`` and the others are known when they are compiled."""
    return values._make(map(tl.constexpr, values))


def is_last(rows: Tensor) -> bool:
    """Whether channels come last in the memory of [B, N, C]."""
    return rows.stride(2) == 1


def precision(x: Tensor) -> str:
    """How float32 is multiplied. The kernels stand for convolutions, so the setting for those holds.

    Three products stand for one in TF32: the hardware cuts operands off where cuDNN rounds them, and that adds up.
    """
    return "tf32x3" if x.dtype != torch.float32 or convolutions_in_tf32() else "ieee"


def project(x: Tensor, weight: Tensor) -> Tensor:
    """X W^T, [B, N, I], of a map and a weight [I, C]. Nothing is copied: cuBLAS takes X as it lies."""
    return F.linear(x, weight) if is_last(x) else torch.bmm(x, weight.t().expand(x.shape[0], -1, -1))


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, copied if it begins where kernels cannot: at no multiple of 16 bytes."""
    if torch.compiler.is_compiling():  # the operators see to it
        return tensor
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


class Launch:
    """A kernel with everything that is the same in each call: its grid, and the constants after the tensors.

    Triton looks at every argument of each call, which takes longer than many a kernel. Here it does so once. So a plan
    is for one size, dtype and device, and all of its tensors are ``aligned``.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], warps: int, stages: int, *constants: Any):
        self.kernel, self.grid, self.warps, self.stages, self.constants = kernel, grid, warps, stages, constants
        self.run: Any = None

    def __call__(self, *tensors: Any) -> None:
        if self.run is not None:
            self.run(*tensors, *self.constants)
            return
        if any(t.data_ptr() % 16 for t in tensors if isinstance(t, Tensor)):
            raise ValueError("a kernel's tensors must begin at a multiple of 16 bytes")
        compiled = self.kernel[self.grid](*tensors, *self.constants, num_warps=self.warps, num_stages=self.stages)
        if not interpreted():
            self.run = compiled[(*self.grid, 1, 1)[:3]]


plan = functools.lru_cache(maxsize=4096)
"""Keeps plans by size, dtype and device. Where every batch has a size of its own, there is no end to them."""


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own is made for kernels, and slow outside."""
    return -(-a // b)


def power_of_two(number: int, least: int = 16) -> int:
    """The next power of two, and no less than what a matrix product takes."""
    return max(least, 1 << (number - 1).bit_length())
