"""Whether a subject is right, before anybody asks how fast it is."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..blocks import CGNL
from ..surgery import inserted
from .cases import Case, draw, load, ready
from .settings import Setting
from .subjects import BENCHMARKS, Call, Subject, choose


@dataclass(frozen=True)
class Part:
    """What goes into something, and what the reference makes of it in float64: output, then input gradients."""

    inputs: tuple[Tensor, ...]
    gradient: Tensor | None
    values: tuple[Tensor, ...]


@dataclass(frozen=True)
class Truth:
    """What is right, and how far from it one may be in the dtype of the setting."""

    weights: Mapping[str, Tensor]
    inputs: tuple[Tensor, ...]
    shape: tuple[int, ...]
    parts: Mapping[str, Part]
    tolerance: float


@dataclass(frozen=True)
class Verdict:
    """The relative error, where there is a right answer; and what is wrong, if anything is."""

    error: float | None
    fault: str = ""


def check_batch(setting: Setting) -> int:
    """A few samples are enough, and float64 is large."""
    few = max(2, min(8, 2**22 // math.prod(setting.shape[1:])))
    return min(setting.batch, few)


def parts_of(call: Call) -> dict[str, Call]:
    """What is compared with the reference: of a network, each of its blocks on what reaches it.

    Random weights make a deep network chaotic: in bfloat16 its gradient has nothing to do with that in float64.
    """
    blocks = inserted(call) if isinstance(call, nn.Module) else {}
    return {**blocks} or {"": call}


def truth_of(setting: Setting) -> Truth:
    """Run the reference in float64, and once more in the dtype of the setting."""
    benchmark = BENCHMARKS[setting.benchmark]
    (reference,) = choose(["reference"], benchmark.subjects)
    inputs = draw(setting, check_batch(setting), benchmark.inputs, gradient=True)
    torch.manual_seed(0)
    exact, weights = reference.build(setting), {}
    seen, shape = {"": inputs}, tuple(inputs[0].shape)
    if isinstance(exact, nn.Module):
        exact.to(setting.device, torch.float64)
        seen, shape = settle(exact, [x.detach().double() for x in inputs])
        exact.train(setting.mode == "train")
        weights = exact.state_dict()
    parts = {name: _part(call, seen[name], setting) for name, call in parts_of(exact).items()}
    own = parts_of(load(reference, setting, weights))
    error = max(relative_error(_values(own[name], part, setting), part.values) for name, part in parts.items())
    epsilon = 2**-10 if setting.tf32 else torch.finfo(setting.dtype).eps
    return Truth(weights, inputs, shape, parts, 3 * error + epsilon)


def _part(exact: Call, seen: Sequence[Tensor], setting: Setting) -> Part:
    train = setting.mode == "train"
    rounded = [t.detach().to(setting.dtype).contiguous(memory_format=setting.memory_format) for t in seen]
    inputs = tuple(x.double().requires_grad_(train) for x in rounded)
    case = ready(exact, inputs, replace(setting, dtype=torch.float32))  # without autocast
    return Part(tuple(x.requires_grad_(train) for x in rounded), case.gradient, values(case))


def _values(call: Call, part: Part, setting: Setting) -> tuple[Tensor, ...]:
    return values(ready(call, part.inputs, setting, part.gradient))


@torch.no_grad()
def settle(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, tuple[Tensor, ...]], tuple[int, ...]]:
    """Give every branch the size of what it is added to, so that an error in it shows.

    BatchNorm takes the statistics of these inputs; a block without a norm divides its W_z. Returns what reached each
    part, and the shape of the output.
    """
    seen: dict[str, tuple[Tensor, ...]] = {}

    def record(name: str, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[name] = args

    def divide(block: CGNL, args: tuple[Tensor], output: Tensor) -> Tensor:
        size = (output - args[0]).std().clamp_min(1e-30)
        block.z.weight.div_(size)
        return args[0] + (output - args[0]) / size

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # the mean of all batches, of which this is the first
        if isinstance(module, CGNL) and module.norm is None:
            hooks.append(module.register_forward_hook(divide))
    for name, part in parts_of(model).items():
        assert isinstance(part, nn.Module)
        hooks.append(part.register_forward_pre_hook(partial(record, name)))
    model.train()
    with warnings.catch_warnings(action="ignore"):
        shape = tuple(model(*inputs).shape)
    for hook in hooks:
        hook.remove()
    return seen, shape


def values(case: Case) -> tuple[Tensor, ...]:
    """The output, and after a backward pass the gradients of the inputs."""
    case.clear()
    with warnings.catch_warnings(action="ignore"):
        output = case.step().detach()
    return (output, *(x.grad for x in case.inputs if x.grad is not None))


def relative_error(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest |got - expected| / |expected| of the tensors, by the Euclidean norm."""
    errors = [float((a.double() - b).norm() / b.norm().clamp_min(1e-300)) for a, b in zip(got, expected, strict=True)]
    return math.inf if any(math.isnan(e) for e in errors) else max(errors)


def check(subject: Subject, call: Call, setting: Setting, truth: Truth) -> Verdict:
    """Hold a subject to the truth; one of another kind to its shape and to finite values."""
    inputs = tuple(
        x.detach().contiguous(memory_format=setting.memory_format).requires_grad_(x.requires_grad) for x in truth.inputs
    )
    got = values(ready(call, inputs, setting))
    if got[0].shape != truth.shape:
        return Verdict(None, f"wrong shape: {list(got[0].shape)} instead of {list(truth.shape)}; not timed")
    if not all(t.isfinite().all() for t in got):
        return Verdict(None, "values that are not finite; not timed")
    if not subject.like_reference:
        return Verdict(None)
    own = parts_of(call)
    error = max(relative_error(_values(own[name], part, setting), part.values) for name, part in truth.parts.items())
    fault = f"wrong, at most {truth.tolerance:.1e} is right; not timed" if error > truth.tolerance else ""
    return Verdict(error, fault)
