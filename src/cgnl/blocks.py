"""Residual attention blocks: shape in = shape out, an exact identity when new.

Each is the paper's last equation of section 3, Z = BN(Y W_z) + X, with its own Y. Convolutions are 1 x 1 (x 1) without
bias, initialised from N(0, 0.01); W_z has as many groups as Y. The arithmetic is in ``ops``.
"""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ops import dispatch, kernels, reference
from .ops.block import add_residual, project, uses_batch_statistics
from .ops.dispatch import Backend, check_backend
from .ops.kernels import Kernel
from .ops.series import accumulation_dtype

__all__ = ["CGNL", "NonLocal", "SimpleResidual"]

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


class _Residual(nn.Module):
    """x + norm(W_z y). Subclasses say what W_z y is, in ``branch``. ``.half()`` leaves the norm in float32."""

    projections = ("theta", "phi", "g")
    theta: nn.Module
    phi: nn.Module
    g: nn.Module
    norm: Any  # a BatchNorm, a GroupNorm or None

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
        for name in self.projections:
            self.add_module(name, CONV[ndim](channels, inner_channels, 1, **kwargs))
        self.z = CONV[ndim](inner_channels, channels, 1, groups=groups, **kwargs)
        self.register_module("norm", self._make_norm(norm, device, dtype))
        self.reset_parameters()
        self.register_load_state_dict_post_hook(_keep_norm_in_float32)

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

    def _run(self, x: Tensor) -> Tensor:
        return add_residual(x, *self.branch(x), self.norm, self.groups)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, *positions] -> the same shape and dtype."""
        if isinstance(x, torch.fx.Proxy):
            return as_one_node(self, x)
        reference.check_map(x, self.channels, self.ndim, getattr(self, "_inserted_after", None))
        if x.shape[0] == 0:  # with every parameter in the graph: DDP waits for them all
            return x + torch.cat([p.flatten() for p in self.parameters()]).sum().to(x.dtype)
        if uses_batch_statistics(self.norm) and x.shape[0] == 1 and not torch.compiler.is_compiling():
            warnings.warn(
                f"{type(self).__name__} trains with BatchNorm on a single sample: normalising it removes the size of "
                "its attention, which evaluation does not. Use two samples per process, or SyncBatchNorm.",
                stacklevel=2,
            )
        return self._run(x)

    def __prepare_scriptable__(self):
        raise ValueError(f"{type(self).__name__} cannot be scripted: use torch.jit.trace or torch.export")

    def _apply(self, fn, recurse=True):
        norm, self._modules["norm"] = self._modules["norm"], None
        try:
            super()._apply(fn, recurse)
        finally:
            self._modules["norm"] = norm
        if recurse:
            self._apply_to_norm(fn)
        return self

    def _apply_to_norm(self, fn) -> None:
        def keep_float32(t: Tensor) -> Tensor:
            new = fn(t)
            return t.to(new.device, torch.float32) if new.dtype in (torch.float16, torch.bfloat16) else new

        if self.norm is not None:
            self.norm._apply(keep_float32)

    def extra_repr(self) -> str:
        return f"{self.channels}, inner_channels={self.inner_channels}, ndim={self.ndim}, groups={self.groups}"


def _keep_norm_in_float32(block: _Residual, _incompatible_keys) -> None:
    """After ``load_state_dict(assign=True)``, which takes over the dtypes of the state dict."""
    block._apply_to_norm(lambda t: t)


def as_one_node(module: nn.Module, x: Any) -> Any:
    """Record a module as one node of a torch.fx graph, like torch's own layers; of the root a child, ``block``."""
    tracer = x.tracer
    if module is tracer.root:
        tracer.root = nn.ModuleDict({"block": module}).train(module.training)
        return tracer.create_proxy("call_module", "block", (x,), {})
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (x,), {})


class CGNL(_Residual):
    """Compact generalized non-local block: every position of every channel of a group is related to every other.

    Args:
        channels: channels of the input and the output.
        inner_channels: channels of theta, phi and g; None means ``channels // 2``.
        ndim: position axes: 1 sequences, 2 images, 3 video.
        groups: channel groups within which elements are related, default 8.
        kernel: a ``cgnl.kernels`` object, or ``"dot"``, ``"embedded_gaussian"``, ``"rbf"`` for one with its defaults.
        norm: ``"batch"`` (the paper), ``"group"`` (the released code, whose GroupNorm over the same groups cancels
            everything of the attention but its sign) or None.
        scale: None (paper), ``"sqrt"`` (released code's ``use_scale``), ``"resolution"`` (times 784 / N, to test a
            network at another resolution or clip length than it was trained at) or ``"energy"`` (divided by the mean
            of x^2 of each sample, which makes the branch of degree one in x; dot kernel only, no fused kernels).
        normalize: divide each row of the pairwise matrix by its sum; see ``cgnl.ops.compact_generalized_non_local``.
        zero_init: True starts as an exact identity (norm weight 0, or ``z`` 0 without a norm). theta, phi, g and z then
            receive gradients from the second step on.
        backend: ``"auto"`` runs the fused kernels where they are faster, ``"fused"`` always (or raises),
            ``"reference"`` never.
        recompute: the fused kernels keep only the input for backward: less memory, a little slower.
        device, dtype: of the parameters; None means torch's default. The norm is float32 at least.

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
        super().__init__(
            channels,
            inner_channels,
            ndim=ndim,
            groups=groups,
            norm=norm,
            zero_init=zero_init,
            device=device,
            dtype=dtype,
        )
        self.kernel, self.scale, self.normalize = kernels.resolve(kernel), scale, normalize
        self.backend: Backend = backend
        self.recompute = recompute
        if scale == "energy" and not isinstance(self.kernel, kernels.Dot):
            raise ValueError(f'scale="energy" is only for the dot kernel, got kernel = {self.kernel}')
        reference.scale_factor(self._operator_scale, 1, 1)  # raises for an unknown one
        check_backend(backend)
        if normalize:
            self.kernel.check_normalize()

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """theta, phi and g, each [B, inner_channels, *P]."""
        return self.theta(x), self.phi(x), self.g(x)

    def attention(self, theta: Tensor, phi: Tensor, g: Tensor) -> tuple[int, Tensor, Tensor | None]:
        """First power, coefficients [B, G, K] and those of the row sums, or None, of the polynomial in theta that y is.

        theta, phi and g are grouped, [B, G, C', *P]. The fused kernels do not call it.
        """
        mine = self.backend != "reference"
        return reference.attention(theta, phi, g, self.kernel, self._operator_scale, self.normalize, fused=mine)

    @property
    def _operator_scale(self) -> str | None:
        return None if self.scale == "energy" else self.scale

    def _run(self, x: Tensor) -> Tensor:
        return dispatch.cgnl_block(
            x, self.theta, self.phi, self.g, self.z, self.norm, kernel=self.kernel, groups=self.groups,
            scale=self.scale, normalize=self.normalize, recompute=self.recompute, attention=self.attention,
            backend=self.backend,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kernel={self.kernel}, scale={self.scale!r}, normalize={self.normalize}"


class NonLocal(_Residual):
    """Non-local block of Wang et al.: every position is related to every other, over all channels at once.

    Args:
        channels: channels of the input and the output.
        inner_channels: channels of theta, phi and g; None means ``channels // 2``.
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
        super().__init__(
            channels, inner_channels, ndim=ndim, groups=1, norm=norm, zero_init=zero_init, device=device, dtype=dtype
        )
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
        return project(y.unsqueeze(1), self.z, dtype), None  # one group

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

    projections = ("theta",)

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.z(self.theta(x)), None
