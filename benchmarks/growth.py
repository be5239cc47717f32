"""Time of the exact, the non-local and the compact operation against the number of positions, forward + backward.

    python benchmarks/growth.py [--channels 64] [--seconds 2] [--csv benchmarks/results/growth_cpu.csv]
                                [--plot docs/figures/growth.png]

Each curve stops when a step takes longer than --seconds. The exponent is a least-squares fit to the points
that take at least twice as long as the shortest.

    python benchmarks/growth.py --device cuda [--batch 32] [--seconds 0.2] [--csv FILE] [--plot FILE]

On a GPU: the compact operator and the CGNL block, forward, as CUDA graphs, bfloat16, channels_last, over 49 to 200,704
positions at 512 channels and over 64 to 2048 channels at 3136 positions. Exponents are fits to the larger half of the
points.
"""

import argparse
import csv
import math
import statistics
import time
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch

from cgnl import CGNL, ops
from cgnl.bench import cases
from cgnl.bench import measure as timing
from cgnl.bench.runner import device_name
from cgnl.bench.settings import read
from cgnl.bench.subjects import Subject

OPERATIONS = {
    "generalized non-local, exact": ops.generalized_non_local,
    "non-local, softmax": ops.non_local,
    "compact generalized non-local": ops.compact_generalized_non_local,
}


def seconds(operation, positions: int, channels: int, device: str) -> float:
    """Median of five steps on a sample of ``channels`` x ``positions``."""
    inputs = [torch.randn(1, channels, positions, device=device, requires_grad=True) for _ in range(3)]
    times = []
    for _ in range(7):
        start = time.perf_counter()
        operation(*inputs).sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def exponent(points: list[tuple[int, float]]) -> float:
    """Slope of log time over log positions."""
    shortest = min(t for _, t in points)
    x, y = zip(*((math.log(n), math.log(t)) for n, t in points if t >= 2 * shortest), strict=True)
    return statistics.linear_regression(x, y).slope


def measure(channels: int, limit: float, device: str) -> dict[str, list[tuple[int, float]]]:
    curves = {}
    for name, operation in OPERATIONS.items():
        points: list[tuple[int, float]] = []
        for power in range(4, 21):
            points.append((2**power, seconds(operation, 2**power, channels, device)))
            print(f"{name:30} {points[-1][0]:8d} positions {1e3 * points[-1][1]:10.3f} ms", flush=True)
            # The exact form's memory is quadratic too: stop before the next matrix passes 2 GiB.
            exact_bytes = 4 * (2 ** (power + 1) * channels) ** 2
            if points[-1][1] * 2 > limit or ("exact" in name and exact_bytes > 2**31):
                break
        curves[name] = points
    return curves


@dataclass(frozen=True)
class Point:
    """A measurement on a GPU."""

    subject: str
    axis: str
    batch: int
    channels: int
    positions: int
    milliseconds: float
    ms_20: float
    ms_80: float
    device: str
    torch: str

    @property
    def along(self) -> int:
        return self.positions if self.axis == "N" else self.channels


def sweep() -> list[tuple[str, int, tuple[int, int]]]:
    """(what grows, channels, height and width)."""
    positions = [("N", 512, (7 * 2 ** (k // 2), 7 * 2 ** ((k + 1) // 2))) for k in range(13)]
    channels = [("C", 2**k, (56, 56)) for k in range(6, 12)]
    return positions + channels


def measure_gpu(batch: int, limit: float, device: str, points=None) -> list[Point]:
    """The operator and the block, as ``backend="auto"`` runs them."""
    found = []
    for axis, channels, size in points or sweep():
        setting = read(
            "block",
            {"batch": batch, "channels": channels, "size": "x".join(map(str, size)), "dtype": "bfloat16",
             "mode": "forward", "seconds": limit},
            device,
        )  # fmt: skip
        block = cases.load(Subject("block", lambda s: CGNL(s.channels, zero_init=False)), setting, {})
        operator = partial(ops.compact_generalized_non_local, groups=8)
        for name, call, count in (("operator", operator, 3), ("block", block, 1)):
            case = cases.ready(call, cases.draw(setting, batch, count, gradient=False), setting)
            times = timing.measure(timing.captured(case.step, case.clear), setting.device, limit)
            found.append(
                Point(name, axis, batch, channels, math.prod(size), times.median, times.low, times.high,
                      device_name(setting.device), torch.__version__)
            )  # fmt: skip
            print(f"{name:9} C = {channels:5d} N = {math.prod(size):7d} {times.median:10.4f} ms", flush=True)
    return found


def larger_half(points: list[tuple[int, float]]) -> float:
    """Slope of log time over the logarithm of what grows, over the larger half of it."""
    half = sorted(points)[len(points) // 2 :]
    x, y = zip(*((math.log(n), math.log(t)) for n, t in half), strict=True)
    return statistics.linear_regression(x, y).slope


def curves_of(points: list[Point]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    keys = dict.fromkeys((p.axis, p.subject) for p in points)
    return {k: [(p.along, p.milliseconds) for p in points if (p.axis, p.subject) == k] for k in keys}


def draw_gpu(points: list[Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    panels = {"N": (axes[0], "positions N, 512 channels"), "C": (axes[1], "channels C, 3136 positions")}
    for (axis, subject), curve in curves_of(points).items():
        x, y = zip(*curve, strict=True)
        colour = {"operator": "#8c8c8c", "block": "#2b6cb0"}[subject]
        label = f"{subject}: {axis}^{larger_half(curve):.2f}"
        panels[axis][0].loglog(x, y, "o-", color=colour, markersize=3.5, label=label)
    for panel, label in panels.values():
        panel.set(xlabel=label, ylabel="milliseconds")
        panel.legend(frameon=False, fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    first = points[0]
    figure.suptitle(
        f"CGNL forward, batch {first.batch}, bfloat16, channels_last, {first.device}, torch {first.torch}", fontsize=9
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def write_gpu(points: list[Point], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)])
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def draw(curves: dict[str, list[tuple[int, float]]], channels: int, device: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for (name, points), colour in zip(curves.items(), ("#c44e52", "#8c8c8c", "#2b6cb0"), strict=True):
        x, y = zip(*((n, 1e3 * t) for n, t in points), strict=True)
        axes.loglog(x, y, "o-", color=colour, markersize=3.5, label=f"{name}: N^{exponent(points):.2f}")
    for size, label in ((196, "res4, 224 px"), (784, "res4, 448 px"), (12544, "res3 of a 32-frame clip, 448 px")):
        axes.axvline(size, color="#dddddd", zorder=0)
        place = {"xycoords": ("data", "axes fraction"), "xytext": (3, 0), "textcoords": "offset points"}
        axes.annotate(label, (size, 0.55), **place, rotation=90, va="center", fontsize=7, color="#777777")
    axes.set(xlabel="positions N", ylabel="milliseconds")
    axes.set_title(
        f"One sample, {channels} channels, forward + backward, {device}, torch {torch.__version__.partition('+')[0]}",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--seconds", type=float, help="2 on a CPU, 0.2 on a GPU")
    parser.add_argument("--batch", type=int, default=32, help="on a GPU")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.device == "cuda":
        points = measure_gpu(args.batch, args.seconds or 0.2, args.device)
        for (axis, subject), curve in curves_of(points).items():
            print(f"{subject:9} {axis}^{larger_half(curve):.2f}")
        if args.csv:
            write_gpu(points, args.csv)
        if args.plot:
            draw_gpu(points, args.plot)
        return
    curves = measure(args.channels, args.seconds or 2.0, args.device)
    for name, points in curves.items():
        print(f"{name:30} N^{exponent(points):.2f}")
    if args.csv:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["operation", "channels", "positions", "milliseconds", "device", "torch"])
            for name, points in curves.items():
                writer.writerows(
                    [name, args.channels, n, f"{1e3 * t:.4f}", args.device, torch.__version__] for n, t in points
                )
    if args.plot:
        draw(curves, args.channels, args.device, args.plot)


if __name__ == "__main__":
    main()
