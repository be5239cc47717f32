"""The loop over the rows of a table: build, check, time."""

import io
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import torch

from ..cuda_graph import capture
from ..spelling import first_line
from .checks import Truth, check, check_batch, compute_truth
from .measure import Case, Roofline, draw_inputs, measure, peak_mib
from .registry import BENCHMARKS, Call, Setting, Subject

Row = dict[str, Any]
"""Field -> value, as in the CSV file; ``note`` says why there are no measurements."""


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} threads" if threads > 1 else "CPU, 1 thread"


def start_row(subject: Subject, setting: Setting, has_kernel: bool = True) -> Row:
    """What is measured, where and when."""
    return {
        "benchmark": setting.benchmark,
        "row": subject.name,
        "mode": setting.mode,
        "shape": "x".join(map(str, setting.shape)),
        "dtype": setting.dtype_name,
        "kernel": str(setting.kernel) if has_kernel else "-",
        "settings": setting.summary,
        "device": device_name(setting.device),
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "note": "",
    }


def measure_rows(setting: Setting, subjects: Iterable[Subject], roofline: Roofline) -> Iterator[Row]:
    """Yield the row of each subject as soon as it is measured. If one fails, the others still run."""
    benchmark = BENCHMARKS[setting.benchmark]
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=setting.tf32):  # it runs once
            truth = compute_truth(setting)
    except RuntimeError as error:
        raise ValueError(f"the reference itself cannot run: {reason(error)}") from None
    flops = cache(partial(_flops, truth))
    measured: dict[str, Row] = {}
    for subject in subjects:
        counted = benchmark.choose(subject.counts_as)[0] if subject.counts_as else subject
        torch.compiler.reset()
        row = start_row(subject, setting, subject.like_reference)
        try:
            with redirect_stdout(io.StringIO()):  # peers may print
                call, used, error, fault = _checked(subject, setting, truth)
                note = fault or ("" if used == setting else "refuses channels_last: contiguous input")
                row |= {"settings": used.summary, "error": error, "note": note}
                if not fault:
                    _timed(row, call, used, flops(counted, used), roofline)
                del call
        except Exception as failure:
            row["note"] = reason(failure)
        measured[subject.name] = row
        yield compare(row, measured.get(subject.compared_with or benchmark.baseline), subject.compared_with)
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


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
    times = eager = measure(case.step, setting.device, setting.seconds, case.inputs)
    if on_gpu:
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
