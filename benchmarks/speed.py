"""Measure everything that docs/performance.md shows of blocks, operators and networks, in one run on one GPU.

    python -m benchmarks.speed FOLDER ["authors.py:SpatialCGNL(C, inner, groups=8)"]

writes FOLDER/bench.csv, and FOLDER/pointers.csv for the kernels of GPUs that do not copy tiles by themselves (compute
capability 8), which any GPU can be made to take.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cgnl.commands.bench import bench

OURS = "reference,reference-compiled,fused"
ALL = f"{OURS},fused-recompute,non-local-bmm,non-local-sdpa,squeeze-excitation,global-context"
BOTH = ("forward", "train")
RES3: dict[str, Any] = {"channels": 512, "size": "56"}
SMALL: dict[str, Any] = {"batch": 8, "size": "14"}
SECONDS = 0.3
"""Spent on repetitions of each row: some hundreds of most."""


def measurements(peer: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The benchmark and the options of each table."""
    for mode in BOTH:
        yield "block", {"mode": mode, "rows": ALL, "peer": peer}
        yield "block", {"mode": mode, "rows": f"{OURS},fused-recompute", "peer": peer} | RES3
        yield "block", {"mode": mode, "rows": f"{OURS},squeeze-excitation"} | SMALL
        yield "block", {"mode": mode, "rows": f"{OURS},fused-recompute", "kernel": "rbf"}
        yield "block", {"mode": mode, "rows": OURS, "groups": 1}
        yield "block", {"mode": mode, "rows": OURS, "channels_last": False}
        yield "block", {"mode": mode, "rows": OURS, "channels_last": False, "size": "14"}
        yield "block", {"mode": mode, "rows": OURS, "dtype": "tf32"}
        yield "ops", {"mode": mode, "rows": f"{OURS},non-local-bmm,non-local-sdpa"}
        yield "ops", {"mode": mode, "rows": OURS, "kernel": "rbf"}
    yield "block", {"mode": "train", "rows": OURS, "dtype": "float32"}
    yield "block", {"mode": "train", "rows": "reference,fused", "norm": "group"}
    yield "network", {"mode": "train", "rows": "plain,reference,fused", "batch": 32, "size": "448"}
    heads = "plain-compiled,covariance-head-compiled"
    yield "network", {"mode": "train", "rows": heads, "batch": 64, "size": "448"}


def through_pointers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The block as GPUs of compute capability 8 have it."""
    for mode in BOTH:
        yield "block", {"mode": mode, "rows": "fused"}
        yield "block", {"mode": mode, "rows": "fused"} | RES3


def main() -> None:
    from cgnl.ops.fused import launch

    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder, peer = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else None
    for benchmark, options in measurements(peer):
        bench(benchmark, csv=str(folder / "bench.csv"), seconds=SECONDS, **options)
    import torch

    launch.pretended = launch.hardware(torch.device("cuda"))._replace(tma=False)
    for benchmark, options in through_pointers():
        bench(benchmark, csv=str(folder / "pointers.csv"), seconds=SECONDS, **options)


if __name__ == "__main__":
    main()
