"""``cgnl bench serve``: throughput of a network in samples a second, and the latency of a request."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .checks import calibrate, check_batch, relative_error
from .measure import draw_inputs, quantiles, time_steps
from .registry import BENCHMARKS, Setting, Subject
from .runner import Row, reason, start_row

BATCHES = 1, 8, 64
"""Samples of a request by default."""
MIN_REQUESTS = 100
"""Fewest requests for a meaningful 99th percentile."""
MAX_SECONDS = 20.0
"""Time after which fewer requests will do; their number is a column."""
CALIBRATION = 4
"""Samples from which norms take their statistics."""


def serve(setting: Setting, subjects: Iterable[Subject]) -> Iterator[Row]:
    """Yield the row of each subject as soon as it is measured. If one fails, the others still run."""
    weights, x, expected = _compute_truth(setting)
    for subject in subjects:
        torch.compiler.reset()
        try:
            measured = _measure(subject, setting, weights, x, expected)
        except Exception as error:
            measured = {"note": reason(error)}
        yield start_row(subject, setting) | measured
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


def _compute_truth(setting: Setting) -> tuple[Mapping[str, Tensor], Tensor, Tensor]:
    """Weights with calibrated norms, a few samples, and their logits in float64."""
    torch.manual_seed(0)
    exact = BENCHMARKS["serve"].reference.build(setting)
    assert isinstance(exact, torch.nn.Module)
    exact.to(setting.device, torch.float64)
    (x,) = draw_inputs(setting, CALIBRATION)
    calibrate(exact, [x.double()])
    x, weights = x[: check_batch(setting)], exact.state_dict()
    with torch.inference_mode():
        return weights, x, exact.eval()(x.double())


def _measure(
    subject: Subject, setting: Setting, weights: Mapping[str, Tensor], x: Tensor, expected: Tensor
) -> dict[str, Any]:
    if subject.only_on_gpu and setting.device.type != "cuda":
        return {"note": "only on a GPU"}
    call = subject.load(setting, weights)
    with torch.inference_mode():
        error = relative_error([call(x)], [expected]) if subject.like_reference else None
        (given,) = draw_inputs(setting, setting.batch)
        on_host = given.cpu().pin_memory() if given.is_cuda else given
        times = latencies(lambda: call(on_host.to(setting.device, non_blocking=True)).cpu(), setting.seconds)
        rate = setting.batch / seconds_per_call(lambda: call(given), setting.seconds, setting.device)
    median, high = quantiles(times, 0.5, 0.99)
    return {"per_second": rate, "ms": median, "ms_99": high, "requests": len(times), "error": error}


def latencies(request: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of requests, one after another."""
    for _ in range(3):
        request()
    return time_steps(request, seconds, min_steps=MIN_REQUESTS, max_steps=math.inf, max_seconds=MAX_SECONDS)


def seconds_per_call(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Seconds of a call if nobody waits for its result before the next one."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    count, start = 0, time.perf_counter()
    while count < 10 or time.perf_counter() - start < seconds:
        call()
        count += 1
        if count % 10 == 0:  # limits how many calls are queued
            synchronize(device)
    synchronize(device)
    return (time.perf_counter() - start) / count
