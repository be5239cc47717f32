"""The paper's complexity table, measured: how time and memory of each operation grow with positions and channels."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from .. import ops
from ..atomic_io import make_folder, write_text
from ..cuda_graph import capture
from ..extras import need
from ..models.device import find_device
from ..ops.kernels import Dot, EmbeddedGaussian
from ..text import say
from . import complexity_report as report
from .complexity_report import BLOCK, COMPACT, EXACT, KERNELS, MATRIX, Point
from .measure import Case, draw_inputs, measure, peak_mib, peak_mib_on_cpu
from .registry import BENCHMARKS, Setting, Subject, build_block, build_operator
from .runner import device_name, reason

MAX_SECONDS = 2.0
"""A curve ends where a step takes longer."""
REPEAT_SECONDS = 0.2
"""Time spent on repetitions of a step."""

_matrix, _kernels = BENCHMARKS["ops"].choose("non-local bmm", "non-local sdpa")
SUBJECTS = {
    EXACT: Subject(EXACT, lambda setting: partial(ops.generalized_non_local, groups=setting.groups)),
    MATRIX: _matrix,
    KERNELS: _kernels,
    COMPACT: Subject(COMPACT, build_operator),
    BLOCK: Subject(BLOCK, build_block),
}


@dataclass(frozen=True)
class Curve:
    """An operation, the axis along which it grows, its sizes there, and what stays constant."""

    operation: str
    axis: str
    sizes: tuple[int, ...]
    batch: int
    channels: int
    positions: int
    groups: int = 1

    def setting(self, size: int, device: torch.device) -> Setting:
        """The setting at a size: training in float32 on a CPU, inference in bfloat16 on a GPU."""
        on_gpu = device.type == "cuda"
        channels = size if self.axis == "C" else self.channels
        return Setting(
            "ops",
            batch=self.batch,
            channels=channels,
            inner=channels // 2,
            size=factor(size if self.axis == "N" else self.positions),
            device=device,
            groups=self.groups,
            kernel=EmbeddedGaussian(order=size - 1) if self.axis == "P + 1" else Dot(),
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            channels_last=on_gpu,
            mode="forward" if on_gpu else "train",
            seconds=REPEAT_SECONDS,
        )


def factor(positions: int) -> tuple[int, int]:
    """Height and width of a map with this many positions, as square as possible: 98 is 7 x 14."""
    height = next(h for h in range(math.isqrt(positions), 0, -1) if positions % h == 0)
    return height, positions // height


def doubled(first: int, times: int) -> tuple[int, ...]:
    return tuple(first * 2**k for k in range(times + 1))


def plan(device_type: str) -> list[Curve]:
    """The curves for a CPU, which take about two minutes, or for a GPU.

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
            Curve(BLOCK, "N", doubled(256, 7), 2, 64, 0, groups=8),  # its batch norm warns about a single sample
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


def sweep(curve: Curve, device: torch.device) -> Iterator[Point]:
    """Yield a point for each size, until a step fails or takes longer than ``MAX_SECONDS``."""
    for size in curve.sizes:
        stop = f"{curve.operation}: ends before {curve.axis} = {size}"
        try:
            point = measure_point(curve, size, device)
        except RuntimeError as error:  # most likely out of memory; the other curves go on
            say(f"{stop}, {reason(error)}")
            return
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()
        if point is None:
            say(f"{stop}, a step takes more than {MAX_SECONDS:g} s")
            return
        say(f"{curve.operation:24} {curve.axis} = {size:<8d} {point.milliseconds:10.3f} ms {point.peak_mib:10.2f} MiB")
        yield point


def measure_point(curve: Curve, size: int, device: torch.device) -> Point | None:
    """Time and memory of a step; None if it takes longer than ``MAX_SECONDS``."""
    setting = curve.setting(size, device)
    inputs = draw_inputs(setting, setting.batch, 1 if curve.operation == BLOCK else 3, gradient=True)
    case = Case(SUBJECTS[curve.operation].load(setting, {}), inputs, setting)
    on_gpu = setting.device.type == "cuda"
    case.step()  # sets up what is set up once, such as compiled kernels
    start = time.perf_counter()
    memory = (peak_mib if on_gpu else peak_mib_on_cpu)(case.step, case.clear)
    if time.perf_counter() - start > MAX_SECONDS:
        return None
    if on_gpu:
        times = measure(capture(case.step, case.clear)[0].replay, setting.device, setting.seconds)
    else:
        times = measure(case.step, setting.device, setting.seconds, case.inputs)
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
def using_device(device: torch.device) -> Iterator[None]:
    """Use this GPU, or one thread of the CPU: threads that wait for one another would add to the time."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)


def complexity(folder: Path, device: str | None = None) -> list[Path]:
    """Measure how time and memory grow; write complexity.csv, complexity.md, complexity.png and growth.png.

    Args:
        folder: where they are written.
        device: auto, cpu (one thread, about two minutes), cuda or cuda:1.
    """
    place = torch.device(find_device(device or "auto"))
    need("matplotlib", "bench")
    make_folder(folder)
    table, points = folder / "complexity.csv", list[Point]()
    with using_device(place):
        for curve in plan(place.type):
            points += sweep(curve, place)
            report.write_points(points, table)
    return [table, *from_csv(table)]


def from_csv(table: Path) -> list[Path]:
    """Write tables and plots from points that were measured before, into their folder."""
    points = report.read_points(table)
    text, image, growth = (table.with_name(name) for name in ("complexity.md", "complexity.png", "growth.png"))
    write_text(text, report.markdown(points))
    report.plot(points, image)
    report.plot_time(points, growth)
    return [text, image, growth]
