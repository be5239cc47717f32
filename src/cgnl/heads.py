"""Second-order heads: what stands between the last map of a network and its classifier, in place of an average."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import BATCH_NORM, CONV, as_one_node
from .ops.pooling import (
    bilinear_pool,
    check_iterations,
    compact_pool,
    covariance_pool,
    matrix_square_root,
    signed_square_root,
)
from .ops.reference import check_map, check_whole
from .ops.series import accumulation_dtype

__all__ = ["KINDS", "SecondOrderPool", "second_order_pools"]

KINDS = ("covariance", "bilinear", "compact")


class SecondOrderPool(nn.Module):
    """Products of pairs of channels, averaged over all positions: what occurs together, and not only what occurs.

    ``"covariance"``: the channels are reduced (1 x 1 convolution, norm, relu), then their covariance, its square root
    by Newton-Schulz iterations, and of that the upper triangle. ``"bilinear"``: reduced likewise, then the upper
    triangle of X^T X, the signed square root of each entry, and unit length. ``"compact"``: ``reduced`` products alone,
    of two projections of the channels, then the signed square root and a norm.

    From the reduced channels on, everything is float32 at least; the result has the dtype of the weights.

    Args:
        channels: channels of the input.
        reduced: channels that are left to be multiplied, 256 unless given; for ``"compact"``, products.
        kind: ``"covariance"``, ``"bilinear"`` or ``"compact"``.
        iterations: of the square root of a covariance, 5 unless given; at most 20 in float32.
        ndim: position axes: 1 sequences, 2 images, 3 video.
        device, dtype: of the parameters, torch's own unless given.

    Shape: [B, channels, *positions] -> [B, features], with ``features`` reduced (reduced + 1) / 2, or for ``"compact"``
    reduced.
    """

    reduce: nn.Module
    phi: nn.Module
    g: nn.Module
    norm: Any  # a BatchNorm

    def __init__(
        self,
        channels: int,
        reduced: int = 256,
        *,
        kind: str = "covariance",
        iterations: int = 5,
        ndim: int = 2,
        device=None,
        dtype=None,
    ):
        super().__init__()
        check_whole(channels=channels, reduced=reduced)
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r} of second-order pooling: choose one of {', '.join(KINDS)}")
        if ndim not in CONV:
            raise ValueError(f"ndim must be 1, 2 or 3, got ndim = {ndim}")
        if channels < 1 or reduced < 2:
            raise ValueError(f"channels = {channels} must be at least 1 and reduced = {reduced} at least 2")
        if kind != "compact" and reduced > channels:
            raise ValueError(f"reduced = {reduced} must be at most the channels, {channels}")
        check_iterations(iterations, dtype or torch.get_default_dtype())
        self.channels, self.reduced, self.kind, self.iterations, self.ndim = channels, reduced, kind, iterations, ndim
        factory: Any = {"device": device, "dtype": dtype}
        for name in ("phi", "g") if kind == "compact" else ("reduce",):
            self.add_module(name, CONV[ndim](channels, reduced, 1, bias=False, **factory))
        self.norm = (nn.BatchNorm1d if kind == "compact" else BATCH_NORM[ndim])(reduced, **factory)
        self.features = reduced if kind == "compact" else reduced * (reduced + 1) // 2
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for module in self.children():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if self.kind == "compact" else "relu")
        self.norm.reset_parameters()

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two maps [B, reduced, *positions] whose channels are multiplied: one twice, or phi and g."""
        if self.kind == "compact":
            return self.phi(x), self.g(x)
        reduced = torch.relu(self.norm(self.reduce(x)))
        return reduced, reduced

    def pool(self, phi: Tensor, g: Tensor) -> Tensor:
        """The products of phi and g, [B, reduced, *positions] each, over all positions, in float32 at least.

        They are [B, reduced, reduced], or [B, reduced] of ``"compact"``.
        """
        phi, g = (t.to(accumulation_dtype(t)) for t in (phi, g))
        if self.kind == "compact":
            return compact_pool(phi, g)
        return covariance_pool(phi) if self.kind == "covariance" else bilinear_pool(phi)

    def vectorize(self, pooled: Tensor) -> Tensor:
        """What the classifier is given of the products, [B, features]."""
        if self.kind == "compact":
            return self.norm(signed_square_root(pooled).to(self.norm.weight.dtype))
        if self.kind == "covariance":
            return self.upper(matrix_square_root(pooled, self.iterations))
        return nn.functional.normalize(signed_square_root(self.upper(pooled)), eps=1e-30)

    def upper(self, matrices: Tensor) -> Tensor:
        """The upper triangle of [B, reduced, reduced], row by row: [B, features]."""
        rows, columns = torch.triu_indices(self.reduced, self.reduced, device=matrices.device)
        return matrices.flatten(1).index_select(1, self.reduced * rows + columns)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, *positions] -> [B, features]."""
        if isinstance(x, torch.fx.Proxy):
            return as_one_node(self, x)
        check_map(x, self.channels, self.ndim)
        if x.shape[0] == 0:  # with every parameter in the graph: DDP waits for them all
            return x.new_zeros(0, self.features) + torch.cat([p.flatten() for p in self.parameters()]).sum()
        self._check_batch(x)
        return self.vectorize(self.pool(*self.factors(x))).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        """That of the convolutions, because a norm may be folded into them."""
        conv: Any = self.phi if self.kind == "compact" else self.reduce
        return conv.weight.dtype

    @property
    def gain(self) -> float:
        """What a classifier multiplies the features by, 1 but for ``"bilinear"``.

        It would hardly learn from features of unit length: their differences are a hundredth of an average's.
        """
        return math.sqrt(self.reduced) if self.kind == "bilinear" else 1.0

    def _check_batch(self, x: Tensor) -> None:
        """Refuse a batch in which the norm would see one value of each channel."""
        if not self.norm.training or type(self.norm) not in (nn.BatchNorm1d, BATCH_NORM[self.ndim]):
            return  # before the size is asked for, which would fix it in an export
        values = x.shape[0] if self.kind == "compact" else x[:, 0].numel()
        if values == 1:
            raise ValueError(
                f"SecondOrderPool trains with BatchNorm on a single value of each channel, {list(x.shape)}: "
                "use two samples a process, or SyncBatchNorm"
            )

    def extra_repr(self) -> str:
        iterations = f", iterations={self.iterations}" if self.kind == "covariance" else ""
        return f"{self.channels}, reduced={self.reduced}, kind={self.kind!r}{iterations}, features={self.features}"


def second_order_pools(model: nn.Module) -> dict[str, SecondOrderPool]:
    """The second-order heads of a network by their dotted names."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SecondOrderPool)}
