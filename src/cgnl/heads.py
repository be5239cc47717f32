"""Second-order heads: they pool the last map of a network in place of an average, before the classifier."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import BATCH_NORM, CONV, as_one_node
from .ops.block import uses_batch_statistics
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

__all__ = ["KINDS", "Classifier", "SecondOrderPool", "second_order_pools"]

KINDS = ("covariance", "bilinear", "compact")


class SecondOrderPool(nn.Module):
    """Products of pairs of channels, pooled over all positions: what occurs together, not only what occurs.

    ``"covariance"``: the channels are reduced (1 x 1 convolution, norm, relu), then come their covariance, its square
    root by Newton-Schulz iterations, and the upper triangle of that. ``"bilinear"``: reduced likewise, then the upper
    triangle of X^T X, the signed square root of each entry, and unit length. ``"compact"``: only ``reduced`` products,
    of two projections of the channels, then the signed square root and a norm.

    From the reduced channels on, everything is float32 at least; the result has the dtype of the weights.

    Args:
        channels: channels of the input.
        reduced: channels to multiply, default 256; for ``"compact"``, the number of products.
        kind: ``"covariance"``, ``"bilinear"`` or ``"compact"``.
        iterations: of the square root of a covariance, default 5; at most 20 in float32.
        ndim: position axes: 1 sequences, 2 images, 3 video.
        device, dtype: of the parameters; None means torch's default.

    Shape: [B, channels, *positions] -> [B, features]; ``features`` is reduced (reduced + 1) / 2, or reduced for
    ``"compact"``.
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
        """Products of phi and g, [B, reduced, *positions] each, over all positions, in float32 at least.

        Returns [B, reduced, reduced], or [B, reduced] for ``"compact"``.
        """
        phi, g = (t.to(accumulation_dtype(t)) for t in (phi, g))
        if self.kind == "compact":
            return compact_pool(phi, g)
        return covariance_pool(phi) if self.kind == "covariance" else bilinear_pool(phi)

    def vectorize(self, pooled: Tensor) -> Tensor:
        """The classifier's input, [B, features], from the ``pooled`` products."""
        if self.kind == "compact":
            return self.norm(signed_square_root(pooled).to(self.norm.weight.dtype))
        if self.kind == "covariance":
            return self.upper(matrix_square_root(pooled, self.iterations))
        return F.normalize(signed_square_root(self.upper(pooled)), eps=1e-30)

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
        conv: Any = self.phi if self.kind == "compact" else self.reduce  # not the norm, which may be folded into it
        return self.vectorize(self.pool(*self.factors(x))).to(conv.weight.dtype)

    @property
    def gain(self) -> float:
        """Factor for the classifier's input, 1 except for ``"bilinear"``.

        A classifier hardly learns from features of unit length: their differences are a hundredth of an average's.
        """
        return math.sqrt(self.reduced) if self.kind == "bilinear" else 1.0

    def _check_batch(self, x: Tensor) -> None:
        """Raise if the norm would train on one value per channel."""
        if not uses_batch_statistics(self.norm):
            return  # before reading the size, which would fix it in an export
        values = x.shape[0] if self.kind == "compact" else x[:, 0].numel()
        if values == 1:
            raise ValueError(
                f"SecondOrderPool trains with BatchNorm on a single value per channel, {list(x.shape)}: "
                "use two samples per process, or SyncBatchNorm"
            )

    def extra_repr(self) -> str:
        iterations = f", iterations={self.iterations}" if self.kind == "covariance" else ""
        return f"{self.channels}, reduced={self.reduced}, kind={self.kind!r}{iterations}, features={self.features}"


class Classifier(nn.Linear):
    """A linear layer with dropout before it, whose weights keep the names of a plain one.

    Its input is multiplied by ``gain``.
    """

    def __init__(self, in_features: int, out_features: int, dropout: float = 0.5, gain: float = 1.0, **factory: Any):
        super().__init__(in_features, out_features, **factory)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got dropout = {dropout}")
        self.dropout, self.gain = dropout, gain

    def forward(self, input: Tensor) -> Tensor:  # [B, in_features] -> [B, out_features]
        features = F.dropout(input, self.dropout, self.training)
        return super().forward(features if self.gain == 1 else self.gain * features)

    def extra_repr(self) -> str:
        gain = "" if self.gain == 1 else f", gain={self.gain:.4g}"
        return f"{super().extra_repr()}, dropout={self.dropout}{gain}"


def second_order_pools(model: nn.Module) -> dict[str, SecondOrderPool]:
    """The second-order heads of a network by their dotted names."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SecondOrderPool)}
