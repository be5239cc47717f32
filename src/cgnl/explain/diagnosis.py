"""Does the attention matter? What happens to a network when something else is put in its place.

The attention of a CGNL block is one short vector of coefficients for each sample and group, alpha_p^2 (Phi^T g)_p.
It can be replaced by its mean over the evaluation set, by its sign times its mean size (each per group and order), and
by that of the next sample. A non-local block has a matrix instead, of which only one replacement needs no choice: the
uniform one, as if all positions were equally related. Any block can be switched off.

A second-order head gives the classifier a matrix. Its diagonal says how much each channel varies, the rest how channels
vary together: the rest can be replaced by its mean over the evaluation set, or left out.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..blocks import CGNL, NonLocal
from ..extras import need
from ..heads import SecondOrderPool
from ..ops.reference import leading

Blocks = Mapping[str, CGNL | NonLocal]
Change = Callable[[Tensor, int], Tensor]
"""From the coefficients [B, G, K] of a batch, and how many samples came before it, to what takes their place."""


class Recorded:
    """The coefficients of every sample that has passed a block, in order."""

    def __init__(self):
        self.parts: list[Tensor] = []

    def __call__(self, coefficients: Tensor, _before: int) -> Tensor:
        self.parts.append(coefficients.detach().cpu())
        return coefficients

    @property
    def values(self) -> Tensor:
        """[samples, G, K]."""
        return torch.cat(self.parts)


def by_mean(values: Tensor) -> Change:
    """The mean over all samples."""
    mean = values.mean(0, keepdim=True)
    return lambda coefficients, _: mean.to(coefficients).expand_as(coefficients)


def by_sign(values: Tensor) -> Change:
    """The sign of the sample's own, times the mean size over all samples."""
    size = values.abs().mean(0, keepdim=True)
    return lambda coefficients, _: coefficients.sign() * size.to(coefficients)


def by_next(values: Tensor, views: int = 1) -> Change:
    """The same view's of the next sample; the last one has the first one's."""
    shifted = values.roll(-views, 0)
    return lambda coefficients, before: shifted[before : before + len(coefficients)].to(coefficients)


@contextmanager
def replaced(block: CGNL, change: Change) -> Iterator[None]:
    """A block whose coefficients are what ``change`` makes of them."""
    own, backend, before = block.attention, block.backend, 0

    def attention(theta: Tensor, phi: Tensor, g: Tensor) -> tuple[int, Tensor, Tensor | None]:
        nonlocal before
        first, c, rows = own(theta, phi, g)
        given = c if rows is None else torch.cat([c, rows], -1)  # the row sums belong to the attention
        new = change(given, before)
        before += len(given)
        return first, new[..., : c.shape[-1]], None if rows is None else new[..., c.shape[-1] :]

    block.attention, block.backend = attention, "reference"  # the fused kernels have no such seam
    try:
        yield
    finally:
        del block.attention
        block.backend = backend


@contextmanager
def uniform(block: NonLocal) -> Iterator[None]:
    """A softmax block for which all positions are equally related: its logits are 0."""
    own = block.factors

    def factors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta, phi, g = own(x)
        return torch.zeros_like(theta), phi, g

    block.factors = factors
    try:
        yield
    finally:
        del block.factors


@contextmanager
def off(block: CGNL | NonLocal) -> Iterator[None]:
    """A block that returns its input."""
    handle = block.register_forward_hook(lambda _module, inputs, _output: inputs[0])
    try:
        yield
    finally:
        handle.remove()


class Pooled:
    """The mean of what a second-order head has given for all samples that passed it."""

    def __init__(self):
        self.sums: Tensor | None = None
        self.count = 0

    @contextmanager
    def measured(self, head: SecondOrderPool) -> Iterator[None]:
        def note(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            sums = output.detach().double().sum(0)  # [features]
            self.sums, self.count = sums if self.sums is None else self.sums + sums, self.count + len(output)

        handle = head.register_forward_hook(note)
        try:
            yield
        finally:
            handle.remove()

    @property
    def mean(self) -> Tensor:
        """[features]."""
        return torch.zeros(()) if self.sums is None else self.sums / self.count


@contextmanager
def pairs_replaced(head: SecondOrderPool, by: Tensor) -> Iterator[None]:
    """A second-order head whose entries off the diagonal are those of ``by``, [features] or a single one."""
    i, j = torch.triu_indices(head.reduced, head.reduced)
    diagonal = i == j  # [features]

    def replace(_module: nn.Module, _inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return torch.where(diagonal.to(y.device), y, by.to(y))

    handle = head.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def frames_shuffled(network: nn.Module) -> Iterator[None]:
    """A network that is given the frames of each clip in a random order, the same each time."""
    source, own = torch.Generator().manual_seed(0), network.forward

    def forward(x: Tensor) -> Tensor:  # [B, 3, T, H, W]; not a hook, because tests call forward itself
        order = torch.rand(len(x), x.shape[2], generator=source).argsort(1).to(x.device)  # [B, T]
        return own(torch.stack([clip[:, frames] for clip, frames in zip(x, order, strict=True)]))

    network.forward = forward
    try:
        yield
    finally:
        del network.forward


class Share(NamedTuple):
    """What a block adds, in percent of the size of its input."""

    of_all: float
    """A root of mean squares over all samples, of which a few may be most."""
    median: float
    """Half of the samples have less."""


class Added:
    """What a block has added to each sample that passed it; in half precision, what is left of it after rounding."""

    def __init__(self):
        self.squares: list[Tensor] = []

    @contextmanager
    def measured(self, block: CGNL | NonLocal) -> Iterator[None]:
        def note(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            x = inputs[0].detach()
            squares = [part.float().flatten(1).square().sum(1) for part in (output.detach() - x, x)]
            self.squares.append(torch.stack(squares))  # [2, B]; it stays on the device, so that nothing waits

        handle = block.register_forward_hook(note)
        try:
            yield
        finally:
            handle.remove()

    @property
    def share(self) -> Share:
        if not self.squares:
            return Share(0.0, 0.0)
        branch, given = torch.cat(self.squares, 1).double().cpu()  # [samples]
        parts = torch.stack([branch.sum() / given.sum(), (branch / given).nan_to_num(posinf=0.0).median()])
        return Share(*(100 * parts.nan_to_num(posinf=0.0).sqrt()).tolist())


@dataclass(frozen=True)
class Outcome:
    """A test with something in the attention's place, beside the test with the attention as it is."""

    attention: str
    top1: float
    """In percent."""
    lost: int = 0
    """Samples that were right and are wrong now."""
    won: int = 0
    """Samples that were wrong and are right now."""
    change: float = 0.0
    """Of top1, in points."""
    p: float = 1.0
    """McNemar's exact test, two-sided."""
    added: float | None = None
    """What the blocks add, in percent of the size of their inputs, on average; of the attention as it is."""
    added_median: float | None = None
    """The same of the median sample."""


@dataclass(frozen=True)
class Spread:
    """How the attention of a group differs between samples."""

    block: str
    group: int
    order: str
    mean: float
    deviation: float
    negative: float
    """Share of samples."""
    variation: float
    """deviation / |mean|."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Whether the attention of a network matters, and how much it differs between samples."""

    outcomes: tuple[Outcome, ...]
    """The test as it is, and with each thing in the attention's place."""
    spreads: tuple[Spread, ...]
    """Of each block, group and order."""
    values: Mapping[str, Tensor]
    """Coefficients of each CGNL block, [samples, G, K]."""
    orders: Mapping[str, tuple[str, ...]]
    """What the K coefficients of each are of."""
    added: Mapping[str, Share]
    """What each block adds."""


def diagnose_blocks(
    blocks: Blocks,
    test: Callable[[], Sequence[bool]],
    views: int = 1,
    heads: Mapping[str, SecondOrderPool] | None = None,
    more: Mapping[str, Callable[[], Any]] | None = None,
) -> Diagnosis:
    """Run a test with the attention as it is and with each thing in its place.

    Args:
        blocks: those of the network whose attention is replaced, all at once.
        test: runs the samples through the network, always in one order, and says which were named correctly.
        views: how many views of a sample follow one another, 1 unless given.
        heads: second-order heads whose pairs of channels are replaced, or None; a compact one has no such pairs.
        more: what else to test the network with, by name, a context manager each; or None.
    """
    matrices = [head for head in (heads or {}).values() if head.kind != "compact"]
    if not blocks and not matrices and not more:
        raise ValueError("there is no attention and no pair of channels in whose place something could be put")
    pooled = [Pooled() for _ in matrices]
    compact = {name: block for name, block in blocks.items() if isinstance(block, CGNL)}
    softmax = [b for b in blocks.values() if isinstance(b, NonLocal) and b.kernel == "embedded_gaussian"]
    recorded = {name: Recorded() for name in compact}
    sizes = {name: Added() for name in blocks}
    with ExitStack() as stack:
        for name, block in compact.items():
            stack.enter_context(replaced(block, recorded[name]))
        for name, block in blocks.items():
            stack.enter_context(sizes[name].measured(block))
        for head, mean in zip(matrices, pooled, strict=True):
            stack.enter_context(mean.measured(head))
        truth = test()
    values = {name: r.values for name, r in recorded.items()}
    added = {name: size.share for name, size in sizes.items()}

    def put(make: Callable[[Tensor], Change] | None, others: bool = False) -> list[Any]:
        changed = [replaced(block, make(values[name])) for name, block in compact.items()] if make else []
        return changed + ([uniform(block) for block in softmax] if others else [])

    variants: dict[str, Callable[[], list[Any]]] = {}
    if compact or softmax:
        variants["its mean" if compact else "uniform"] = lambda: put(by_mean, others=True)
    if compact:
        variants["its sign x mean size"] = lambda: put(by_sign)
        variants["another sample's"] = lambda: put(lambda v: by_next(v, views))
    if blocks:
        variants["block off"] = lambda: [off(block) for block in blocks.values()]
    if matrices:
        of_each = list(zip(matrices, pooled, strict=True))
        variants["pairs of channels at their mean"] = lambda: [pairs_replaced(h, p.mean) for h, p in of_each]
        variants["no pairs: the diagonal alone"] = lambda: [pairs_replaced(h, torch.zeros(())) for h in matrices]
    variants |= {name: lambda context=context: [context()] for name, context in (more or {}).items()}
    of_all, median = map(statistics.fmean, zip(*added.values(), strict=True)) if blocks else (None, None)
    outcomes = [Outcome("as it is", 100 * sum(truth) / len(truth), added=of_all, added_median=median)]
    for name, contexts in variants.items():
        with ExitStack() as stack:
            for context in contexts():
                stack.enter_context(context)
            outcomes.append(compare(name, truth, test()))
    orders = {name: order_names(block) for name, block in compact.items()}
    return Diagnosis(tuple(outcomes), tuple(spreads(values, orders)), values, orders, added)


def compare(name: str, truth: Sequence[bool], now: Sequence[bool]) -> Outcome:
    """A test beside the one it is held against, sample by sample."""
    if len(truth) != len(now):
        raise ValueError(f"{len(now)} samples cannot be compared with {len(truth)}")
    lost = sum(before and not after for before, after in zip(truth, now, strict=True))
    won = sum(after and not before for before, after in zip(truth, now, strict=True))
    top1 = 100 * sum(now) / len(now)
    return Outcome(name, top1, lost, won, 100 * (won - lost) / len(now), mcnemar(lost, won))


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided p of McNemar's test."""
    changed = lost + won
    return float(need("scipy.stats", "train").binomtest(lost, changed).pvalue) if changed else 1.0


def spreads(values: Mapping[str, Tensor], orders: Mapping[str, tuple[str, ...]]) -> Iterator[Spread]:
    """The attention of each block, group and order over the samples."""
    for name, coefficients in values.items():
        for group in range(coefficients.shape[1]):
            for k, order in enumerate(orders[name]):
                column = coefficients[:, group, k].double()
                mean, deviation = float(column.mean()), float(column.std(correction=0))
                variation = deviation / abs(mean) if mean else math.inf
                yield Spread(name, group, order, mean, deviation, float((column < 0).double().mean()), variation)


def order_names(block: CGNL) -> tuple[str, ...]:
    """What the coefficients of a block are of: powers of theta and, where rows are normalised, their sums."""
    first, alpha_squared = leading(block.kernel)
    powers = [str(p) for p in range(first, first + len(alpha_squared))]
    return tuple(powers + [f"row sum {p}" for p in powers] if block.normalize else powers)
