"""The paper's operators, as its equations read.

theta, phi and g are [B, C, *positions] with one, two or three position axes and any strides; results have g's dtype.
N is the number of positions, C' = C / groups the number of channels in a group.
"""

import math
import operator
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from . import kernels
from .kernels import Kernel
from .series import accumulation_dtype, exporting, polynomial, power_sums

HIGHEST_IN_FLOAT32 = 8
"""The highest power that is summed in float32: 60,000 ** 8 is finite, but 20 ** 30 is not."""


def non_local(
    theta: Tensor, phi: Tensor, g: Tensor, *, kernel: str = "embedded_gaussian", scale: bool = True
) -> Tensor:
    """Y = f(theta, phi) g over positions (eq. 1): the original non-local operation.

    Args:
        theta: [B, C, *positions] with one, two or three position axes, any strides.
        phi, g: [B, C, *positions], which may be fewer than those of theta.
        kernel: ``"embedded_gaussian"``, a softmax over the positions of phi, or ``"dot"``, theta phi^T.
        scale: True divides the logits of the softmax by sqrt(C), or the dot product by the number of phi's positions.

    Returns:
        [B, C, *positions of theta] in g's dtype.
    """
    check_non_local(kernel, scale)
    check_inputs(theta, phi, g, same_positions=False)
    dtype = accumulation_dtype(theta, phi, g) if kernel == "dot" else g.dtype
    query, key, value = (t.flatten(2).transpose(1, 2).to(dtype) for t in (theta, phi, g))  # [B, N, C]
    if kernel == "embedded_gaussian":
        y = _softmax_attention(query, key, value, query.shape[-1] ** -0.5 if scale else 1.0)  # [B, N, C]
    else:
        with no_autocast(g):
            y = query @ (key.transpose(1, 2) @ value)  # [B, N, C], by the associative law
        y = y / key.shape[1] if scale else y
    return y.transpose(1, 2).unflatten(2, theta.shape[2:]).to(g.dtype)


def _softmax_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    # On an H200 plain products are twice as fast as the attention kernels up to about 1000 positions; beyond that
    # they are slower and hold N x N. Products overflow float16, the kernels do not. What is exported must not depend
    # on the size.
    if not exporting() and query.shape[1] * key.shape[1] <= 2**20 and value.dtype != torch.float16:
        return attention_by_products(query, key, value, scale)
    return attention_by_kernels(query, key, value, scale)


def attention_by_products(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """softmax(scale query key^T) value, [B, N, C], with the whole N x N matrix."""
    return torch.softmax(scale * query @ key.transpose(1, 2), -1) @ value


def attention_by_kernels(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The same by torch's attention kernels."""
    # One head, rows together in memory: what the kernels that never build N x N ask for.
    query, key, value = (t.unsqueeze(1).contiguous() for t in (query, key, value))  # [B, 1, N, C]
    return F.scaled_dot_product_attention(query, key, value, scale=scale).squeeze(1)


def generalized_non_local(
    theta: Tensor,
    phi: Tensor,
    g: Tensor,
    *,
    kernel: str | Kernel = "dot",
    groups: int = 1,
    scale: str | None = None,
    normalize: bool = False,
) -> Tensor:
    """vec(Y) = f(vec(theta), vec(phi)) vec(g) in each group (eq. 8), with the exact f and the whole NC' x NC' matrix.

    Quadratic in time and memory: for small inputs, and for checking ``compact_generalized_non_local``.

    Args:
        theta, phi, g: as for ``compact_generalized_non_local``.
        kernel, groups, scale, normalize: as for ``compact_generalized_non_local``.

    Returns:
        [B, C, *positions] in g's dtype.
    """
    kernel = kernels.resolve(kernel)
    check_inputs(theta, phi, g, groups)
    if normalize and not isinstance(kernel, kernels.EmbeddedGaussian):  # exp is positive, whatever its series does
        kernel.check_normalize()
    factor = scale_factor(scale, math.prod(theta.shape[2:]), theta.shape[1] // groups)
    dtype = accumulation_dtype(theta, phi, g)
    theta_, phi_, g_ = (t.to(dtype).flatten(1).unflatten(1, (groups, -1)) for t in (theta, phi, g))  # [B, G, NC']
    elements = theta_.unsqueeze(-1), phi_.unsqueeze(-2)
    if normalize and isinstance(
        kernel, kernels.EmbeddedGaussian | kernels.GaussianRBF
    ):  # rows of f under- and overflow
        pairwise = torch.softmax(kernel.exponent(*elements), -1)  # [B, G, NC', NC']
    else:
        pairwise = kernel.exact(*elements)  # [B, G, NC', NC']
        if normalize:
            pairwise = pairwise / pairwise.sum(-1, keepdim=True)
        elif kernel.constant:  # of all rows alike
            pairwise = pairwise * _beta(kernel, _squares(theta_) + _squares(phi_)).unsqueeze(-1)
    with no_autocast(g):
        y = factor * (pairwise @ g_.unsqueeze(-1))  # [B, G, NC', 1]
    return y.reshape(theta.shape).to(g.dtype)


def compact_generalized_non_local(
    theta: Tensor,
    phi: Tensor,
    g: Tensor,
    *,
    kernel: str | Kernel = "dot",
    groups: int = 1,
    scale: str | None = None,
    normalize: bool = False,
    process_group: dist.ProcessGroup | None = None,
    fused: bool = False,
) -> Tensor:
    """vec(Y) = Theta (Phi^T vec(g)) in each group (eq. 12): the Taylor series of f, by the associative law.

    Linear in time, and in memory no larger than its inputs. ``dispatch.compact_generalized_non_local`` documents the
    arguments; ``fused`` is that of ``series``.
    """
    kernel = kernels.resolve(kernel)
    check_inputs(theta, phi, g, groups)
    theta_, phi_, g_ = (t.unflatten(1, (groups, -1)) for t in (theta, phi, g))  # [B, G, C', *P]
    first, c, rows = attention(theta_, phi_, g_, kernel, scale, normalize, process_group, fused)
    return evaluate(theta_, first, c, rows, kernel.envelope, fused).flatten(1, 2).to(g.dtype)  # [B, C, *P]


def evaluate(theta: Tensor, first: int, c: Tensor, rows: Tensor | None, envelope: float, fused: bool = False) -> Tensor:
    """Y [B, G, C', *P] from what ``attention`` returns."""
    if rows is None:
        return polynomial(theta, c, None, first, envelope, fused)
    # The envelope of theta_i stands above and below.
    return polynomial(theta, c, None, first, 0.0, fused) / polynomial(theta, rows, None, first, 0.0, fused)


def attention(
    theta: Tensor,
    phi: Tensor,
    g: Tensor,
    kernel: Kernel,
    scale: str | None = None,
    normalize: bool = False,
    process_group: dist.ProcessGroup | None = None,
    fused: bool = False,
) -> tuple[int, Tensor, Tensor | None]:
    """Y and its row sums as polynomials in theta: (first power, coefficients, coefficients of the row sums or None).

    Inputs are grouped, [B, G, C', *positions]; coefficients are alpha_p^2 (Phi^T g)_p, [B, G, K].
    """
    if normalize:
        kernel.check_normalize()
    first, alpha_squared = leading(kernel)
    phi, g = _widen(first + len(alpha_squared) - 1, phi, g)
    envelope, weight = kernel.envelope, None
    if normalize and envelope:
        weight = _shifted_envelope(phi, envelope, process_group)  # [B, G, C', *P]
        g, envelope = g * weight, 0.0
    s = power_sums(phi, g, len(alpha_squared), first, envelope, fused)  # [B, G, K]
    none = s.new_empty(0)
    rows = power_sums(phi, weight, len(alpha_squared), first, 0.0, fused) if normalize else none  # [B, G, K]
    has_constant = kernel.constant and not normalize
    squares = _squares(theta, fused) + _squares(phi, fused) if has_constant else none  # [B, G, 1]
    positions = s.new_full((1,), math.prod(theta.shape[3:])) if scale and process_group else none
    s, rows, squares, positions = _sum_over_ranks(process_group, s, rows, squares, positions)

    factor = scale_factor(scale, positions if len(positions) else math.prod(theta.shape[3:]), theta.shape[2])
    alphas = [math.sqrt(a) for a in alpha_squared]
    c = times_each(s * factor, alphas)
    if normalize:
        return first, c, times_each(rows, alphas)
    return first, c * _beta(kernel, squares) if kernel.constant else c, None


def affinity(theta: Tensor, phi: Tensor, at: Sequence[int], *, kernel: str | Kernel = "dot", groups: int = 1) -> Tensor:
    """Rows of the pairwise matrix Theta Phi^T, from its factors: how each element of phi relates to theta at ``at``.

    Args:
        theta, phi: [B, C, *positions], as for ``compact_generalized_non_local``.
        at: a position, or (channel, *position).
        kernel, groups: as for ``compact_generalized_non_local``.

    Returns:
        One row for each channel of the position, [B, C, C', *positions], or only that of the given channel,
        [B, C', *positions]. C' are the channels of the row's own group.
    """
    kernel = kernels.resolve(kernel)
    check_inputs(theta, phi, phi, groups)
    at = _check_position(at, theta.shape[1:])
    first, alpha_squared = leading(kernel)
    dtype = accumulation_dtype(theta, phi)
    wide = _widen(first + len(alpha_squared) - 1, theta.to(dtype), phi.to(dtype))
    theta_, phi_ = (t.unflatten(1, (groups, -1)) for t in wide)  # [B, G, C', *P]
    beta = _beta(kernel, _squares(theta_) + _squares(phi_)) if kernel.constant else theta_.new_ones(1)  # [B, G, 1]
    query = theta_[(..., *at[-(theta.ndim - 2) :])]  # [B, G, C']
    envelope = torch.exp(-kernel.envelope * query.square())
    c = torch.stack([a * query**p * envelope * beta for p, a in enumerate(alpha_squared, first)], -1)  # [B, G, C', K]
    if len(at) == theta.ndim - 1:
        group, channel = divmod(at[0], phi_.shape[2])
        keys, c = phi_[:, [group]], c[:, group, [channel]]  # [B, 1, C', *P], [B, 1, K]
        return polynomial(keys, c, None, first, kernel.envelope).squeeze(1).to(theta.dtype)
    keys = phi_.flatten(0, 1).unsqueeze(1)  # [B G, 1, C', *P]
    rows = polynomial(keys.expand(-1, c.shape[2], *keys.shape[2:]), c.flatten(0, 1), None, first, kernel.envelope)
    return rows.unflatten(0, c.shape[:2]).flatten(1, 2).to(theta.dtype)  # [B, C, C', *P]


def non_local_affinity(
    theta: Tensor, phi: Tensor, at: Sequence[int], *, kernel: str = "embedded_gaussian", scale: bool = True
) -> Tensor:
    """One row of the non-local operation's matrix: how much each position of phi counts for theta's position ``at``.

    Args:
        theta, phi: as for ``non_local``.
        at: a position of theta.
        kernel, scale: as for ``non_local``.

    Returns:
        [B, *positions of phi] in theta's dtype.
    """
    check_non_local(kernel, scale)
    check_inputs(theta, phi, phi, same_positions=False)
    at = _check_position(at, theta.shape[1:], with_channel=False)
    dtype = accumulation_dtype(theta, phi)
    query, keys = theta[(..., *at)].to(dtype).unsqueeze(1), phi.flatten(2).to(dtype)  # [B, 1, C], [B, C, N]
    with no_autocast(theta):
        row = (query @ keys).squeeze(1)  # [B, N]
    if kernel == "embedded_gaussian":
        row = torch.softmax(row * (theta.shape[1] ** -0.5 if scale else 1.0), -1)
    elif scale:
        row = row / keys.shape[-1]
    return row.unflatten(1, phi.shape[2:]).to(theta.dtype)


def check_non_local(kernel: str, scale: bool) -> None:
    if not isinstance(scale, bool):
        raise ValueError(f"scale of the non-local operation must be True or False, got {scale!r}")
    if kernel not in ("embedded_gaussian", "dot"):
        raise ValueError(f'unknown kernel {kernel!r}: the non-local operation has "embedded_gaussian" and "dot"')


def leading(kernel: Kernel) -> tuple[int, tuple[float, ...]]:
    """The first power with a coefficient, and the coefficients from there to the last that is not zero."""
    coefficients = kernel.coefficients()
    powers = [p for p, alpha_squared in enumerate(coefficients) if alpha_squared]
    return powers[0], coefficients[powers[0] : powers[-1] + 1]


def _widen(highest: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in float64 for a series whose powers would leave float32, where the device has it."""
    if highest <= HIGHEST_IN_FLOAT32 or tensors[0].device.type == "mps":
        return tensors
    return tuple(t.double() for t in tensors)


def scale_factor(scale: str | None, positions, channels: int):
    """The factor of the attention. 784 positions are res4 at 448 pixels, and res4 of a 32-frame clip."""
    if scale is None:
        return 1.0
    if scale == "sqrt":
        return (positions * channels) ** -0.5
    if scale == "resolution":
        return 784 / positions
    if scale == "energy":
        raise ValueError('scale="energy" is only for the block CGNL: the operator does not see the block\'s input')
    raise ValueError(f'scale must be None, "sqrt", "resolution" or "energy", got {scale!r}')


def energy(x: Tensor) -> Tensor:
    """Mean of x^2 over channels and positions, plus 1e-6, of each sample: [B, 1, 1, ..], float32 at least."""
    mean = _squares(x.unsqueeze(1)) / math.prod(x.shape[1:])  # [B, 1, 1]
    return (mean + 1e-6).reshape(-1, *[1] * (x.ndim - 1))


def no_autocast(like: Tensor) -> torch.autocast:
    """Autocast would round the operands of a float32 matrix product to half precision."""
    return torch.autocast("cpu" if like.is_meta else like.device.type, enabled=False)


def check_inputs(theta: Tensor, phi: Tensor, g: Tensor, groups: int = 1, same_positions: bool = True) -> None:
    """Raise a one-line error that names the shapes if the inputs do not fit together."""
    if not all(isinstance(t, Tensor) for t in (theta, phi, g)):
        raise ValueError(f"expected tensors, got {', '.join(type(t).__name__ for t in (theta, phi, g))}")
    check_whole(groups=groups)
    if not all(t.is_floating_point() for t in (theta, phi, g)):
        raise ValueError(f"expected floating-point tensors, got {theta.dtype}, {phi.dtype}, {g.dtype}")
    if not 3 <= theta.ndim <= 5:
        raise ValueError(f"expected [B, C, *positions] with 1, 2 or 3 position axes, got {_shapes(theta, phi, g)}")
    if phi.shape != g.shape or theta.shape[:2] != phi.shape[:2] or theta.ndim != phi.ndim:
        raise ValueError(f"theta, phi and g do not fit together: {_shapes(theta, phi, g)}")
    if same_positions and theta.shape != phi.shape:
        raise ValueError(f"theta and phi must have the same positions: {_shapes(theta, phi, g)}")
    if 0 in theta.shape[1:] or 0 in phi.shape[2:]:
        raise ValueError(f"there must be at least one channel and one position: {_shapes(theta, phi, g)}")
    if groups < 1 or theta.shape[1] % groups:
        raise ValueError(f"channels = {theta.shape[1]} is not divisible by groups = {groups}")


def _shapes(theta: Tensor, phi: Tensor, g: Tensor) -> str:
    return f"theta {list(theta.shape)}, phi {list(phi.shape)}, g {list(g.shape)}"


def check_map(x: Tensor, channels: int, ndim: int, inserted_after: str | None = None) -> None:
    """Raise unless x is a floating-point [B, channels, *positions] with ndim position axes.

    ``inserted_after`` is where ``cgnl.insert`` put the block, whose channels it may have misread.
    """
    if not isinstance(x, Tensor) or x.ndim != ndim + 2 or x.shape[1] != channels or 0 in x.shape[2:]:
        got = list(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
        axes = ", ".join("THW"[-ndim:])
        hint = (
            f" after {inserted_after!r}: give cgnl.insert an example= of the model's input, or layout="
            if inserted_after
            else ""
        )
        raise ValueError(f"expected [B, {channels}, {axes}] (ndim = {ndim}), got {got}{hint}")
    if not x.is_floating_point():
        raise ValueError(f"expected a floating-point tensor, got {x.dtype}")


def check_whole(**numbers: int) -> None:
    """Raise for anything but whole numbers: 8.0 would fail later, and elsewhere."""
    for name, number in numbers.items():
        if not hasattr(number, "__index__") or isinstance(number, bool):
            raise ValueError(f"{name} must be a whole number, got {number!r}")


def _check_position(at: Sequence[int], shape: Sequence[int], with_channel: bool = True) -> tuple[int, ...]:
    try:
        at = tuple(operator.index(i) for i in at)
    except TypeError:
        raise ValueError(f"at must be whole numbers, got {at!r}") from None
    sizes = shape[len(shape) - len(at) :]
    lengths = (len(shape) - 1, len(shape)) if with_channel else (len(shape) - 1,)
    if len(at) not in lengths or not all(0 <= i < n for i, n in zip(at, sizes, strict=True)):
        channels = f", nor (channel, *position) in {list(shape)}" if with_channel else ""
        raise ValueError(f"at = {at} is no position in {list(shape[1:])}{channels}")
    return at


def _squares(x: Tensor, fused: bool = False) -> Tensor:
    return power_sums(x, x, terms=1, first=1, fused=fused)  # [B, G, 1]


def _beta(kernel: Kernel, squares: Tensor) -> Tensor:
    return torch.exp(-kernel.constant * squares)  # [B, G, 1]


def _shifted_envelope(phi: Tensor, gamma: float, process_group: dist.ProcessGroup | None) -> Tensor:
    """exp(-gamma (phi_j^2 - m)), m the least phi_j^2 of a sample and group: 1 at most, and 1 somewhere."""
    squares = phi.to(accumulation_dtype(phi)).square()
    least = squares.detach().amin(tuple(range(2, phi.ndim)), keepdim=True)  # [B, G, 1, ..]
    if process_group is not None:
        dist.all_reduce(least, dist.ReduceOp.MIN, group=process_group)
    return torch.exp(-gamma * (squares - least))  # [B, G, C', *P]


def times_each(sums: Tensor, alphas: Sequence[float]) -> Tensor:
    """alpha_p^2 sums_p, [B, G, K]."""
    # Python numbers, so that nothing is copied to the device; alpha twice, because its square can underflow float32.
    return torch.stack([a * (a * s) for a, s in zip(alphas, sums.unbind(-1), strict=True)], -1)


def _sum_over_ranks(process_group: dist.ProcessGroup | None, *sums: Tensor) -> Sequence[Tensor]:
    """Each tensor summed over the ranks, all in one message."""
    if process_group is None:
        return sums
    total = _AllReduce.apply(torch.cat([s.flatten() for s in sums]), process_group)
    return [t.view_as(s) for t, s in zip(total.split([s.numel() for s in sums]), sums, strict=True)]


class _AllReduce(torch.autograd.Function):
    """A sum over ranks. Every rank's loss depends on it, so the gradients are summed too."""

    @staticmethod
    def forward(ctx, x, process_group):
        ctx.process_group = process_group
        total = x.clone()
        dist.all_reduce(total, group=process_group)
        return total

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _AllReduce.apply(grad, ctx.process_group), None
