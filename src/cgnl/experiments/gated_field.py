"""The gated field: what one block computes in one step, between a linear stem and a linear head.

A map has the channels a, b and u_1 .. u_16, each N(0, 1), with corr(a, b) = RHO s for a sign s of each sample. At every
position the target is the sign of s u_c, which is known once s is. ``docs/mathematics.md`` derives the bounds.
"""

import csv
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from ..atomic_io import make_folder, write_csv, write_text
from ..bench.complexity import using_device
from ..blocks import CGNL, NonLocal, SimpleResidual
from ..engine.folder import environment
from ..extras import need
from ..text import markdown_table
from .statistics import estimate

RHO = 0.12
SIDE = 24
OUTPUTS = 16
CONTRAST = 0.5
"""Standard deviation of the log factor of a sample, in the rows with contrast."""
WIDTH = 64
BATCH = 24
"""The largest for which the N x N matrices of NL stay within 32 MiB; beyond, a CPU takes twice as long."""
RATES = (3e-3, 1e-2, 3e-2)
"""Learning rates of Adam with a cosine schedule; each network has the one that is best on separate samples."""
STEPS = 250
CHOICE_SAMPLES, TEST_SAMPLES = 400, 2000
"""Samples to choose a rate by, and to test on."""
CHOICE_SEED, TEST_SEED, FIRST_SEED = 2 * 10**6, 3 * 10**6, 100
"""Seeds for choosing a rate, of the test samples, and of the first network. Trials that fixed the task had others."""


def draw(samples: int, generator: Generator, contrast: float = 0.0) -> tuple[Tensor, Tensor]:
    """Inputs [samples, 18, SIDE, SIDE] and targets [samples, 16, SIDE, SIDE] of 0 and 1. Every other s is -1."""
    x = torch.randn(samples, 2 + OUTPUTS, SIDE, SIDE, generator=generator)
    s = torch.ones(samples, 1, 1)
    s[::2] = -1
    x[:, 1] = RHO * s * x[:, 0] + math.sqrt(1 - RHO**2) * x[:, 1]
    target = (s[..., None] * x[:, 2:] > 0).float()
    return x * torch.exp(contrast * torch.randn(samples, 1, 1, 1, generator=generator)), target


def best_of_positions(positions: int) -> float:
    """Bound in per cent of anything that sees this many positions: P(F < (1 + RHO) / (1 - RHO))."""
    ratio = (1 + RHO) / (1 - RHO)
    return 100 * float(need("scipy.stats", "reproduce").f(positions, positions).cdf(ratio))


best_of_map = partial(best_of_positions, SIDE**2)


def best_of_lines() -> float:
    """Bound of a linear read-out of one position: that of u_c + (a - b) / sqrt(2 sqrt(1 - RHO^2))."""
    ratio = ((1 + RHO) / (1 - RHO)) ** 0.25
    return 50 + 100 * (math.atan(ratio) - math.atan(1 / ratio)) / (2 * math.pi)


def best_of_rank(rank: int) -> float:
    """Bound of (A + s B) x with B of this rank and any matrix A."""
    return 75 + 50 * math.asin(math.sqrt(rank / OUTPUTS)) / math.pi


class SqueezeExcitation(nn.Module):
    """x times a gate of each channel, from the means of the channels (Hu et al.)."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.gate = nn.Sequential(nn.Linear(channels, half), nn.ReLU(), nn.Linear(half, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[..., None, None]


class GlobalContext(nn.Module):
    """x plus a vector made of a mean over positions, weighted by a softmax (Cao et al.)."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.mask = nn.Conv2d(channels, 1, 1)
        self.change = nn.Sequential(nn.Linear(channels, half), nn.LayerNorm(half), nn.ReLU(), nn.Linear(half, channels))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.mask(x).flatten(2).softmax(-1)  # [B, 1, N]
        context = (x.flatten(2) * weights).sum(-1)  # [B, C]
        return x + self.change(context)[..., None, None]


@dataclass(frozen=True)
class Arm:
    """A block, its bound if known, and how much samples differ in contrast."""

    name: str
    make: Callable[[int], nn.Module]
    bound: Callable[[], float] | None = None
    contrast: float = 0.0


def _cgnl(name: str, contrast: float = 0.0, **options: object) -> list[Arm]:
    return [
        Arm(f"CGNL, {groups}{name}", partial(CGNL, groups=int(groups[0]), **options), best_of_map, contrast)
        for groups in ("1 group", "8 groups")
    ]


def _with_fixed_pair(channels: int) -> CGNL:
    """A block whose phi and g are not trained."""
    block = CGNL(channels, norm="group")
    block.phi.requires_grad_(False)
    block.g.requires_grad_(False)
    return block


ARMS = (
    Arm("none", lambda _: nn.Identity(), best_of_lines),
    Arm("simple residual", SimpleResidual, best_of_lines),
    Arm("squeeze-and-excitation", SqueezeExcitation, partial(best_of_positions, 2)),
    Arm("global context", GlobalContext),
    Arm("NL, softmax", NonLocal),
    Arm("NL, dot", partial(NonLocal, kernel="dot"), partial(best_of_rank, 2)),
    *_cgnl(""),
    *_cgnl(", group norm", norm="group"),
    Arm("CGNL, 8 groups, group norm, phi and g as drawn", _with_fixed_pair, best_of_map),
    *_cgnl("", CONTRAST),
    *_cgnl(', `scale="energy"`', CONTRAST, scale="energy"),
)


def train(arm: Arm, rate: float, seed: int) -> nn.Module:
    """Train a network on fresh samples; the seed is for weights and samples."""
    generator = Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(2 + OUTPUTS, WIDTH, 1), arm.make(WIDTH), nn.Conv2d(WIDTH, OUTPUTS, 1))
    optimizer = torch.optim.Adam(net.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        x, target = draw(BATCH, generator, arm.contrast)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(x), target).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


@torch.no_grad()
def accuracy(net: nn.Module, arm: Arm, samples: int, seed: int) -> float:
    """Per cent of the targets that have the sign of the output."""
    generator, right = Generator().manual_seed(seed), 0.0
    for start in range(0, samples, BATCH):
        x, target = draw(min(BATCH, samples - start), generator, arm.contrast)
        right += float(((net(x) > 0) == target.bool()).float().mean((1, 2, 3)).sum())
    return 100 * right / samples


def measure(arm: Arm, seeds: int) -> list[str]:
    """Train a network with its best rate over seeds; return its row of the table."""
    start, found = time.perf_counter(), dict[float, float]()
    for rate in RATES:
        found[rate] = accuracy(train(arm, rate, CHOICE_SEED), arm, CHOICE_SAMPLES, CHOICE_SEED + 1)
    best = max(found, key=lambda rate: found[rate])
    nets = (train(arm, best, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds))
    by_seed = [accuracy(net, arm, TEST_SAMPLES, TEST_SEED) for net in nets]
    seconds = (time.perf_counter() - start) / (len(RATES) + seeds)
    e, bound = estimate(by_seed), arm.bound() if arm.bound else None
    numbers = ["-" if v is None else f"{v:.2f}" for v in (e.mean, e.deviation, bound)]
    each = " ".join(f"{value:.2f}" for value in by_seed)
    return [arm.name, f"{arm.contrast:g}" if arm.contrast else "-", *numbers, each, f"{best:g}", f"{seconds:.1f}"]


def gated_field(folder: Path, seeds: int = 3) -> list[Path]:
    """Train every network on the CPU, about ten minutes; write gated_field.csv, gated_field.md and environment.json."""
    make_folder(folder)
    about = {"command": f"cgnl reproduce gated-field --seeds {seeds}", **environment(), "threads": 1}
    start, rows, table = time.perf_counter(), list[list[str]](), folder / "gated_field.csv"
    with using_device(torch.device("cpu")):
        for arm in ARMS:
            rows.append(measure(arm, seeds))
            write_csv(table, TITLES, rows)
            name, contrast, mean, _, _, each, *_ = rows[-1]
            title = name if contrast == "-" else f"{name}, contrast {contrast}"
            print(f"{title:48} {mean:>6} % ({each.replace(' ', ', ')})", flush=True)
    about["seconds"] = round(time.perf_counter() - start)
    write_text(folder / "environment.json", json.dumps(about, indent=2) + "\n")
    return [table, *from_csv(table), folder / "environment.json"]


def from_csv(table: Path) -> list[Path]:
    """Write the page about results measured before."""
    page = table.with_suffix(".md")
    write_text(page, markdown(read_rows(table)))
    return [page]


TITLES = ("block", "contrast", "accuracy, %", "deviation", "at most, %", "by seed", "rate", "seconds a run")

TASK = """A map of 24 x 24 positions has 18 channels: a, b and u_1 to u_16, each N(0, 1), with corr(a, b) = 0.12 s for
a sign s of each sample. The target at each position is the sign of s u_c for each of the 16. Stem and head are linear
(1 x 1, 64 channels between them), the block stands in the middle: 250 steps of Adam, 24 new samples each, with the
learning rate of 0.003, 0.01 and 0.03 that was best on other draws. Tested on 2,000 samples. With contrast, each sample
is multiplied by exp(contrast z), z from N(0, 1)."""

CAVEAT = """This is what one block computes in one step between a linear stem and a linear head, and no more. Behind a
convolutional stem with ReLU, and before a head of several layers, the separation is gone: in trials that are not in
this table, CGNL was no better there than dot-NL. It is not what networks cannot do."""

NOTES = """What is possible "at most" is derived in docs/mathematics.md; that of NL is for infinitely many positions.
Group norm leaves the sign of s, which would be enough, and next to no gradient for phi and g: compare the row where
they stay as they were drawn."""


def read_rows(path: Path) -> list[list[str]]:
    """Read the rows of a measured table."""
    with path.open(newline="") as file:
        titles, *rows = csv.reader(file)
    if tuple(titles) != TITLES or not rows or any(len(row) != len(TITLES) for row in rows):
        raise ValueError(f"{path} is no table of the gated field")
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Task, table, conclusion and caveats."""
    parts = ["# The gated field", TASK, markdown_table(TITLES, rows), conclude(rows), CAVEAT, NOTES]
    return "\n\n".join(part for part in parts if part) + "\n"


def conclude(rows: Sequence[Sequence[str]]) -> str:
    """Compare CGNL with the other blocks; empty if the table lacks either."""
    accuracies = {row[0]: float(row[2]) for row in rows if row[1] == "-"}  # without contrast
    cgnl = [value for name, value in accuracies.items() if name.startswith("CGNL") and "norm" not in name]
    others = {name: value for name, value in accuracies.items() if not name.startswith("CGNL")}
    if not cgnl or not others:
        return ""
    best = max(others, key=lambda name: others[name])
    return (
        f"One CGNL block with batch norm is right at {min(cgnl):.1f} to {max(cgnl):.1f} % of the targets; of the other "
        f"blocks the best, {best}, at {others[best]:.1f} %, where guessing is 50 %."
    )
