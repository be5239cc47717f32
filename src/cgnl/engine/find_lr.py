"""``cgnl train --find-lr``: raise the learning rate from step to step, and see where the loss falls, and diverges."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..atomic_io import save_figure
from ..extras import need
from .datasets import open_dataset
from .distributed import connect
from .folder import log_to_console
from .loop import Loop
from .optimizer import REFERENCE_BATCH
from .settings import Config
from .tasks import TASKS
from .train import choose_batch_size, new_network, resolve

LOWEST, HIGHEST = 1e-6, 10.0
"""Rates of the first and the last step, as ``optim.lr``."""
DIVERGED = 4.0
"""The loss diverges when its running average is this many times the lowest one."""
DECAY = 0.8
"""Decay of the running average."""
SMOOTHED = 25
"""The losses are smoothed by a Gaussian whose deviation is the number of steps divided by this."""
ROWS = 12
"""Of the table that is printed."""


class RangeTest(NamedTuple):
    """Losses over learning rates that rise, all as ``optim.lr``."""

    rates: list[float]
    losses: list[float]
    smooth: list[float]
    steepest: float | None
    """Where the smoothed loss falls fastest; None if it never falls."""
    diverges: float | None
    """Where the loss diverges; None if it does not."""

    @property
    def bound(self) -> float | None:
        """The highest rate to try: a tenth of that which diverges."""
        return self.diverges and self.diverges / 10

    @property
    def suggestion(self) -> float | None:
        return self.steepest and min(self.steepest, self.bound or math.inf)


def spread_rates(steps: int) -> list[float]:
    """Rates that rise by the same factor in each step."""
    return [LOWEST * (HIGHEST / LOWEST) ** (step / (steps - 1)) for step in range(steps)]


def sweep(step: Callable[[float], float], rates: Sequence[float]) -> RangeTest:
    """Make a ``step`` with each rate, which returns the loss before it, until the loss diverges."""
    losses: list[float] = []
    average, weight, lowest = 0.0, 0.0, math.inf
    diverges = None
    for rate in rates:
        loss = step(rate)
        average, weight = DECAY * average + (1 - DECAY) * loss, DECAY * weight + 1 - DECAY
        if not math.isfinite(loss) or average / weight > DIVERGED * lowest:
            diverges = rate
            break
        lowest = min(lowest, average / weight)
        losses.append(loss)
    tried = list(rates[: len(losses)])
    smooth = smoothen(losses, len(rates) / SMOOTHED)
    return RangeTest(tried, losses, smooth, find_steepest(tried, smooth), diverges)


def smoothen(losses: Sequence[float], width: float) -> list[float]:
    """Losses smoothed to both sides: an average of the past alone would move the curve to higher rates."""
    if not losses:
        return []
    return need("scipy.ndimage", "train").gaussian_filter1d(losses, width, mode="nearest").tolist()


def find_steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The rate where the loss falls fastest over the logarithm of the rate."""
    falls = [(losses[i + 1] - losses[i - 1], rates[i]) for i in range(1, len(losses) - 1)]
    fall, rate = min(falls, default=(0.0, 0.0))
    return rate if fall < 0 else None


def find_lr(config: Config, steps: int) -> RangeTest:
    """Test a range of learning rates on the training batches of these settings; nothing is kept or written."""
    with log_to_console():
        dataset = open_dataset(config.data)
        config = resolve(config, dataset)
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, ema=None, on_nan="stop"))
        batch_size, accumulate = choose_batch_size(config, len(dataset.train)), config.optim.accumulate
        network = new_network(config, dataset, batch_size)
        task = TASKS[dataset.kind](network, config, dataset, connect(config), batch_size)
        loop = RisingLoop(task, Path(), batch_size / REFERENCE_BATCH, batch_size)
        batches = task.train_batches(batch_size, -(-steps // loop.steps_per_epoch))
        parts = enumerate(islice(batches, steps * accumulate))
        return sweep(lambda rate: loop.measure(parts, rate), spread_rates(steps))


class RisingLoop(Loop):
    """The training's own steps, at rates that are given; its highest rate is that of ``optim.lr=1``."""

    rate = 0.0

    def measure(self, parts: Iterator[tuple[int, Any]], rate: float) -> float:
        """A step from the next batches, and the mean loss before it over all ranks; NaN where no step can be made."""
        self.rate = rate
        self.task.sums.values.zero_()
        self.make_step(parts)
        return math.nan if self.watch.read(now=True) else self.task.sums.means()["loss"]

    def lr_factor(self, step: int) -> float:  # noqa: ARG002
        return self.rate


def describe(found: RangeTest) -> list[str]:
    """A range test in words: a small table, and the suggestion."""
    every = max(1, -(-len(found.rates) // ROWS))
    rows = list(zip(found.rates, found.smooth, strict=True))[::every]
    lines = [" optim.lr      loss, smoothed", *(f"{rate:9.2g}  {loss:12.4f}" for rate, loss in rows)]
    if found.diverges and found.bound:
        lines.append(f"the loss diverges at {found.diverges:.2g}: use no more than optim.lr={found.bound:.2g}")
    elif found.rates:
        lines.append(f"the loss does not diverge up to {found.rates[-1]:.2g}")
    if found.suggestion is None:
        return [*lines, "the loss never falls, so there is nothing to suggest: try more steps, or other settings"]
    lowered = "" if found.suggestion == found.steepest else f", below {found.steepest:.2g} where the loss falls fastest"
    return [*lines, f"suggested: optim.lr={found.suggestion:.2g}{lowered or ', where the loss falls fastest'}"]


def draw(found: RangeTest, path: Path) -> None:
    """Draw the loss over the learning rate."""
    figure = need("matplotlib.figure", "explain").Figure(figsize=(6.4, 4), layout="constrained")
    axis = figure.subplots()
    axis.plot(found.rates, found.losses, ".", color="#bbbbbb", label="each step")
    axis.plot(found.rates, found.smooth, color="C0", label="smoothed")
    for rate, text, colour in (
        (found.suggestion, "suggested", "C2"),
        (found.bound, "a tenth of what diverges", "C1"),
        (found.diverges, "diverges", "C3"),
    ):
        if rate:
            axis.axvline(rate, color=colour, linestyle="--", label=f"{text}: {rate:.2g}")
    axis.set(xscale="log", xlabel="optim.lr, for a batch of 256", ylabel="training loss")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    save_figure(figure, path, dpi=150)
