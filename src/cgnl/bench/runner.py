"""The loop over the rows of a table: build, check, and time a step, or requests as a server gets them."""

import io
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import torch

from ..cuda_graph import capture
from ..text import first_line
from .checks import Truth, calibrate, check, check_batch, compute_truth, relative_error
from .measure import Case, Roofline, draw_inputs, measure, measure_add, peak_mib, precision, quantiles, time_steps
from .registry import BENCHMARKS, Call, Setting, Subject

Row = dict[str, Any]
"""Field -> value, as in the CSV file; ``note`` says why there are no measurements."""
BATCHES = 1, 8, 64
"""Samples of a request by default."""
MIN_REQUESTS = 100
"""Fewest requests for a meaningful 99th percentile."""
MAX_SECONDS = 20.0
"""Time after which fewer requests will do; their number is a column."""
CALIBRATION = 4
"""Samples from which norms take their statistics."""


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} threads" if threads > 1 else "CPU, 1 thread"


def start_row(subject: Subject, setting: Setting) -> Row:
    """What is measured, where and when."""
    return {
        "benchmark": setting.benchmark,
        "row": subject.name,
        "mode": setting.mode,
        "shape": "x".join(map(str, setting.shape)),
        "dtype": setting.dtype_name,
        "kernel": str(setting.kernel) if subject.like_reference or setting.benchmark == "serve" else "-",
        "settings": setting.summary,
        "device": device_name(setting.device),
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "note": "",
    }


def _fill_rows(setting: Setting, subjects: Iterable[Subject], fill: Callable[[Row, Subject], None]) -> Iterator[Row]:
    """Yield the row of each subject as soon as it is filled. If one fails, the others still run."""
    for subject in subjects:
        torch.compiler.reset()
        row = start_row(subject, setting)
        try:
            with redirect_stdout(io.StringIO()):  # peers may print
                fill(row, subject)
        except Exception as failure:
            row["note"] = reason(failure)
        yield row
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


def measure_rows(setting: Setting, subjects: Sequence[Subject], roofline: Roofline) -> Iterator[Row]:
    """Check and time a step of each subject."""
    benchmark = BENCHMARKS[setting.benchmark]
    try:
        with precision(setting.tf32, benchmark=False):  # it runs once
            truth = compute_truth(setting)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the reference itself cannot run: {reason(error)}") from None
    flops = cache(partial(_flops, truth))

    def fill(row: Row, subject: Subject) -> None:
        counted = benchmark.choose(subject.counts_as)[0] if subject.counts_as else subject
        call, used, error, fault = _checked(subject, setting, truth)
        note = fault or ("" if used == setting else "refuses channels_last: contiguous input")
        row |= {"settings": used.summary, "error": error, "note": note}
        if not fault:
            _timed(row, call, used, flops(counted, used), roofline)

    measured: dict[str, Row] = {}
    for subject, row in zip(subjects, _fill_rows(setting, subjects, fill), strict=True):
        measured[subject.name] = row
        yield compare(row, measured.get(subject.compared_with or benchmark.baseline), subject.compared_with)


def _checked(subject: Subject, setting: Setting, truth: Truth) -> tuple[Call, Setting, float | None, str]:
    """Build and check; a peer that fails on channels_last input is tried on contiguous input."""
    try:
        call = subject.load(setting, truth.weights)
        return call, setting, *check(subject, call, setting, truth)
    except RuntimeError:
        if subject.like_reference or setting.memory_format == torch.contiguous_format:
            raise
    return _checked(subject, replace(setting, channels_last=False), truth)


def _timed(row: Row, call: Call, setting: Setting, flops: float, roofline: Roofline) -> None:
    """Add times, memory and speed to a row."""
    benchmark, on_gpu = BENCHMARKS[setting.benchmark], setting.device.type == "cuda"
    case = Case(call, draw_inputs(setting, setting.batch, benchmark.inputs, benchmark.input_gradient), setting)
    fastest = roofline.milliseconds(flops, case.least_bytes())
    memory = peak_mib(case.step, case.clear) if on_gpu else None
    before = measure_add() if on_gpu else 0.0
    times = eager = measure(case.step, setting.device, setting.seconds, case.inputs)
    if on_gpu:
        row["eager_adds"] = eager.median / statistics.mean((before, measure_add()))
        try:
            graph, _ = capture(case.step, case.clear)
            times = measure(graph.replay, setting.device, setting.seconds)
        except Exception as error:
            row["note"] = f"{row['note']} no CUDA graph: {reason(error)}".strip()
    row |= {"ms": times.median, "ms_20": times.low, "ms_80": times.high, "eager_ms": eager.median, "peak_mib": memory}
    row |= {"gflop": flops / 1e9, "tflop_per_s": flops / (1e9 * times.median), "roofline": fastest / times.median}


def _flops(truth: Truth, subject: Subject, setting: Setting) -> float:
    """FLOPs of a whole step, counted on a few samples: they are proportional to the batch."""
    benchmark, few = BENCHMARKS[setting.benchmark], check_batch(setting)
    inputs = draw_inputs(setting, few, benchmark.inputs, benchmark.input_gradient)
    return Case(subject.load(setting, truth.weights), inputs, setting).count_flops() * setting.batch / few


def compare(row: Row, baseline: Row | None, name: str = "") -> Row:
    """Add the ratio to another row, and note that row's name if it is given."""
    if row.get("ms") is None or baseline is None or baseline.get("ms") is None:
        return row
    note = f"{row['note']}; ratio to {name}".removeprefix("; ") if name else row["note"]
    return row | {"ratio": row["ms"] / baseline["ms"], "added_ms": row["ms"] - baseline["ms"], "note": note}


def reason(error: Exception) -> str:
    """The first line of an error; of what torch.compile wraps, that of the original error."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return first_line(getattr(error, "inner_exception", error))[:120]


def serve_rows(setting: Setting, subjects: Iterable[Subject]) -> Iterator[Row]:
    """Measure the throughput of each subject in samples a second, and the latency of a request."""
    torch.manual_seed(0)
    exact = BENCHMARKS["serve"].reference.build(setting)
    assert isinstance(exact, torch.nn.Module)
    exact.to(setting.device, torch.float64)
    (x,) = draw_inputs(setting, CALIBRATION)
    calibrate(exact, [x.double()])
    x, weights = x[: check_batch(setting)], exact.state_dict()
    with torch.inference_mode():
        expected = exact.eval()(x.double())

    def fill(row: Row, subject: Subject) -> None:
        if subject.only_on_gpu and setting.device.type != "cuda":
            row["note"] = "only on a GPU"
            return
        call = subject.load(setting, weights)
        with torch.inference_mode():
            row["error"] = relative_error([call(x)], [expected]) if subject.like_reference else None
            (given,) = draw_inputs(setting, setting.batch)
            on_host = given.cpu().pin_memory() if given.is_cuda else given
            times = latencies(lambda: call(on_host.to(setting.device, non_blocking=True)).cpu(), setting.seconds)
            rate = setting.batch / seconds_per_call(lambda: call(given), setting.seconds, setting.device)
        median, high = quantiles(times, 0.5, 0.99)
        row |= {"per_second": rate, "ms": median, "ms_99": high, "requests": len(times)}

    yield from _fill_rows(setting, subjects, fill)


def latencies(request: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of requests, one after another."""
    for _ in range(3):
        request()
    return time_steps(request, seconds, min_steps=MIN_REQUESTS, max_steps=math.inf, max_seconds=MAX_SECONDS)


def seconds_per_call(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Seconds of a call when the next follows without waiting for its result."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    count, start = 0, time.perf_counter()
    while count < 10 or time.perf_counter() - start < seconds:
        call()
        count += 1
        if count % 10 == 0:  # limits how many calls are queued
            synchronize(device)
    synchronize(device)
    return (time.perf_counter() - start) / count
