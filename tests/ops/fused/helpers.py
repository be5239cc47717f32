"""What the kernels shall compute, in float64 and in formulas of their own."""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cgnl import CGNL, kernels
from cgnl.ops.fused import launch
from cgnl.ops.kernels import Kernel
from tests.conftest import INTERPRETED, relative_error

DEVICE = "cpu" if INTERPRETED else "cuda"
HALF = torch.float16 if INTERPRETED else torch.bfloat16

KERNELS: dict[str, Kernel] = {
    "dot": kernels.Dot(),
    "embedded_gaussian": kernels.EmbeddedGaussian(3),
    "rbf-paper": kernels.GaussianRBF(3, 0.01),
    "rbf-norm": kernels.GaussianRBF(2, 0.0005, "norm"),
    "rbf-exact": kernels.GaussianRBF(3, 0.05, "exact"),
    "taylor": kernels.Taylor([0, 0, 1, 0.5]),
    "order-8": kernels.GaussianRBF(8, 0.02),
}


class Precision(NamedTuple):
    dtype: torch.dtype
    tf32: bool
    tolerance: float
    """Relative error of a single kernel whose operands are of this dtype, and which sums in float32."""


PRECISIONS = {
    "float32": Precision(torch.float32, False, 2e-6),
    "tf32": Precision(torch.float32, True, 2e-6 if INTERPRETED else 2e-3),  # the interpreter rounds nothing
    "float16": Precision(torch.float16, True, 2**-10),
}
if not INTERPRETED:  # the interpreter multiplies the bits of bfloat16 as if they were whole numbers
    PRECISIONS["bfloat16"] = Precision(torch.bfloat16, True, 2**-7)


def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Drawn on the CPU, so that every machine sees the same."""
    return (scale * torch.randn(shape)).to(DEVICE, dtype)


# One kernel at a time ------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """Of a series: powers from ``first`` on, under exp(-gamma x^2)."""

    first: int
    terms: int
    gamma: float


FORMS = {
    "dot": Form(1, 1, 0.0),
    "constant": Form(0, 1, 0.0),
    "from-0": Form(0, 4, 0.0),
    "from-2": Form(2, 2, 0.0),
    "envelope": Form(0, 3, 0.05),
    "envelope-from-1": Form(1, 2, 0.05),
    "order-8": Form(0, 9, 0.0),
}


class Sizes(NamedTuple):
    batch: int
    positions: int
    groups: int
    width: int
    """Inner channels of a group."""
    wide: int
    """Channels of a group."""

    @property
    def inner(self) -> int:
        return self.groups * self.width

    @property
    def channels(self) -> int:
        return self.groups * self.wide


SIZES = {
    "one-position": Sizes(5, 1, 2, 16, 32),
    "several-groups-a-tile": Sizes(2, 49, 8, 8, 8),
    "groups-left-over": Sizes(1, 7, 3, 24, 48),
    "beyond-a-power-of-two": Sizes(1, 65, 2, 40, 40),
    "more-inner-than-outer": Sizes(2, 20, 1, 136, 64),
    "one-wide-group": Sizes(1, 33, 1, 160, 320),
}


def make_case(sizes: Sizes, dtype: torch.dtype, precision: str, processors: int = 8) -> launch.Case:
    """What plans of the dot kernel are made for."""
    arguments = sizes.batch, sizes.positions, sizes.channels, sizes.inner, sizes.groups, 1, 1, 0.0, dtype, dtype, True
    return launch.make_case(*arguments, precision, launch.Hardware(processors, True, 227), torch.device(DEVICE))


def powers(x: Tensor, form: Form) -> Tensor:
    """exp(-gamma x^2) x^p, one behind the other. [..., terms]"""
    exponents = torch.arange(form.first, form.first + form.terms, device=x.device)
    return torch.exp(-form.gamma * x.square()).unsqueeze(-1) * x.unsqueeze(-1) ** exponents


def grouped(x: Tensor, groups: int) -> Tensor:
    """[B, N, I] -> [B, N, G, I / G]"""
    return x.unflatten(2, (groups, -1))


def response(theta: Tensor, c: Tensor, form: Form) -> Tensor:
    """y less c_0, where there is one; for the dot kernel theta itself. [B, N, G, width]"""
    theta = grouped(theta, c.shape[1])
    if form == FORMS["dot"]:
        return theta
    y = torch.einsum("bngik,bgk->bngi", powers(theta, form), c)
    return y if form.first else y - c[:, None, :, None, 0]


def project(y: Tensor, z_weight: Tensor) -> Tensor:
    """W_z y: [B, N, G, width] -> [B, N, C]"""
    return torch.einsum("bngi,goi->bngo", y, z_weight.unflatten(0, (y.shape[2], -1))).flatten(2)


def expand_groups(numbers: Tensor, channels: int) -> Tensor:
    """[B, G] -> [B, C]"""
    return numbers.repeat_interleave(channels // numbers.shape[1], 1)


# The whole block -----------------------------------------------------------------------------------------------------

OUTPUT, GRADIENT, FLOOR, ORDERS = 2, 3, 4, 4
"""An error to the float64 truth is allowed to be so many times that of the reference in the same dtype.

The reference can be lucky: where one sum decides, as c_0 does for a batch of two, its error may be next to nothing. So
we take the largest of so many orders of the samples and positions, and add FLOOR times the dtype's epsilon.
"""


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...] = (4, 32, 4, 3)
    groups: int = 2
    kernel: str = "dot"
    norm: str | None = "batch"
    inner: int | None = None
    scale: str | None = None
    train: bool = True
    recompute: bool = False
    layout: str = "contiguous"

    def block(self) -> CGNL:
        """With weights of ordinary size everywhere, and running statistics of such a batch as ``inputs`` gives."""
        block = CGNL(
            self.shape[1], self.inner, ndim=len(self.shape) - 2, groups=self.groups, kernel=KERNELS[self.kernel],
            norm=self.norm, scale=self.scale, backend="fused", recompute=self.recompute,
        )  # fmt: skip
        fill(block)
        if self.norm == "batch" and not self.train:
            block.norm.momentum = 1.0
            learned = reference_of(block).double()
            learned(torch.randn(4, *self.shape[1:], dtype=torch.float64))
            block.norm.load_state_dict(learned.norm.state_dict())
        return block.train(self.train).to(DEVICE)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """x and a gradient of the output, in this case's layout."""
        x, gradient = (LAYOUTS[self.layout](self.shape).to(DEVICE) for _ in range(2))
        return x, gradient


def fill(block: CGNL) -> CGNL:
    with torch.no_grad():
        for module in (block.theta, block.phi, block.g, block.z):
            weight: Any = module.weight
            weight.normal_(std=weight[0].numel() ** -0.5)
        if block.norm is not None:
            block.norm.weight.normal_()
            block.norm.bias.normal_()
    return block


def reference_of(block: CGNL) -> CGNL:
    twin = copy.deepcopy(block)
    twin.backend = "reference"
    return twin


LAYOUTS = {
    "contiguous": lambda shape: torch.randn(shape),
    "channels-last": lambda shape: torch.randn(shape[0], *shape[2:], shape[1]).movedim(-1, 1),
    "sliced": lambda shape: torch.randn(*shape[:-2], 2 * shape[-2], shape[-1] + 1)[..., ::2, 1:],
    "sliced-channels": lambda shape: torch.randn(shape[0], shape[1] + 3, *shape[2:])[:, 2:-1],
    "transposed": lambda shape: torch.randn(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2),
    "batch-first": lambda shape: torch.randn(shape[1], shape[0], *shape[2:]).transpose(0, 1),
    "expanded-positions": lambda shape: torch.randn(*shape[:-1], 1).expand(shape),
    "expanded-channels": lambda shape: torch.randn(shape[0], 1, *shape[2:]).expand(shape),
}


def run(block: CGNL, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """What the block adds to x, every gradient and every running statistic."""
    block, x = copy.deepcopy(block), x.detach().requires_grad_()
    y = block(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    names, parameters = zip(*block.named_parameters(), strict=True)
    gradients = torch.autograd.grad(y, (x, *parameters), gradient)
    found = {"output": (y.double() - x.double()).detach(), **dict(zip(("x", *names), gradients, strict=True))}
    if isinstance(block.norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        found |= {name: buffer for name, buffer in block.norm.named_buffers() if buffer.is_floating_point()}
    if not block.training:
        with torch.no_grad():
            found["inference"] = block(x).double() - x.double()
    return found


def shuffled_run(block: CGNL, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """``run`` with samples and positions in another order, which only changes how sums are rounded."""
    samples, positions = torch.randperm(len(x)), torch.randperm(x[0, 0].numel())

    def shuffle(t: Tensor, samples: Tensor, positions: Tensor) -> Tensor:
        return t[samples].flatten(2)[..., positions].view(t.shape)

    found = run(block, *(shuffle(t, samples, positions) for t in (x, gradient)))
    back = samples.argsort(), positions.argsort()
    return {name: shuffle(t, *back) if t.shape == x.shape else t for name, t in found.items()}


def errors(case: Case, dtype: torch.dtype) -> dict[str, tuple[float, float]]:
    """Of every quantity: the error of the fused kernels, and the largest that is allowed."""
    block, (x, gradient) = case.block().to(dtype), case.inputs()
    x, gradient = x.to(dtype), gradient.to(dtype)
    plain = reference_of(block)
    truth = run(reference_of(block).double(), x.double(), gradient.double())
    fused, several = run(block, x, gradient), [run(plain, x, gradient)]
    several += [shuffled_run(plain, x, gradient) for _ in range(ORDERS - 1)]
    assert list(fused) == list(truth)
    tf32 = dtype == torch.float32 and DEVICE == "cuda" and torch.backends.cudnn.allow_tf32
    eps = 2**-11 if tf32 else torch.finfo(dtype).eps
    found = {}
    for name, true in truth.items():
        times = OUTPUT if name in ("output", "inference") else GRADIENT
        largest = max(relative_error(each[name], true) for each in several)
        found[name] = relative_error(fused[name], true), times * largest + FLOOR * eps
    return found


def assert_exact(case: Case, dtype: torch.dtype) -> None:
    found = errors(case, dtype)
    wrong = {name: f"{error:.1e} > {allowed:.1e}" for name, (error, allowed) in found.items() if not error <= allowed}
    assert not wrong, wrong
