"""Residual attention blocks: shape in = shape out, an exact identity when new.

Each is the paper's last equation of section 3, Z = BN(Y W_z) + X, with its own Y. Convolutions are 1 x 1 (x 1) without
bias, drawn from N(0, 0.01); W_z has as many groups as Y.
"""

import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .ops import fused, kernels, reference
from .ops.dispatch import Backend, check_backend
from .ops.kernels import Kernel
from .ops.series import accumulation_dtype, polynomial

__all__ = ["CGNL", "NonLocal", "SimpleResidual"]

_THREE = ("theta", "phi", "g")
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


class _Residual(nn.Module):
    """x + norm(z(y)). Subclasses say what z(y) is, in ``branch``.

    From the branch on, everything is float32 (float64 for float64): attention is a sum over all positions and channels
    of a group, and passes float16's 65504 easily. For the same reason ``.half()`` leaves the norm in float32.
    """

    theta: nn.Module
    phi: nn.Module
    g: nn.Module
    norm: Any  # a BatchNorm, a GroupNorm or None

    def __init__(
        self,
        channels: int,
        inner_channels: int | None,
        projections: tuple[str, ...],
        ndim: int,
        groups: int,
        norm: str | None,
        zero_init: bool,
        device,
        dtype,
    ):
        super().__init__()
        inner_name = "channels // 2" if inner_channels is None else "inner_channels"
        reference.check_whole(channels=channels, groups=groups, **{inner_name: inner_channels or 0})
        inner_channels = channels // 2 if inner_channels is None else inner_channels
        if ndim not in CONV:
            raise ValueError(f"ndim must be 1, 2 or 3, got ndim = {ndim}")
        if channels < 1 or inner_channels < 1:
            raise ValueError(f"channels = {channels} and {inner_name} = {inner_channels} must both be at least 1")
        for name, count in ((inner_name, inner_channels), ("channels", channels)):
            if groups < 1 or count % groups:
                raise ValueError(f"{name} = {count} is not divisible by groups = {groups}")
        self.channels, self.inner_channels, self.ndim, self.groups = channels, inner_channels, ndim, groups
        self.zero_init = zero_init
        kwargs = {"bias": False, "device": device, "dtype": dtype}
        for name in projections:
            self.add_module(name, CONV[ndim](channels, inner_channels, 1, **kwargs))
        self.z = CONV[ndim](inner_channels, channels, 1, groups=groups, **kwargs)
        self.register_module("norm", self._make_norm(norm, device, dtype))
        self.reset_parameters()

    def _make_norm(self, norm: str | None, device, dtype):
        double = (dtype or torch.get_default_dtype()) == torch.float64
        factory = {"device": device, "dtype": torch.float64 if double else torch.float32}
        if norm is None:
            return None
        if norm == "batch":
            return BATCH_NORM[self.ndim](self.channels, **factory)
        if norm == "group":
            return nn.GroupNorm(self.groups, self.channels, **factory)
        raise ValueError(f'norm must be "batch", "group" or None, got {norm!r}')

    def reset_parameters(self) -> None:
        """Draw new weights; with ``zero_init`` the block starts as an identity."""
        for module in self.children():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                nn.init.normal_(module.weight, std=0.01)
        if self.norm is not None:
            self.norm.reset_parameters()
        if self.zero_init:
            nn.init.zeros_(self.z.weight if self.norm is None else self.norm.weight)

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """W_z y in two parts: [B, C, *positions], and a bias of each sample [B, C, 1, ..] to add to it, or None."""
        raise NotImplementedError

    def run_fused(self, x: Tensor) -> Tensor | None:  # noqa: ARG002
        """[B, C, *positions] -> the same, the whole block by fused kernels, or None where they do not apply."""
        return None

    def _grouped(self, t: Tensor) -> Tensor:
        return t.unflatten(1, (self.groups, -1))  # [B, G, C', *P]

    def _project(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """W_z y for y [B, G, C', *P]; what float16 could not hold is divided out before and put back after."""
        if dtype != torch.float16 or y.dtype == dtype:
            return self.z(y.flatten(1, 2).to(dtype))
        peak = y.detach().abs().amax(tuple(range(2, y.ndim)), keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
        return (self._grouped(self.z((y / peak).flatten(1, 2).to(dtype))) * peak).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, *positions] -> the same shape and dtype."""
        if isinstance(x, torch.fx.Proxy):
            return as_one_node(self, x)
        if not isinstance(x, Tensor) or x.ndim != self.ndim + 2 or x.shape[1] != self.channels or 0 in x.shape[2:]:
            raise ValueError(self._refusal(x))
        if not x.is_floating_point():
            raise ValueError(f"expected a floating-point tensor, got {x.dtype}")
        if x.shape[0] == 0:  # with every parameter in the graph: DDP waits for them all
            return x + torch.cat([p.flatten() for p in self.parameters()]).sum().to(x.dtype)
        if (out := self.run_fused(x)) is not None:
            return out
        z, bias = self.branch(x)
        z = z.to(accumulation_dtype(z))  # [B, C, *P]
        if bias is not None:
            z = z + self._centred(bias)
        if self.norm is not None:
            self._warn_if_erased(x)
            z = self.norm(z)
        return (x + z).to(x.dtype)  # x first: the result has its strides

    def _refusal(self, x: object) -> str:
        axes = ", ".join("THW"[-self.ndim :])
        got = list(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
        after = getattr(self, "_inserted_after", None)  # by surgery, which may have misread the channels
        hint = f" behind {after!r}: give cgnl.insert an example= of the model's input" if after else ""
        return f"expected [B, {self.channels}, {axes}] (ndim = {self.ndim}), got {got}{hint}"

    @property
    def _uses_batch_statistics(self) -> bool:
        return type(self.norm) is BATCH_NORM[self.ndim] and self.norm.training

    def _centred(self, bias: Tensor) -> Tensor:
        """The bias less its mean over the batch, where BatchNorm would only remove that again.

        It can be thousands of times the rest, which float32 would then lose. The running mean gets it directly.
        """
        momentum = self.norm.momentum if self._uses_batch_statistics else None
        if momentum is None or momentum == 1:
            return bias
        mean = bias.mean(0, keepdim=True)  # [1, C, 1, ..]
        if self.norm.running_mean is not None:
            # Before the norm multiplies it by 1 - momentum. By .data, since the last batch's backward holds this tensor
            # without reading it, and would refuse one that has changed.
            self.norm.running_mean.data.add_(mean.detach().flatten(), alpha=momentum / (1 - momentum))
        return bias - mean

    def _warn_if_erased(self, x: Tensor) -> None:
        if x.shape[0] == 1 and self._uses_batch_statistics and not torch.compiler.is_compiling():
            warnings.warn(
                f"{type(self).__name__} trains with BatchNorm on a single sample: normalising it removes the size of "
                "its attention, which evaluation does not. Use two samples a process, or SyncBatchNorm.",
                stacklevel=3,
            )

    def _apply(self, fn, recurse=True):
        def keep_float32(t: Tensor) -> Tensor:
            new = fn(t)
            return t.to(new.device, torch.float32) if new.dtype in (torch.float16, torch.bfloat16) else new

        norm, self._modules["norm"] = self._modules["norm"], None
        try:
            super()._apply(fn, recurse)
        finally:
            self._modules["norm"] = norm
        if norm is not None and recurse:
            norm._apply(keep_float32)
        return self

    def extra_repr(self) -> str:
        return f"{self.channels}, inner_channels={self.inner_channels}, ndim={self.ndim}, groups={self.groups}"


def as_one_node(module: nn.Module, x: Any) -> Any:
    """What torch.fx records of a module that it shall not look into, as of a layer of torch's own."""
    return x.tracer.create_proxy("call_module", x.tracer.path_of_module(module), (x,), {})


class CGNL(_Residual):
    """Compact generalized non-local block: every position of every channel of a group is related to every other.

    Args:
        channels: channels of the input and the output.
        inner_channels: channels of theta, phi and g; ``channels // 2`` unless given.
        ndim: position axes: 1 sequences, 2 images, 3 video.
        groups: channel groups, 8 unless given, within which elements are related.
        kernel: a ``cgnl.kernels`` object, or ``"dot"``, ``"embedded_gaussian"``, ``"rbf"`` for one with its defaults.
        norm: ``"batch"`` (the paper), ``"group"`` (the released code, whose GroupNorm over the same groups cancels the
            attention but for its sign) or None.
        scale: None (paper), ``"sqrt"`` (released code's ``use_scale``), ``"resolution"`` (times 784 / N, so that a
            network can be tested at another resolution or clip length than it was trained at) or ``"energy"`` (divided
            by the mean of x^2 of each sample, so that the branch is of degree one in x; dot kernel, no fused kernels).
        normalize: divide each row of the pairwise matrix by its sum; see ``cgnl.ops.compact_generalized_non_local``.
        zero_init: True starts as an exact identity (norm weight 0, or ``z`` 0 without a norm). theta, phi, g and z then
            receive gradients from the second step on.
        backend: ``"auto"`` takes the fused kernels where they apply and gain, ``"fused"`` wherever they apply and
            raises elsewhere, ``"reference"`` never takes them.
        recompute: the fused kernels keep nothing for backward but the input: less memory, a little slower.
        device, dtype: of the parameters, torch's own unless given; the norm is float32 at least.

    Shape: [B, channels, *positions] -> the same.
    """

    def __init__(
        self,
        channels: int,
        inner_channels: int | None = None,
        *,
        ndim: int = 2,
        groups: int = 8,
        kernel: str | Kernel = "dot",
        norm: str | None = "batch",
        scale: str | None = None,
        normalize: bool = False,
        zero_init: bool = True,
        backend: Backend = "auto",
        recompute: bool = False,
        device=None,
        dtype=None,
    ):
        super().__init__(channels, inner_channels, _THREE, ndim, groups, norm, zero_init, device, dtype)
        self.kernel, self.scale, self.normalize = kernels.resolve(kernel), scale, normalize
        self.backend: Backend = backend
        self.recompute = recompute
        if scale == "energy" and not isinstance(self.kernel, kernels.Dot):
            raise ValueError(f'scale="energy" is for the dot kernel alone, got kernel = {self.kernel}')
        reference.scale_factor(self._operator_scale, 1, 1)  # raises for an unknown one
        check_backend(backend)
        if normalize:
            self.kernel.check_normalize()

    @property
    def _operator_scale(self) -> str | None:
        return None if self.scale == "energy" else self.scale

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """theta, phi and g, each [B, inner_channels, *P]."""
        return self.theta(x), self.phi(x), self.g(x)

    def attention(self, theta: Tensor, phi: Tensor, g: Tensor) -> tuple[int, Tensor, Tensor | None]:
        """First power, coefficients [B, G, K] and those of the row sums, or None, of the polynomial in theta that y is.

        theta, phi and g are grouped, [B, G, C', *P].
        """
        return reference.attention(theta, phi, g, self.kernel, self._operator_scale, self.normalize)

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        theta, phi, g = self.factors(x)
        if self.scale == "energy":
            g = g / reference.energy(x)  # not s afterwards: whoever replaces the attention replaces all of it
        theta_, phi_, g_ = (self._grouped(t) for t in (theta, phi, g))  # [B, G, C', *P]
        gamma = self.kernel.envelope
        first, c, rows = self.attention(theta_, phi_, g_)
        if (first, c.shape[-1], gamma) == (1, 1, 0):  # dot: W_z (s theta) = s (W_z theta)
            return polynomial(self._grouped(self.z(theta)), c, first=1).flatten(1, 2), None
        if first > 0:
            return self._project(polynomial(theta_, c, None, first, gamma), theta.dtype), None

        # The p = 0 term is the same for all of a sample and group, and so large beside the others that half precision
        # would lose them: y is what is left, and the term becomes the bias c_0 rowsum(W_z).
        if rows is not None:
            c_0 = c[..., :1] / rows[..., :1]  # [B, G, 1]
            y = polynomial(theta_, _without_first(c - c_0 * rows)) / polynomial(theta_, rows)  # [B, G, C', *P]
        else:
            c_0 = c[..., :1]
            y = polynomial(theta_, _without_first(c), gamma=gamma)
            if gamma:
                y = y + c_0.unflatten(-1, (1,) * (self.ndim + 1)) * torch.expm1(-gamma * theta_.to(c.dtype).square())
        row_sums = self.z.weight.flatten(1).sum(1, dtype=c.dtype).unflatten(0, (self.groups, -1))  # [G, C / G]
        bias = (c_0 * row_sums).flatten(1)  # [B, C]
        return self._project(y, theta.dtype), bias.unflatten(1, (-1,) + (1,) * self.ndim)

    def run_fused(self, x: Tensor) -> Tensor | None:
        if self.backend == "reference" or (self.backend == "auto" and fused.compute_dtype(x) == torch.float32):
            return None  # in float32 the kernels compute the same, but no faster
        sizes = (self.channels, self.inner_channels, self.groups)
        reason = fused.why_not(x, *sizes, self.kernel, self.normalize, self.scale)
        if self._uses_batch_statistics and x.numel() == self.channels:
            reason = "batch norm needs more than 1 value per channel"
        if reason := reason or self._changed():
            if self.backend == "fused":
                raise ValueError(f'backend="fused" is not possible: {reason}')
            return None
        self._warn_if_erased(x)
        layers: Any = (self.theta, self.phi, self.g, self.z)
        weights = fused.Weights(*(layer.weight for layer in layers))
        out, statistics = fused.block(
            x, weights, self._fused_norm(), self.kernel, self.groups, self.scale, self.recompute
        )
        if statistics is not None:
            self._track(*statistics)
        return out

    def _changed(self) -> str | None:
        """What somebody has made of the layers, if kernels that only know their weights would not do the same."""
        layer: Any
        for name, layer in self.named_children():
            if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
                return f"{name} has hooks"
            if name == "norm":
                if type(layer) not in (*BATCH_NORM.values(), nn.SyncBatchNorm, nn.GroupNorm):
                    return f"norm is a {type(layer).__name__}"
                if layer.weight is None or layer.bias is None:
                    return f"norm has no {'weight' if layer.weight is None else 'bias'}"
                if getattr(layer, "num_groups", self.groups) != self.groups:
                    return f"norm has {layer.num_groups} groups"
            elif type(layer) not in CONV.values():
                return f"{name} is a {type(layer).__name__}"
            elif layer.bias is not None:
                return f"{name} has a bias"
            elif math.prod(layer.kernel_size) != 1 or math.prod(layer.stride) != 1 or any(layer.padding):
                return f"{name} is more than a product at each position"
            elif layer.groups != (self.groups if name == "z" else 1):
                return f"{name} has {layer.groups} groups"
        return None

    def _fused_norm(self) -> fused.BlockNorm:
        norm = self.norm
        if norm is None:
            return fused.BlockNorm("none")
        if isinstance(norm, nn.GroupNorm):
            return fused.BlockNorm("group", norm.weight, norm.bias, eps=norm.eps)
        if not norm.training and norm.running_mean is not None:
            return fused.BlockNorm("batch", norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps)
        group = None
        if isinstance(norm, nn.SyncBatchNorm) and norm.training and dist.is_available() and dist.is_initialized():
            group = norm.process_group or dist.group.WORLD
        alone = group is None or dist.get_world_size(group) == 1
        return fused.BlockNorm("batch", norm.weight, norm.bias, eps=norm.eps, process_group=None if alone else group)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Move the norm's running statistics, as it would itself."""
        norm = self.norm
        if not norm.training or norm.running_mean is None:
            return
        norm.num_batches_tracked.add_(1)
        momentum = norm.momentum if norm.momentum is not None else 1 / norm.num_batches_tracked
        norm.running_mean.lerp_(mean, momentum)
        norm.running_var.lerp_(variance, momentum)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}, scale={self.scale!r}, normalize={self.normalize}"


def _without_first(coefficients: Tensor) -> Tensor:
    # Not F.pad(c[..., 1:], (1, 0)): torch 2.11 compiles that, on CUDA, to c itself.
    return torch.cat([torch.zeros_like(coefficients[..., :1]), coefficients[..., 1:]], -1)  # [B, G, K]


class NonLocal(_Residual):
    """Non-local block of Wang et al.: every position is related to every other, over all channels at once.

    Args:
        channels: channels of the input and the output.
        inner_channels: channels of theta, phi and g; ``channels // 2`` unless given.
        ndim: position axes: 1 sequences, 2 images, 3 video.
        kernel: ``"embedded_gaussian"``, a softmax, or ``"dot"``.
        scale: True divides by sqrt(inner_channels) before the softmax, or the dot product by the number of positions.
        subsample: max-pool the input of phi and g, 2 x 2 in space.
        norm: ``"batch"``, ``"group"`` (one group) or None.
        zero_init, device, dtype: as for ``CGNL``.

    Shape: [B, channels, *positions] -> the same.
    """

    def __init__(
        self,
        channels: int,
        inner_channels: int | None = None,
        *,
        ndim: int = 2,
        kernel: str = "embedded_gaussian",
        scale: bool = True,
        subsample: bool = False,
        norm: str | None = "batch",
        zero_init: bool = True,
        device=None,
        dtype=None,
    ):
        super().__init__(channels, inner_channels, _THREE, ndim, 1, norm, zero_init, device, dtype)
        reference.check_non_local(kernel, scale)
        self.kernel, self.scale, self.subsample = kernel, scale, subsample

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """theta [B, inner_channels, *P], and phi and g [B, inner_channels, *P'], of fewer positions if subsampled."""
        keys = self._pool(x) if self.subsample else x
        return self.theta(x), self.phi(keys), self.g(keys)

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        theta, phi, g = self.factors(x)
        dtype = theta.dtype
        if self.kernel == "dot":  # a sum, not a mean: out of float16's reach
            theta, phi, g = (t.to(accumulation_dtype(t)) for t in (theta, phi, g))
        y = reference.non_local(theta, phi, g, kernel=self.kernel, scale=self.scale)
        return self._project(self._grouped(y), dtype), None

    def _pool(self, x: Tensor) -> Tensor:
        window = [1] * (self.ndim - 2) + [min(2, size) for size in x.shape[2:][-2:]]
        return _MAX_POOL[self.ndim](x, window)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel!r}, scale={self.scale}, subsample={self.subsample}"


class SimpleResidual(_Residual):
    """x + norm(z(theta(x))): a CGNL block whose attention is 1, the paper's control.

    Args:
        channels, inner_channels, ndim, groups, norm, zero_init, device, dtype: as for ``CGNL``.

    Shape: [B, channels, *positions] -> the same.
    """

    def __init__(
        self,
        channels: int,
        inner_channels: int | None = None,
        *,
        ndim: int = 2,
        groups: int = 8,
        norm: str | None = "batch",
        zero_init: bool = True,
        device=None,
        dtype=None,
    ):
        super().__init__(channels, inner_channels, _THREE[:1], ndim, groups, norm, zero_init, device, dtype)

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.z(self.theta(x)), None
