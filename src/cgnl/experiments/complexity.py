"""The paper's complexity table, measured: how time and memory of each operation grow with positions and channels."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from .. import ops
from ..bench import cases
from ..bench.measure import captured, measure, peak_mib, peak_mib_on_cpu
from ..bench.runner import device_name, reason
from ..bench.settings import Setting, read, read_device
from ..bench.subjects import BENCHMARKS, Call, Subject, choose
from ..blocks import CGNL
from ..extras import need
from .complexity_report import BLOCK, COMPACT, EXACT, KERNELS, MATRIX, draw, draw_time, markdown
from .growth import Point, read_points, write_points

LONGEST = 2.0
"""Seconds of a step at which a curve ends."""

REPEATED = 0.2
"""Seconds spent on repetitions of a step."""


def _exact(setting: Setting) -> Call:
    return partial(ops.generalized_non_local, groups=setting.groups)


def _compact(setting: Setting) -> Call:
    return partial(ops.compact_generalized_non_local, kernel=setting.kernel, groups=setting.groups)


def _block(setting: Setting) -> Call:
    return CGNL(setting.channels, groups=setting.groups, kernel=setting.kernel, zero_init=False)


_by_matrix, _by_kernels = choose(["non-local bmm", "non-local sdpa"], BENCHMARKS["ops"].subjects)
SUBJECTS = {
    EXACT: Subject(EXACT, _exact),
    MATRIX: _by_matrix,
    KERNELS: _by_kernels,
    COMPACT: Subject(COMPACT, _compact),
    BLOCK: Subject(BLOCK, _block),
}


@dataclass(frozen=True)
class Curve:
    """An operation, what grows, the sizes it grows through, and what stays as it is."""

    operation: str
    axis: str
    sizes: tuple[int, ...]
    batch: int
    channels: int
    positions: int
    groups: int = 1

    def at(self, size: int, device: str) -> Setting:
        """What is measured at a size: training in float32 on a CPU, inference in bfloat16 on a GPU."""
        on_gpu = device.startswith("cuda")
        options = {
            "batch": self.batch,
            "channels": size if self.axis == "C" else self.channels,
            "size": sides(size if self.axis == "N" else self.positions),
            "groups": self.groups,
            "kernel": f"embedded_gaussian:order={size - 1}" if self.axis == "P + 1" else "dot",
            "channels_last": on_gpu,
            "dtype": "bfloat16" if on_gpu else "float32",
            "mode": "forward" if on_gpu else "train",
            "seconds": REPEATED,
        }
        return read("ops", options, device)


def sides(positions: int) -> str:
    """Height and width of a map with this many positions, as square as they come: 98 is 7x14."""
    height = next(h for h in range(math.isqrt(positions), 0, -1) if positions % h == 0)
    return f"{height}x{positions // height}"


def doubled(first: int, times: int) -> tuple[int, ...]:
    return tuple(first * 2**k for k in range(times + 1))


def plan(device_type: str) -> list[Curve]:
    """What is measured on a CPU, in about two minutes, or on a GPU.

    On a CPU the larger half of each curve stays on one side of 32 MiB a tensor: beyond it the C library asks the system
    for new pages every time, which takes several times as long. The exact matrix stays at 256 MiB.
    """
    orders = tuple(range(2, 10))  # P = 1 .. 8
    if device_type == "cpu":
        exact = (16, 24, 32, 48, 64, 96, 128)
        return [
            Curve(EXACT, "N", exact, 1, 64, 0),
            Curve(MATRIX, "N", (256, 384, 512, 768, 1024, 1536, 2048), 1, 64, 0),
            Curve(KERNELS, "N", (256, 512, 1024, 1536, 2048, 3072, 4096), 1, 64, 0),
            Curve(COMPACT, "N", (128, 1024, 8192, *doubled(2**16, 4)), 1, 64, 0),
            Curve(BLOCK, "N", doubled(256, 7), 2, 64, 0, groups=8),  # one sample would make its batch norm warn
            Curve(EXACT, "C", exact, 1, 0, 64),
            Curve(MATRIX, "C", doubled(16, 6), 1, 0, 1024),
            Curve(KERNELS, "C", doubled(16, 6), 1, 0, 1024),
            Curve(COMPACT, "C", (8, 32, 128, 512, 1024, 1536, 2048), 1, 0, 16384),
            Curve(BLOCK, "C", (32, 64, 128, 256, 384, 512, 768, 1024), 2, 0, 1024, groups=8),
            Curve(COMPACT, "P + 1", orders, 1, 64, 16384),
        ]
    positions, channels = doubled(49, 12), doubled(64, 5)
    return [
        Curve(EXACT, "N", doubled(49, 6), 1, 64, 0),
        *(Curve(name, "N", positions, 32, 512, 0, groups=8) for name in (MATRIX, KERNELS, COMPACT, BLOCK)),
        Curve(EXACT, "C", doubled(16, 6), 1, 0, 196),
        *(Curve(name, "C", channels, 32, 0, 3136, groups=8) for name in (MATRIX, KERNELS, COMPACT, BLOCK)),
        Curve(COMPACT, "P + 1", orders, 32, 512, 3136, groups=8),
    ]


def sweep(curve: Curve, device: str, longest: float, say: Callable[[str], None] = print) -> Iterator[Point]:
    """A point for each size, until a step takes longer than ``longest`` seconds, or cannot be taken."""
    for size in curve.sizes:
        try:
            point = measure_point(curve, size, device, longest)
        except RuntimeError as error:  # most likely memory; the other curves go on
            say(f"{curve.operation}: ends before {curve.axis} = {size}, {reason(error)}")
            return
        finally:
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
        if point is None:
            say(f"{curve.operation}: ends before {curve.axis} = {size}, a step takes more than {longest:g} s")
            return
        memory = "" if point.peak_mib is None else f"{point.peak_mib:10.2f} MiB"
        say(f"{curve.operation:24} {curve.axis} = {size:<8d} {point.milliseconds:10.3f} ms {memory}")
        yield point


def measure_point(curve: Curve, size: int, device: str, longest: float) -> Point | None:
    """Time and memory of a step; None where it takes longer than ``longest`` seconds."""
    setting = curve.at(size, device)
    call = cases.load(SUBJECTS[curve.operation], setting, {})
    inputs = cases.draw(setting, setting.batch, 1 if curve.operation == BLOCK else 3, gradient=True)
    case = cases.ready(call, inputs, setting)
    on_gpu = setting.device.type == "cuda"
    case.step()  # what happens once, such as compiling a kernel
    start = time.perf_counter()
    memory = (peak_mib if on_gpu else peak_mib_on_cpu)(case.step, case.clear)
    if time.perf_counter() - start > longest:
        return None
    step, clear = (captured(case.step, case.clear), lambda: None) if on_gpu else (case.step, case.clear)
    times = measure(step, setting.device, setting.seconds, clear)
    taylor = curve.operation in (COMPACT, BLOCK)
    return Point(
        operation=curve.operation,
        axis=curve.axis,
        batch=setting.batch,
        channels=setting.channels,
        positions=math.prod(setting.size),
        groups=curve.groups,
        order=len(setting.kernel.coefficients()) - 1 if taylor else None,
        milliseconds=times.median,
        ms_20=times.low,
        ms_80=times.high,
        peak_mib=memory,
        mode=setting.mode,
        dtype=setting.dtype_name,
        device=device_name(setting.device),
        torch=torch.__version__,
    )


@contextmanager
def settled_on(device: torch.device) -> Iterator[None]:
    """This GPU; or one thread of the CPU, because threads that wait for one another would time the waiting."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def complexity(
    folder: Path, *, device: str | None = None, seconds: float = LONGEST, say: Callable[[str], None] = print
) -> list[Path]:
    """Measure how time and memory grow; write points, tables and pictures into a folder.

    Args:
        folder: for complexity.csv, complexity.md, complexity.png and growth.png.
        device: auto, cpu (one thread, about two minutes), cuda or cuda:1.
        seconds: each curve ends where a step takes longer; 2 unless given.
        say: what happens, line by line.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds = {seconds} must be more than 0")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder")
    place = read_device(device or "auto")
    need("matplotlib", "bench")

    table, points = folder / "complexity.csv", list[Point]()
    with settled_on(place):
        for curve in plan(place.type):
            points += sweep(curve, str(place), seconds, say)
            write_points(points, table)
    if not points:
        raise ValueError(f"seconds = {seconds:g} is too little: every step takes longer")
    return [table, *write_report(points, folder)]


def from_csv(table: Path) -> list[Path]:
    """Tables and pictures from points that were measured before, beside them."""
    return write_report(read_points(table), table.parent)


def write_report(points: Sequence[Point], folder: Path) -> list[Path]:
    text, picture, simple = (folder / name for name in ("complexity.md", "complexity.png", "growth.png"))
    folder.mkdir(parents=True, exist_ok=True)
    text.write_text(markdown(points), encoding="utf-8")
    draw(points, picture)
    draw_time(points, simple)
    return [text, picture, simple]
