"""Kill training at random moments, resume it, and compare its end, bit by bit, with that of an undisturbed run.

    python -m benchmarks.faults [--kills 300] [--seed 0] [--output benchmarks/results/faults.txt]

Half of the runs are killed (SIGKILL) at a uniformly random moment, the others while they write a checkpoint; a quarter
of those that are resumed are killed again.
"""

import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from tests.engine.conftest import register
from tests.engine.kills import PHASES, Figures, experiment, undisturbed

from .harness import make_parser, report


def describe(figures: Figures, seed: int, seconds: float) -> list[str]:
    kills = sum(figures.kills.values())
    return [
        f"{figures.endings} runs killed {kills} times (seed {seed}, torch {torch.__version__})",
        *(f"  {figures.kills[name]:4} in {name}" for name in PHASES),
        f"{figures.identical} of {figures.endings} endings identical",
        f"{figures.unreadable} of {figures.readable + figures.unreadable} checkpoints unreadable after a kill",
        f"{seconds:.0f} seconds",
    ]


def main() -> int:
    parser = make_parser(__doc__, "kills", 300, "runs that are killed, each at least once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    register()
    torch.set_num_threads(1)
    began, figures = time.perf_counter(), Figures()
    forks = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        whole = undisturbed(Path(folder))
        with ProcessPoolExecutor(args.workers, forks) as pool:
            work = [
                pool.submit(experiment, args.seed, number, Path(folder) / f"{number}", whole)
                for number in range(args.kills)
            ]
            for done in as_completed(work):
                figures.add(done.result())
                print(f"\r{figures.identical} of {figures.endings} identical", end="", file=sys.stderr, flush=True)
    print(end="\r")
    return report(describe(figures, args.seed, time.perf_counter() - began), figures.faults, args.output)


if __name__ == "__main__":
    sys.exit(main())
