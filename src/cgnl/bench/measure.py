"""Time and memory of a step."""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ..export.serving import capture

MIB = 2**20
FLUSH = 256 * MIB  # more than any L2 cache, as in triton.testing.do_bench
FEWEST, MOST = 5, 1000


@dataclass(frozen=True)
class Times:
    """Milliseconds of a step: the median, and what 20 % and 80 % of the repetitions stay under."""

    median: float
    low: float
    high: float


def quantiles(times: Sequence[float]) -> Times:
    return Times(percentile(times, 50), percentile(times, 20), percentile(times, 80))


def percentile(times: Sequence[float], percent: int) -> float:
    """What this many of a hundred repetitions stay under."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else times[0]


def measure(
    step: Callable[[], Any], device: torch.device, seconds: float, clear: Callable[[], None] = lambda: None
) -> Times:
    """Repeat a step for about this many seconds, after a warm-up of a fifth of that; ``clear`` is not timed."""
    clear()
    step()
    if device.type != "cuda":
        by_clock(step, seconds / 5, clear)
        return quantiles(by_clock(step, seconds, clear))
    with torch.cuda.device(device):
        estimate = 1e-3 * statistics.median(_by_events(step, clear, FEWEST))
        repetitions = min(max(int(seconds / max(estimate, 1e-6)), FEWEST), MOST)
        _by_events(step, clear, repetitions // 5)
        return quantiles(_by_events(step, clear, repetitions))


def captured(step: Callable[[], Any], clear: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph: all its kernels, and none of the time in which Python starts them one by one."""
    graph, _ = capture(step, clear)
    return graph.replay


def by_clock(
    step: Callable[[], Any],
    seconds: float,
    clear: Callable[[], None] = lambda: None,
    fewest: int = FEWEST,
    most: float = MOST,
    longest: float = math.inf,
) -> list[float]:
    """Milliseconds of repetitions: for this long, at most ``most``, but ``fewest`` unless these take ``longest``."""
    times: list[float] = []
    total = 0.0
    while (len(times) < fewest and total < longest) or (total < seconds and len(times) < most):
        clear()
        start = time.perf_counter()
        step()
        total += (took := time.perf_counter() - start)
        times.append(1e3 * took)
    return times


def _by_events(step: Callable[[], Any], clear: Callable[[], None], repetitions: int) -> list[float]:
    cache = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repetitions)]
    for start, end in events:
        clear()
        cache.zero_()
        start.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def peak_mib(step: Callable[[], Any], clear: Callable[[], None] = lambda: None, memory: Any = torch.cuda) -> float:
    """Most memory allocated during a step, less what was allocated before it.

    Inputs, the gradient of the output, weights and, after a first step, their gradients are there before; what the
    step returns is alive until it ends.
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
    """The same on a CPU, whose allocator keeps no count: torch's profiler sees every tensor come and go.

    What a library takes for itself, such as oneDNN for other layouts of a convolution's input, is not seen.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler reports its own start and end on stderr
    profiler: Any = torch.autograd.profiler.profile(profile_memory=True)
    clear()
    with profiler:
        output = step()
    del output
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0)) / MIB
