"""Correctness before speed: every row is compared with the reference in float64 before it is timed."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..blocks import CGNL
from ..surgery import inserted
from .measure import Case, draw_inputs
from .registry import BENCHMARKS, Call, Setting, Subject


class Part(NamedTuple):
    """Inputs of a part, and what the reference makes of them in float64: output, then input gradients."""

    inputs: Sequence[Tensor]
    gradient: Tensor | None
    expected: tuple[Tensor, ...]


class Truth(NamedTuple):
    """The reference's weights and results, and the largest error allowed in the dtype of the setting."""

    weights: Mapping[str, Tensor]
    inputs: tuple[Tensor, ...]
    shape: tuple[int, ...]
    parts: Mapping[str, Part]
    tolerance: float


def check_batch(setting: Setting) -> int:
    """Samples used for checks: few, because float64 is large."""
    return min(setting.batch, max(2, min(8, 2**22 // math.prod(setting.shape[1:]))))


def split(call: Call) -> Mapping[str, Call]:
    """The parts to compare with the reference: the blocks of a network, each on what reaches it.

    Random weights make a deep network chaotic: its gradient in bfloat16 has nothing to do with that in float64.
    """
    return (inserted(call) if isinstance(call, nn.Module) else {}) or {"": call}


def compute_truth(setting: Setting) -> Truth:
    """Run the reference in float64, and once more in the dtype of the setting for the tolerance."""
    benchmark = BENCHMARKS[setting.benchmark]
    inputs = draw_inputs(setting, check_batch(setting), benchmark.inputs, gradient=True)
    torch.manual_seed(0)
    exact, weights = benchmark.reference.build(setting), {}
    seen, shape = {"": inputs}, tuple(inputs[0].shape)
    if isinstance(exact, nn.Module):
        exact.to(setting.device, torch.float64)
        seen, shape = calibrate(exact, [x.detach().double() for x in inputs])
        exact.train(setting.mode == "train")
        weights = exact.state_dict()
    parts = {name: _make_part(call, seen[name], setting) for name, call in split(exact).items()}
    error = largest_error(benchmark.reference.load(setting, weights), parts, setting)
    epsilon = 2**-10 if setting.tf32 else torch.finfo(setting.dtype).eps
    return Truth(weights, inputs, shape, parts, 3 * error + epsilon)


def _make_part(exact: Call, seen: Sequence[Tensor], setting: Setting) -> Part:
    train = setting.mode == "train"
    rounded = [t.detach().to(setting.dtype).contiguous(memory_format=setting.memory_format) for t in seen]
    inputs = [x.double().requires_grad_(train) for x in rounded]
    case = Case(exact, inputs, replace(setting, dtype=torch.float32))  # without autocast
    return Part([x.requires_grad_(train) for x in rounded], case.gradient, run(case))


@torch.no_grad()
def calibrate(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[dict[str, tuple[Tensor, ...]], tuple[int, ...]]:
    """Scale every branch to the size of what it is added to, so that an error in it shows.

    BatchNorm takes the statistics of these inputs; the W_z of a block without a norm is divided. Returns the inputs of
    each part, and the shape of the output.
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
            module.momentum = None  # a plain mean over batches; this one is the first
        if isinstance(module, CGNL) and module.norm is None:
            hooks.append(module.register_forward_hook(divide))
    for name, part in split(model).items():
        assert isinstance(part, nn.Module)
        hooks.append(part.register_forward_pre_hook(partial(record, name)))
    model.train()
    with warnings.catch_warnings(action="ignore"):
        shape = tuple(model(*inputs).shape)
    for hook in hooks:
        hook.remove()
    return seen, shape


def run(case: Case) -> tuple[Tensor, ...]:
    """The output, and after a backward pass the gradients of the inputs."""
    case.clear()
    with warnings.catch_warnings(action="ignore"):
        output = case.step().detach()
    return (output, *(x.grad for x in case.inputs if x.grad is not None))


def relative_error(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest |got - expected| / |expected| of the tensors, in the Euclidean norm."""
    errors = [float((a.double() - b).norm() / b.norm().clamp_min(1e-300)) for a, b in zip(got, expected, strict=True)]
    return math.inf if any(math.isnan(e) for e in errors) else max(errors)


def largest_error(call: Call, parts: Mapping[str, Part], setting: Setting) -> float:
    """That of the part that is furthest from the reference."""
    own = split(call)
    cases = {name: Case(own[name], part.inputs, setting, part.gradient) for name, part in parts.items()}
    return max(relative_error(run(case), parts[name].expected) for name, case in cases.items())


def check(subject: Subject, call: Call, setting: Setting, truth: Truth) -> tuple[float | None, str]:
    """Return the relative error to the reference, None for another operation, and what is wrong, or an empty text."""
    layout = setting.memory_format
    inputs = [x.detach().contiguous(memory_format=layout).requires_grad_(x.requires_grad) for x in truth.inputs]
    got = run(Case(call, inputs, setting))
    if got[0].shape != truth.shape:
        return None, f"wrong shape: {list(got[0].shape)} instead of {list(truth.shape)}; not timed"
    if not all(t.isfinite().all() for t in got):
        return None, "non-finite values; not timed"
    if not subject.like_reference:
        return None, ""
    error = largest_error(call, truth.parts, setting)
    return error, f"wrong: error above {truth.tolerance:.1e}; not timed" if error > truth.tolerance else ""
