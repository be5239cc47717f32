"""Time of the exact, the non-local and the compact operation against the number of positions, forward + backward.

    python benchmarks/growth.py [--channels 64] [--seconds 2] [--csv benchmarks/results/growth_cpu.csv]
                                [--plot docs/figures/growth.png]

Each curve stops when a step takes longer than --seconds. The exponent is a least-squares fit to the points
that take at least twice as long as the shortest.
"""

import argparse
import csv
import math
import statistics
import time
from pathlib import Path

import torch

from cgnl import ops

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
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    curves = measure(args.channels, args.seconds, args.device)
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
