"""What a second-order head sees: the pairs of channels that contribute most to a class, and where in the image.

To first order the logit of a class is a sum over pairs of channels, of d logit / d Cov_ij times Cov_ij, and Cov_ij is
the mean over positions n of the centred x_i(n) x_j(n). So each pair has a map, d logit / d Cov_ij times x_i(n) x_j(n),
whose mean is the pair's contribution. Bilinear pooling does not centre, and sums the map. Compact pooling has products
phi_d(n) g_d(n) instead of pairs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..heads import SecondOrderPool, second_order_pools
from ..surgery import in_eval_mode
from .maps import COLUMNS, Map, check_input, eager, find_module, patched


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of channels of one sample that contribute most to a class."""

    head: str
    """Dotted name of the head."""
    kind: str
    """Kind of second-order pooling."""
    reduced: int
    """Number of channels, or of products."""
    target: int
    """The class."""
    channels: tuple[tuple[int, int], ...]
    """The pairs, largest contribution first; for compact pooling, the number of the product twice."""
    contributions: tuple[float, ...]
    """What each pair adds to the logit, to first order."""
    positive: float
    """Sum of the positive contributions of all pairs."""
    maps: Tensor
    """[pairs, *positions] in float64."""
    input_size: tuple[int, ...]
    """Positions of the input, ([T,] H, W)."""
    output: Any
    """Output of the model."""

    @property
    def named(self) -> list[Map]:
        """The maps with their names."""
        each = zip(self.channels, self.contributions, self.maps, strict=True)
        return [Map(f"{self._name(*pair)}, {added:+.3g}", values) for pair, added, values in each]

    def _name(self, i: int, j: int) -> str:
        if self.kind == "compact":
            return f"product {i}"
        return f"channels {i} and {j}" if i != j else f"channel {i} with itself"

    @property
    def caption(self) -> str:
        """What is shown, in a sentence or two."""
        of, shown = ("products", "products") if self.kind == "compact" else ("channels", "pairs of channels")
        share = sum(self.contributions) / self.positive if self.positive > 0 else 0.0
        return (
            f"{self.head}: {self.kind} pooling of {self.reduced} {of}. Shown: the {shown} that contribute most "
            f"to the class, {share:.1%} of all positive contributions, and where."
        )

    def arrays(self) -> dict[str, Any]:
        """Everything but the output as NumPy arrays, numbers and strings, for an NPZ file."""
        names = ("head", "kind", "caption", "target", "channels", "input_size")
        numbers = {"said": self.contributions, "speaking": self.positive}  # as files of older versions call them
        return {"maps": self.maps.numpy()} | numbers | {name: getattr(self, name) for name in names}


def pairs(
    model: nn.Module, x: Tensor, target: int | None = None, count: int = COLUMNS, head: str | None = None
) -> Pairs:
    """Find the pairs of channels of a second-order head that contribute most to a class, and their maps.

    The network runs once, in eval mode, and is left unchanged.

    Args:
        model: a classifier with a second-order head.
        x: one sample, [1, channels, *positions].
        target: the class; the predicted one unless given.
        count: number of pairs, 5 unless given.
        head: dotted name of the head; the last one unless given.
    """
    sizes = check_input(x)
    if count < 1:
        raise ValueError(f"count = {count} must be at least 1")
    heads = second_order_pools(model)
    name = find_module(heads, head, "second-order head")
    pool = heads[name]
    seen: list[Tensor] = []
    own = pool.pool

    def record(phi: Tensor, g: Tensor) -> Tensor:
        seen[:] = [own(phi, g).detach().requires_grad_(), phi.detach(), g.detach()]
        return seen[0]

    with patched(pool, pool=record), torch.enable_grad(), in_eval_mode(model):
        output = eager(model)(x)
        if not seen:
            raise ValueError(f"the input never reached {name!r}")
        target = int(output.float().softmax(1).argmax(1)) if target is None else target
        if not 0 <= target < output.shape[1]:
            raise ValueError(f"target = {target} is none of the {output.shape[1]} classes")
        (slope,) = torch.autograd.grad(output[0, target], seen[0])
    slope, pooled, phi, g = (t.detach()[0].cpu().double() for t in (slope, *seen))
    i, j, contribution = _contributions(pool, slope, pooled)
    best = contribution.argsort(descending=True, stable=True)[:count]
    channels = tuple(zip(i[best].tolist(), j[best].tolist(), strict=True))
    maps = torch.stack([_map(pool, phi, g, slope, *pair) for pair in channels])
    most, positive = tuple(contribution[best].tolist()), float(contribution.clamp_min(0).sum())
    return Pairs(name, pool.kind, pool.reduced, target, channels, most, positive, maps, sizes, output.detach())


def _contributions(pool: SecondOrderPool, slope: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Channels i and j of every pair, and its contribution to the logit, [pairs] each."""
    product = slope * pooled  # [R, R], or [R] for compact pooling
    if pool.kind == "compact":
        i = torch.arange(pool.reduced)
        return i, i, product
    product = product + product.mT - torch.diag(product.diagonal())  # (i, j) and (j, i) are one pair
    i, j = torch.triu_indices(pool.reduced, pool.reduced)
    return i, j, product[i, j]


def _map(pool: SecondOrderPool, phi: Tensor, g: Tensor, slope: Tensor, i: int, j: int) -> Tensor:
    """[*positions]."""
    if pool.kind == "compact":
        return slope[i] * phi[i] * g[i]
    weight = slope[i, j] + slope[j, i] if i != j else slope[i, i]
    a, b = (phi[i], phi[j]) if pool.kind == "bilinear" else (phi[i] - phi[i].mean(), phi[j] - phi[j].mean())
    return weight * a * b
