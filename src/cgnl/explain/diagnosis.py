"""Does the attention matter? Test a network with something else in its place.

The attention of a CGNL block is a short vector of coefficients per sample and group, alpha_p^2 (Phi^T g)_p. It can be
replaced by its mean over the evaluation set, by its sign times its mean size (each per group and order), or by the next
sample's. A non-local block has a matrix instead, with one replacement that needs no choice: a uniform one, as if all
positions were equally related. Any block can be switched off.

A second-order head gives the classifier a matrix. The diagonal says how much each channel varies, the rest how channels
vary together: the rest can be replaced by its mean over the evaluation set, or by zero.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..blocks import CGNL, NonLocal
from ..extras import need
from ..heads import SecondOrderPool
from ..ops.reference import leading
from .maps import entered, patched
from .verdict import Verdict

Context = AbstractContextManager[Any]
Change = Callable[[Tensor, int], Tensor]
"""From the coefficients [B, G, K] of a batch, and the number of samples before it, to their replacement."""


class Share(NamedTuple):
    """Size of what a block adds, in percent of the size of its input."""

    of_all: float  # root mean square over all samples; a few of them may dominate it
    median: float


@dataclass(frozen=True)
class Outcome:
    """A test with a replacement, compared with the unchanged network."""

    attention: str  # the replacement
    top1: float  # percent
    lost: int = 0  # samples that were right and became wrong
    won: int = 0  # samples that were wrong and became right
    change: float = 0.0  # of top1, in points
    p: float = 1.0  # McNemar's exact test, two-sided
    added: float | None = None  # what the unchanged blocks add: mean of ``Share.of_all``
    added_median: float | None = None  # the same of ``Share.median``


@dataclass(frozen=True)
class DetectorOutcome:
    """The same of a detector."""

    attention: str
    box_ap: float  # percent
    changed: int = 0  # images in which other objects are found
    change: float = 0.0  # of box_ap, in points
    added: float | None = None
    added_median: float | None = None


@dataclass(frozen=True)
class Spread:
    """How the attention of a group varies between samples."""

    block: str
    group: int
    order: str
    mean: float
    deviation: float
    negative: float  # share of samples
    variation: float  # deviation / |mean|


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Whether the attention of a network matters, and how much it varies between samples."""

    outcomes: tuple[Any, ...]  # Outcome or, of a detector, DetectorOutcome
    """The unchanged network first, then each replacement."""
    spreads: tuple[Spread, ...]
    """One for each block, group and order."""
    values: Mapping[str, Tensor]
    """Coefficients of each CGNL block, [samples, G, K]."""
    orders: Mapping[str, tuple[str, ...]]
    """Names of the K coefficients of each block."""
    added: Mapping[str, Share]
    """What each block adds."""
    verdict: Verdict | None = None
    """Whether the blocks are used; None if the predictions are not known."""


def diagnose_blocks(
    blocks: Mapping[str, CGNL | NonLocal],
    test: Callable[[], Any],
    views: int = 1,
    heads: Mapping[str, SecondOrderPool] | None = None,
    more: Mapping[str, Callable[[], Any]] | None = None,
    compare: Callable[[str, Any, Any], Any] | None = None,
) -> Diagnosis:
    """Run a test of the unchanged network, then one with each replacement.

    Args:
        blocks: the blocks whose attention is replaced, all at once.
        test: runs all samples through the network, always in the same order, and returns which ones it gets right.
        views: number of consecutive views of one sample, 1 unless given.
        heads: second-order heads whose pairs of channels are replaced, or None; compact ones have no such pairs.
        more: further replacements, from a name to a function that returns a context manager; or None.
        compare: makes an outcome of a name and what two tests return; unless given, ``compare_classes``.
    """
    matrices = [head for head in (heads or {}).values() if head.kind != "compact"]
    if not blocks and not matrices and not more:
        raise ValueError("the network has no attention and no pairs of channels that could be replaced")
    compact = {name: block for name, block in blocks.items() if isinstance(block, CGNL)}
    softmax = [b for b in blocks.values() if isinstance(b, NonLocal) and b.kernel == "embedded_gaussian"]
    recorded: dict[str, list[Tensor]] = {name: [] for name in compact}
    branches = {name: BranchSize() for name in blocks}
    pooled = [Mean() for _ in matrices]
    watches = [replaced(block, by_itself(recorded[name])) for name, block in compact.items()]
    watches += [block.register_forward_hook(branches[name]) for name, block in blocks.items()]
    watches += [head.register_forward_hook(mean) for head, mean in zip(matrices, pooled, strict=True)]
    with entered(watches):
        truth = test()
    values = {name: torch.cat(parts) for name, parts in recorded.items()}
    added = {name: branch.share for name, branch in branches.items()}

    def replace_all(make: Callable[[Tensor], Change]) -> list[Context]:
        return [replaced(block, make(values[name])) for name, block in compact.items()]

    def replace_pairs(by: Sequence[Tensor]) -> list[Context]:
        return [pairs_replaced(head, value) for head, value in zip(matrices, by, strict=True)]

    variants: dict[str, Callable[[], list[Context]]] = {}
    if compact or softmax:
        variants["its mean" if compact else "uniform"] = lambda: replace_all(by_mean) + [uniform(b) for b in softmax]
    if compact:
        variants["its sign x mean size"] = lambda: replace_all(by_sign)
        variants["another sample's"] = lambda: replace_all(lambda v: by_next(v, views))
    if blocks:
        variants["block off"] = lambda: [off(block) for block in blocks.values()]
    if matrices:
        variants["pairs of channels at their mean"] = lambda: replace_pairs([mean.value for mean in pooled])
        variants["no pairs: the diagonal alone"] = lambda: replace_pairs([torch.zeros(())] * len(matrices))
    variants |= {name: lambda make=make: [make()] for name, make in (more or {}).items()}

    of_all, median = map(statistics.fmean, zip(*added.values(), strict=True)) if blocks else (None, None)
    compare = compare or compare_classes
    outcomes = [replace(compare("as it is", truth, truth), added=of_all, added_median=median)]
    for name, contexts in variants.items():
        with entered(contexts()):
            outcomes.append(compare(name, truth, test()))
    orders = {name: order_names(block) for name, block in compact.items()}
    return Diagnosis(tuple(outcomes), tuple(spreads(values, orders)), values, orders, added)


class Mean:
    """A forward hook that averages the output over all samples."""

    def __init__(self):
        self.total, self.count = torch.zeros(()), 0

    def __call__(self, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.total = self.total + output.detach().double().sum(0)
        self.count += len(output)

    @property
    def value(self) -> Tensor:
        """[features]."""
        return self.total / max(self.count, 1)


class BranchSize:
    """A forward hook that measures what a block adds to its input; in half precision, what rounding leaves of it."""

    def __init__(self):
        self.squares: list[Tensor] = []

    def __call__(self, _module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0].detach()
        squares = [part.float().flatten(1).square().sum(1) for part in (output.detach() - x, x)]
        self.squares.append(torch.stack(squares))  # [2, B]; stays on the device, so that nothing waits

    @property
    def share(self) -> Share:
        if not self.squares:
            return Share(0.0, 0.0)
        branch, given = torch.cat(self.squares, 1).double().cpu()  # [samples]
        parts = torch.stack([branch.sum() / given.sum(), (branch / given).nan_to_num(posinf=0.0).median()])
        return Share(*(100 * parts.nan_to_num(posinf=0.0).sqrt()).tolist())


def by_itself(parts: list[Tensor]) -> Change:
    """Keep coefficients, and append them to a list."""

    def record(coefficients: Tensor, _before: int) -> Tensor:
        parts.append(coefficients.detach().cpu())
        return coefficients

    return record


def by_mean(values: Tensor) -> Change:
    """Replace coefficients by their mean over all samples."""
    mean = values.mean(0, keepdim=True)
    return lambda coefficients, _: mean.to(coefficients).expand_as(coefficients)


def by_sign(values: Tensor) -> Change:
    """Replace coefficients by their own sign times the mean size over all samples."""
    size = values.abs().mean(0, keepdim=True)
    return lambda coefficients, _: coefficients.sign() * size.to(coefficients)


def by_next(values: Tensor, views: int = 1) -> Change:
    """Replace coefficients by those of the same view of the next sample; the last sample gets the first one's."""
    shifted = values.roll(-views, 0)
    return lambda coefficients, before: shifted[before : before + len(coefficients)].to(coefficients)


def replaced(block: CGNL, change: Change) -> Context:
    """Change the coefficients of a block."""
    own, before = block.attention, 0

    def attention(theta: Tensor, phi: Tensor, g: Tensor) -> tuple[int, Tensor, Tensor | None]:
        nonlocal before
        first, c, rows = own(theta, phi, g)
        given = c if rows is None else torch.cat([c, rows], -1)  # the row sums belong to the attention
        new = change(given, before)
        before += len(given)
        return first, new[..., : c.shape[-1]], None if rows is None else new[..., c.shape[-1] :]

    return patched(block, attention=attention, backend="reference")  # the fused kernels cannot be changed here


def uniform(block: NonLocal) -> Context:
    """Make all positions of a softmax block equally related: its logits become 0."""
    own = block.factors

    def factors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        theta, phi, g = own(x)
        return torch.zeros_like(theta), phi, g

    return patched(block, factors=factors)


def off(block: CGNL | NonLocal) -> Context:
    """Make a block return its input."""
    return block.register_forward_hook(lambda _module, inputs, _output: inputs[0])


def pairs_replaced(head: SecondOrderPool, by: Tensor) -> Context:
    """Replace the off-diagonal entries of a second-order head by ``by``, [features] or a scalar."""
    i, j = torch.triu_indices(head.reduced, head.reduced)
    diagonal = i == j  # [features]

    def hook(_module: nn.Module, _inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return torch.where(diagonal.to(y.device), y, by.to(y))

    return head.register_forward_hook(hook)


def frames_shuffled(network: nn.Module) -> Context:
    """Give a network the frames of each clip in a random order, the same each time."""
    generator, own = torch.Generator().manual_seed(0), network.forward

    def forward(x: Tensor) -> Tensor:  # [B, 3, T, H, W]; not a hook, because tests call forward itself
        order = torch.rand(len(x), x.shape[2], generator=generator).argsort(1).to(x.device)  # [B, T]
        return own(torch.stack([clip[:, frames] for clip, frames in zip(x, order, strict=True)]))

    return patched(network, forward=forward)


def compare_classes(name: str, truth: Sequence[bool], now: Sequence[bool]) -> Outcome:
    """Compare a test with that of the unchanged network, sample by sample."""
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
    """Statistics of the attention over the samples, for each block, group and order."""
    for name, coefficients in values.items():
        for group in range(coefficients.shape[1]):
            for k, order in enumerate(orders[name]):
                column = coefficients[:, group, k].double()
                mean, deviation = float(column.mean()), float(column.std(correction=0))
                variation = deviation / abs(mean) if mean else math.inf
                yield Spread(name, group, order, mean, deviation, float((column < 0).double().mean()), variation)


def order_names(block: CGNL) -> tuple[str, ...]:
    """Names of a block's coefficients: powers of theta and, if rows are normalised, the row sums."""
    first, alpha_squared = leading(block.kernel)
    powers = [str(p) for p in range(first, first + len(alpha_squared))]
    return tuple(powers + [f"row sum {p}" for p in powers] if block.normalize else powers)
