"""The gated field: what one block computes in one step, between a linear stem and a linear head.

A map has the channels a, b and u_1 .. u_16, each N(0, 1), with corr(a, b) = RHO s for a sign s of each sample. At every
position the target is the sign of s u_c: whoever knows s is right. ``docs/mathematics.md`` derives the bounds.
"""

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

from ..bench.complexity import settled_on
from ..blocks import CGNL, NonLocal, SimpleResidual
from ..engine.atomic_io import make_folder, write_text
from ..engine.folder import environment
from ..extras import need
from .gated_field_report import Result, markdown, read_results, write_results
from .statistics import estimate

RHO = 0.12
SIDE = 24
OUTPUTS = 16
CONTRAST = 0.5
"""Deviation of the logarithm of what a sample is multiplied by, in the rows with contrast."""
WIDTH = 64
BATCH = 24
"""One more, and the N x N matrices of NL are beyond 32 MiB, where a CPU takes twice as long."""
RATES = (3e-3, 1e-2, 3e-2)
"""Of Adam, with a cosine schedule to 0; each network has the one that is best on other draws than its own."""


@dataclass(frozen=True)
class Effort:
    """How long a network is trained, and on how many samples it is tested."""

    steps: int = 250
    choosing: int = 400
    """Samples by which a rate is chosen."""
    test: int = 2000


def draw(samples: int, generator: Generator, contrast: float = 0.0, side: int = SIDE) -> tuple[Tensor, Tensor]:
    """Inputs [samples, 18, side, side] and targets [samples, 16, side, side] of 0 and 1. Every other s is -1."""
    x = torch.randn(samples, 2 + OUTPUTS, side, side, generator=generator)
    s = torch.ones(samples, 1, 1)
    s[::2] = -1
    x[:, 1] = RHO * s * x[:, 0] + math.sqrt(1 - RHO**2) * x[:, 1]
    target = (s[..., None] * x[:, 2:] > 0).float()
    return x * torch.exp(contrast * torch.randn(samples, 1, 1, 1, generator=generator)), target


def best_of_positions(positions: int) -> float:
    """The most, in per cent, that anybody gets who sees this many positions: P(F < (1 + RHO) / (1 - RHO))."""
    ratio = (1 + RHO) / (1 - RHO)
    return 100 * float(need("scipy.stats", "reproduce").f(positions, positions).cdf(ratio))


def best_of_lines() -> float:
    """The most of a linear read-out of one position: that of u_c + (a - b) / sqrt(2 sqrt(1 - RHO^2))."""
    ratio = ((1 + RHO) / (1 - RHO)) ** 0.25
    return 50 + 100 * (math.atan(ratio) - math.atan(1 / ratio)) / (2 * math.pi)


def best_of_rank(rank: int) -> float:
    """The most of (A + s B) x with B of this rank, where A is any matrix."""
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
    """A block, the most that it can get where that is known, and whether samples differ in contrast."""

    name: str
    make: Callable[[int], nn.Module]
    bound: Callable[[], float] | None = None
    contrast: float = 0.0


_ALL = partial(best_of_positions, SIDE**2)


def _cgnl(name: str, contrast: float = 0.0, **options: object) -> list[Arm]:
    return [
        Arm(f"CGNL, {groups}{name}", partial(CGNL, groups=int(groups[0]), **options), _ALL, contrast)
        for groups in ("1 group", "8 groups")
    ]


def _undirected(channels: int) -> CGNL:
    """A block of which phi and g stay as they were drawn."""
    block = CGNL(channels, norm="group")
    for projection in (block.phi, block.g):
        projection.requires_grad_(False)
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
    Arm("CGNL, 8 groups, group norm, phi and g as drawn", _undirected, _ALL),
    *_cgnl("", CONTRAST),
    *_cgnl(', `scale="energy"`', CONTRAST, scale="energy"),
)


def network(arm: Arm) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2 + OUTPUTS, WIDTH, 1), arm.make(WIDTH), nn.Conv2d(WIDTH, OUTPUTS, 1))


def train(arm: Arm, rate: float, seed: int, steps: int, side: int = SIDE) -> nn.Module:
    """A network trained on samples that are all new; the seed is of its weights and of the samples."""
    generator = Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = network(arm)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x, target = draw(BATCH, generator, arm.contrast, side)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(net(x), target).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


@torch.no_grad()
def accuracy(net: nn.Module, arm: Arm, samples: int, seed: int, side: int = SIDE) -> float:
    """Per cent of the targets of some samples, the same for every network, that have the sign of the output."""
    generator, right = Generator().manual_seed(seed), 0.0
    for start in range(0, samples, BATCH):
        x, target = draw(min(BATCH, samples - start), generator, arm.contrast, side)
        right += float(((net(x) > 0) == target.bool()).float().mean((1, 2, 3)).sum())
    return 100 * right / samples


_FIRST, _TEST, _CHOICE = 100, 3 * 10**6, 2 * 10**6
"""Seeds of the networks, from the first on, of the samples to test on, and of those by which a rate is chosen.

Others served the trials by which width, schedule and rates were found.
"""


def measure(arm: Arm, seeds: int, effort: Effort, side: int = SIDE) -> Result:
    """The accuracy of a network with the rate that is best on other draws, over seeds."""
    start, found = time.perf_counter(), dict[float, float]()
    for rate in RATES:
        net = train(arm, rate, _CHOICE, effort.steps, side)
        found[rate] = accuracy(net, arm, effort.choosing, _CHOICE + 1, side)
    rate = max(found, key=lambda r: found[r])
    by_seed = [
        accuracy(train(arm, rate, seed, effort.steps, side), arm, effort.test, _TEST, side)
        for seed in range(_FIRST, _FIRST + seeds)
    ]
    e = estimate(by_seed)
    return Result(
        network=arm.name,
        contrast=arm.contrast,
        accuracy=e.mean,
        deviation=e.deviation,
        bound=arm.bound() if arm.bound else None,
        by_seed=tuple(by_seed),
        rate=rate,
        seconds=(time.perf_counter() - start) / (len(RATES) + seeds),
    )


def gated_field(
    folder: Path,
    *,
    seeds: int = 3,
    arms: Sequence[Arm] = ARMS,
    effort: Effort | None = None,
    side: int = SIDE,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Train every network on the processor, about ten minutes; write the table, and what it was measured with.

    Args:
        folder: for gated_field.csv, gated_field.md and environment.json.
        seeds: of each network.
        arms: the networks, all of the table unless given.
        effort: of training and testing, that of the table unless given.
        side: of the maps.
        say: what happens, line by line.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder")
    make_folder(folder)
    about = {"command": f"cgnl reproduce gated-field --seeds {seeds}", **environment(), "threads": 1}
    start, results, table = time.perf_counter(), list[Result](), folder / "gated_field.csv"
    with settled_on(torch.device("cpu")):
        for arm in arms:
            results.append(measure(arm, seeds, effort or Effort(), side))
            say(results[-1].line)
            write_results(results, table)
    about["seconds"] = round(time.perf_counter() - start)
    write_text(folder / "environment.json", json.dumps(about, indent=2) + "\n")
    return [table, *from_csv(table), folder / "environment.json"]


def from_csv(table: Path) -> list[Path]:
    """The page about results that were measured before, beside them."""
    page = table.with_suffix(".md")
    write_text(page, markdown(read_results(table)))
    return [page]
