"""What a second-order head sees: the pairs of channels that speak most for a class, and where in the picture.

The logit of a class is, to first order, a sum over pairs of channels: d logit / d Cov_ij times Cov_ij. Cov_ij is the
mean over positions n of the centred x_i(n) x_j(n). So a pair has a map, d logit / d Cov_ij times x_i(n) x_j(n), and its
mean is what the pair says for the class. In bilinear pooling nothing is centred, and the map is summed. In compact
pooling, the products phi_d(n) g_d(n) take the place of the pairs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..heads import SecondOrderPool, second_order_pools
from ..spelling import nearest
from ..surgery import in_eval_mode
from .maps import COLUMNS, Map, check_input, eager


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of channels of one sample that speak most for a class."""

    head: str
    """Dotted name of the head."""
    kind: str
    """Of second-order pooling."""
    reduced: int
    """Channels, or products, that there are."""
    target: int
    """The class."""
    channels: tuple[tuple[int, int], ...]
    """The pairs, the one that speaks most first; of compact pooling, twice the number of the product."""
    said: tuple[float, ...]
    """What each says for the class: its share of the logit, to first order."""
    speaking: float
    """What all pairs that speak for the class say together."""
    maps: Tensor
    """[pairs, *positions] in float64."""
    input_size: tuple[int, ...]
    """Positions of the input, ([T,] H, W)."""
    output: Any
    """What the model made of the input."""

    @property
    def named(self) -> list[Map]:
        """The maps with their names."""
        return [Map(f"{self._name(*pair)}, {said:+.3g}", m) for pair, said, m in self._all]

    @property
    def _all(self) -> list[tuple[tuple[int, int], float, Tensor]]:
        return list(zip(self.channels, self.said, self.maps, strict=True))

    def _name(self, i: int, j: int) -> str:
        if self.kind == "compact":
            return f"product {i}"
        return f"channels {i} and {j}" if i != j else f"channel {i} with itself"

    @property
    def caption(self) -> str:
        """What is shown, in a sentence or two."""
        of, shown = ("products", "products") if self.kind == "compact" else ("channels", "pairs of channels")
        share = sum(self.said) / self.speaking if self.speaking > 0 else 0.0
        return (
            f"{self.head}: {self.kind} pooling of {self.reduced} {of}. Shown are the {shown} that speak most for the "
            f"class, {share:.1%} of all that speaks for it, and where."
        )

    def arrays(self) -> dict[str, Any]:
        """Everything as NumPy arrays, to be saved."""
        words = {"head": self.head, "kind": self.kind, "caption": self.caption}
        numbers = {"target": self.target, "channels": self.channels, "said": self.said, "speaking": self.speaking}
        return {"maps": self.maps.numpy(), "input_size": self.input_size} | words | numbers


def pairs(
    model: nn.Module, x: Tensor, target: int | None = None, count: int = COLUMNS, head: str | None = None
) -> Pairs:
    """The pairs of channels of a second-order head that speak most for a class, with their maps.

    The network is run once, in eval mode, and left as it was.

    Args:
        model: a classifier with a second-order head.
        x: one sample, [1, channels, *positions].
        target: the class; the predicted one unless given.
        count: how many pairs, 5 unless given.
        head: dotted name of the head; the last one unless given.
    """
    sizes = check_input(x)
    if count < 1:
        raise ValueError(f"count = {count} must be at least 1")
    name = find_head(model, head)
    pool = second_order_pools(model)[name]
    seen: list[Tensor] = []
    own = pool.pool

    def record(phi: Tensor, g: Tensor) -> Tensor:
        seen[:] = [own(phi, g).detach().requires_grad_(), phi.detach(), g.detach()]
        return seen[0]

    pool.pool = record
    try:
        with torch.enable_grad(), in_eval_mode(model):
            output = eager(model)(x)
            if not seen:
                raise ValueError(f"the input never reached {name!r}")
            target = int(output.float().softmax(1).argmax(1)) if target is None else target
            if not 0 <= target < output.shape[1]:
                raise ValueError(f"target = {target} is none of the {output.shape[1]} classes")
            (slope,) = torch.autograd.grad(output[0, target], seen[0])
    finally:
        del pool.pool
    pooled, phi, g = (t.detach()[0].cpu().double() for t in seen)
    channels, said, speaking = _strongest(pool, slope[0].cpu().double(), pooled, count)
    maps = torch.stack([_map(pool, phi, g, slope[0].cpu().double(), pair) for pair in channels])
    return Pairs(name, pool.kind, pool.reduced, target, channels, said, speaking, maps, sizes, output.detach())


def find_head(model: nn.Module, name: str | None = None) -> str:
    """The second-order head that is meant: the last one unless it is named."""
    known = second_order_pools(model)
    if not known:
        raise ValueError("the network has no second-order head")
    if name is not None and name not in known:
        raise ValueError(f"there is no head {name!r}{nearest(name, known)}")
    return name or list(known)[-1]


def _strongest(
    pool: SecondOrderPool, slope: Tensor, pooled: Tensor, count: int
) -> tuple[tuple[tuple[int, int], ...], tuple[float, ...], float]:
    """The pairs that say most for the class, what each says, and what all that speak for it say."""
    said = slope * pooled  # [R, R], or [R] of compact pooling
    if pool.kind == "compact":
        i = j = torch.arange(pool.reduced)
    else:
        said = said + said.mT - torch.diag(said.diagonal())  # of i < j, both orders are one pair
        i, j = torch.triu_indices(pool.reduced, pool.reduced)
        said = said[i, j]
    best = said.argsort(descending=True, stable=True)[:count]
    chosen = tuple(zip(i[best].tolist(), j[best].tolist(), strict=True))
    return chosen, tuple(said[best].tolist()), float(said.clamp_min(0).sum())


def _map(pool: SecondOrderPool, phi: Tensor, g: Tensor, slope: Tensor, pair: tuple[int, int]) -> Tensor:
    """[*positions]."""
    i, j = pair
    if pool.kind == "compact":
        return slope[i] * phi[i] * g[i]
    weight = slope[i, j] + slope[j, i] if i != j else slope[i, i]
    a, b = (phi[i], phi[j]) if pool.kind == "bilinear" else (phi[i] - phi[i].mean(), phi[j] - phi[j].mean())
    return weight * a * b
