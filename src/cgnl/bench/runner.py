"""The one loop: build, check, time."""

import io
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import torch

from ..spelling import first_line
from .cases import draw, load, ready
from .checks import Truth, Verdict, check, check_batch, truth_of
from .measure import captured, measure, peak_mib
from .roofline import Ceilings, count_flops, least_bytes
from .settings import Setting
from .subjects import BENCHMARKS, Call, Subject, choose


@dataclass(frozen=True)
class Heading:
    """What was measured, where and when."""

    benchmark: str
    row: str
    mode: str
    shape: str
    dtype: str
    kernel: str
    settings: str
    device: str
    torch: str
    time: str


@dataclass(frozen=True)
class Row(Heading):
    """What was measured of a subject; None where it was not, and then ``note`` says why."""

    ms: float | None = None
    ms_20: float | None = None
    ms_80: float | None = None
    eager_ms: float | None = None
    ratio: float | None = None
    added_ms: float | None = None
    peak_mib: float | None = None
    gflop: float | None = None
    tflop_per_s: float | None = None
    roofline: float | None = None
    error: float | None = None
    note: str = ""


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} threads" if threads > 1 else "CPU, 1 thread"


def heading(row: str, setting: Setting, like_reference: bool = True) -> dict[str, Any]:
    """The fields of ``Heading``; what is not like the reference has no kernel."""
    return asdict(
        Heading(
            benchmark=setting.benchmark,
            row=row,
            mode=setting.mode,
            shape="x".join(map(str, setting.shape)),
            dtype=setting.dtype_name,
            kernel=str(setting.kernel) if like_reference else "-",
            settings=setting.words,
            device=device_name(setting.device),
            torch=torch.__version__,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    )


def measure_rows(setting: Setting, subjects: Iterable[Subject], ceilings: Ceilings) -> Iterator[Row]:
    """A row for each subject, as it comes. Whatever goes wrong with one, the others go on."""
    benchmark = BENCHMARKS[setting.benchmark]
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=setting.tf32):  # it runs once
            truth = truth_of(setting)
    except RuntimeError as error:
        raise ValueError(f"the reference itself cannot run: {reason(error)}") from None
    flops = cache(partial(_flops, truth))
    measured: dict[str, Row] = {}
    for subject in subjects:
        (counted,) = choose([subject.counts_as], benchmark.subjects) if subject.counts_as else [subject]
        torch.compiler.reset()
        row = Row(**heading(subject.name, setting, subject.like_reference))
        try:
            with redirect_stdout(io.StringIO()):  # peers talk
                call, setting_, verdict = _checked(subject, setting, truth)
                note = verdict.fault or ("" if setting_ == setting else "refuses channels_last: contiguous input")
                row = replace(row, settings=setting_.words, error=verdict.error, note=note)
                if not verdict.fault:
                    row = _timed(row, call, setting_, flops(counted, setting_), ceilings)
                del call
        except Exception as error:
            row = replace(row, note=reason(error))
        measured[subject.name] = row
        yield compared(row, measured.get(subject.compared_with or benchmark.baseline), subject.compared_with)
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


def _checked(subject: Subject, setting: Setting, truth: Truth) -> tuple[Call, Setting, Verdict]:
    """Build and check. Somebody else's module may ask for contiguous input, by failing on any other."""
    try:
        call = load(subject, setting, truth.weights)
        return call, setting, check(subject, call, setting, truth)
    except RuntimeError:
        if subject.like_reference or setting.memory_format == torch.contiguous_format:
            raise
        contiguous = replace(setting, channels_last=False)
        call = load(subject, contiguous, truth.weights)
        return call, contiguous, check(subject, call, contiguous, truth)


def _timed(row: Row, call: Call, setting: Setting, flops: float, ceilings: Ceilings) -> Row:
    benchmark = BENCHMARKS[setting.benchmark]
    case = ready(call, draw(setting, setting.batch, benchmark.inputs, benchmark.input_gradient), setting)
    case.clear()
    least = least_bytes(case, case.step())
    memory = peak_mib(case.step, case.clear) if setting.device.type == "cuda" else None
    times = eager = measure(case.step, setting.device, setting.seconds, case.clear)
    if setting.device.type == "cuda":
        try:
            times = measure(captured(case.step, case.clear), setting.device, setting.seconds)
        except Exception as error:
            row = replace(row, note=f"{row.note} no CUDA graph: {reason(error)}".strip())
    return replace(
        row,
        ms=times.median,
        ms_20=times.low,
        ms_80=times.high,
        eager_ms=eager.median,
        peak_mib=memory,
        gflop=flops / 1e9,
        tflop_per_s=flops / (1e9 * times.median),
        roofline=ceilings.milliseconds(flops, least) / times.median,
    )


def _flops(truth: Truth, subject: Subject, setting: Setting) -> float:
    """Of a whole step, counted on a few samples: everything here is proportional to their number."""
    benchmark, few = BENCHMARKS[setting.benchmark], check_batch(setting)
    call = load(replace(subject, compiled=False), setting, truth.weights)
    case = ready(call, draw(setting, few, benchmark.inputs, benchmark.input_gradient), setting)
    return count_flops(case) * setting.batch / few


def compared(row: Row, baseline: Row | None, name: str = "") -> Row:
    """The row with its ratio to another, whose name is noted where it is given."""
    if row.ms is None or baseline is None or baseline.ms is None:
        return row
    note = f"{row.note}; ratio to {name}".removeprefix("; ") if name else row.note
    return replace(row, ratio=row.ms / baseline.ms, added_ms=row.ms - baseline.ms, note=note)


def reason(error: Exception) -> str:
    """The first line of what went wrong; of what torch.compile wraps, that of the error itself."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return first_line(getattr(error, "inner_exception", error))[:120]
