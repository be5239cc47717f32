"""A step, and what it costs: milliseconds, memory, FLOPs and bytes."""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..ops.precision import tf32_allowed
from .registry import Call, Setting

MIB = 2**20
MIN_STEPS, MAX_STEPS = 5, 1000


class Case:
    """A call with its inputs; one step is forward, and in training backward from ``gradient``, random by default."""

    def __init__(self, call: Call, inputs: Sequence[Tensor], setting: Setting, gradient: Tensor | None = None):
        self.call, self.inputs, self.setting = call, inputs, setting
        self.gradient: Tensor | None = None
        if setting.mode == "train":
            output = self.forward().detach()
            self.gradient = torch.randn_like(output) if gradient is None else torch.empty_like(output).copy_(gradient)

    def clear(self) -> None:
        """Drop the inputs' gradients, as a network does between its layers. Weights keep theirs."""
        for x in self.inputs:
            x.grad = None

    def forward(self) -> Tensor:
        dtype = self.setting.dtype if self.setting.autocast else None
        autocast = torch.autocast(self.setting.device.type, dtype, enabled=self.setting.autocast)
        with torch.set_grad_enabled(self.setting.mode == "train"), autocast:
            return self.call(*self.inputs)

    def step(self) -> Tensor:
        output = self.forward()
        if self.gradient is not None:
            output.backward(self.gradient)
        return output

    def count_flops(self) -> int:
        with FlopCounterMode(display=False) as counter:
            self.clear()
            self.step()
        return counter.get_total_flops()

    def least_bytes(self) -> int:
        """Bytes moved at least: inputs, weights and output once, and in training the gradient of each."""
        self.clear()
        output = self.step()
        tensors = [*self.inputs, *(self.call.parameters() if isinstance(self.call, nn.Module) else ())]
        moved = [*tensors, output]
        if self.gradient is not None:
            moved += [*(t for t in tensors if t.requires_grad), output]
        return sum(t.numel() * t.element_size() for t in moved)


def draw_inputs(setting: Setting, batch: int, count: int = 1, gradient: bool = False) -> tuple[Tensor, ...]:
    """Random inputs in the dtype and layout of the setting; they require gradients in training only."""
    generator = torch.Generator(setting.device).manual_seed(0)
    inputs = []
    for _ in range(count):
        x = torch.randn((batch, *setting.shape[1:]), generator=generator, device=setting.device).to(setting.dtype)
        x = x.contiguous(memory_format=setting.memory_format)
        inputs.append(x.requires_grad_(gradient and setting.mode == "train"))
    return tuple(inputs)


class Times(NamedTuple):
    """Milliseconds of a step: the 20 %, 50 % and 80 % quantiles of the repetitions."""

    low: float
    median: float
    high: float


def quantiles(times: Sequence[float], *at: float) -> list[float]:
    return torch.tensor(times, dtype=torch.float64).quantile(torch.tensor(at, dtype=torch.float64)).tolist()


def measure(
    step: Callable[[], Any], device: torch.device, seconds: float, grad_to_none: Sequence[Tensor] = ()
) -> Times:
    """Repeat a step for about this many seconds, after a warm-up of a fifth of that.

    On a GPU the L2 cache is flushed before each step. Dropping the gradients of ``grad_to_none`` is not timed.
    """
    if device.type == "cuda":
        import triton.testing

        do_bench: Any = triton.testing.do_bench
        with torch.cuda.device(device):
            rep = max(1e3 * seconds, MIN_STEPS * do_bench(step, warmup=0, rep=0))
            return Times(*do_bench(step, rep / 5, rep, grad_to_none, quantiles=[0.2, 0.5, 0.8]))

    def clear() -> None:
        for x in grad_to_none:
            x.grad = None

    clear()
    step()
    time_steps(step, seconds / 5, clear)
    return Times(*quantiles(time_steps(step, seconds, clear), 0.2, 0.5, 0.8))


def time_steps(
    step: Callable[[], Any],
    seconds: float,
    clear: Callable[[], None] = lambda: None,
    min_steps: int = MIN_STEPS,
    max_steps: float = MAX_STEPS,
    max_seconds: float = math.inf,
) -> list[float]:
    """Milliseconds of each step, by the clock: ``min_steps`` and ``seconds``, within the two limits."""
    times: list[float] = []
    total = 0.0
    while (len(times) < min_steps and total < max_seconds) or (total < seconds and len(times) < max_steps):
        clear()
        start = time.perf_counter()
        step()
        total += (took := time.perf_counter() - start)
        times.append(1e3 * took)
    return times


def measure_add(device: torch.device | str = "cuda") -> float:
    """Milliseconds that Python spends on adding to one number in place: a measure of how fast it calls anything."""
    x, count = torch.zeros((), device=device), 100

    def wait() -> None:
        x.item()

    def add() -> None:
        for _ in range(count):
            x.add_(1)

    add()
    return statistics.median(time_steps(add, 0.0, wait, min_steps=9)) / count


def peak_mib(step: Callable[[], Any], clear: Callable[[], None] = lambda: None, memory: Any = torch.cuda) -> float:
    """Peak memory allocated on a GPU during a step, less what was allocated before it.

    Inputs, the gradient of the output, weights and, after a first step, their gradients are there before. The step's
    output is alive at its end.
    """
    clear()
    memory.synchronize()
    before = memory.memory_allocated()
    memory.reset_peak_memory_stats()
    output = step()
    memory.synchronize()
    peak = memory.max_memory_allocated()
    del output
    return (peak - before) / MIB


def peak_mib_on_cpu(step: Callable[[], Any], clear: Callable[[], None] = lambda: None) -> float:
    """The same on a CPU, by torch's profiler, which does not see buffers of libraries such as oneDNN."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler logs its own start and end to stderr
    profiler: Any = torch.autograd.profiler.profile(profile_memory=True)
    clear()
    with profiler:
        output = step()
    del output
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0)) / MIB


class Roofline(NamedTuple):
    """Measured FLOP/s of a large matrix product, and bytes/s that a large copy reads and writes."""

    flops: float
    bytes: float

    def milliseconds(self, flops: float, bytes: float) -> float:
        return 1e3 * max(flops / self.flops, bytes / self.bytes)


def measure_roofline(setting: Setting) -> Roofline:
    side, length = (8192, 2**30) if setting.device.type == "cuda" else (768, 2**26)
    a, b = torch.randn(2, side, side, device=setting.device).to(setting.dtype)
    product = measure(lambda: a @ b, setting.device, setting.seconds)
    source, target = torch.zeros(2, length, dtype=torch.uint8, device=setting.device)
    copy = measure(lambda: target.copy_(source), setting.device, setting.seconds)
    return Roofline(2 * side**3 / (1e-3 * product.median), 2 * length / (1e-3 * copy.median))


@contextmanager
def precision(tf32: bool, benchmark: bool = True) -> Iterator[None]:
    """Allow TF32 for float32 or not; with ``benchmark``, convolutions pick the fastest algorithm, as in training."""
    cudnn = torch.backends.cudnn
    enabled, before = cudnn.enabled, cudnn.benchmark
    cudnn.enabled, cudnn.benchmark = True, benchmark
    try:
        with tf32_allowed(tf32):
            yield
    finally:
        cudnn.enabled, cudnn.benchmark = enabled, before
