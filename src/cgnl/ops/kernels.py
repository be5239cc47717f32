"""The paper's pairwise functions as Taylor series: f(theta_i, phi_j) = sum_p alpha_p^2 (theta_i phi_j)^p (eq. 9)."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import accumulate, islice
from math import exp, factorial, isfinite
from numbers import Real
from operator import mul
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Dot", "EmbeddedGaussian", "GaussianRBF", "Kernel", "Taylor"]


HIGHEST = 1000
"""Largest order of a series: coefficients are zero in any precision long before it."""


def _check_order(order: int) -> None:
    if isinstance(order, bool) or not hasattr(order, "__index__") or not 0 <= order <= HIGHEST:
        raise ValueError(f"order must be a whole number from 0 to {HIGHEST}, got order = {order!r}")


@dataclass(frozen=True)
class Kernel:
    """A pairwise function. Subclasses give its coefficients and its exact form."""

    def coefficients(self) -> tuple[float, ...]:
        """alpha_p^2 for p = 0..P."""
        raise NotImplementedError

    def exact(self, theta: Tensor, phi: Tensor) -> Tensor:
        """f itself for each theta_i and phi_j, the limit of the series: [*shape] of theta and phi, which broadcast."""
        return torch.exp(self.exponent(theta, phi))

    def exponent(self, theta: Tensor, phi: Tensor) -> Tensor:
        """log f, [*shape] of theta and phi, which broadcast, for kernels that are an exponential."""
        raise NotImplementedError

    @property
    def envelope(self) -> float:
        """gamma of the factor exp(-gamma x^2) that multiplies the rows of Theta and of Phi; 0 for none."""
        return 0.0

    @property
    def constant(self) -> float:
        """gamma of the factor exp(-gamma (|theta|^2 + |phi|^2)) of a sample and group; 0 for none."""
        return 0.0

    def check_normalize(self) -> None:
        """Raise if the rows of the series cannot be divided by their sums."""
        if self.coefficients()[0] == 0:
            raise ValueError(
                f"normalize=True needs alpha_0^2 > 0, {self} has alpha_0^2 = 0: rows sum to 0 at theta = 0"
            )


@dataclass(frozen=True)
class Dot(Kernel):
    """theta_i phi_j: the dot product, exact at order one (eq. 3)."""

    def coefficients(self) -> tuple[float, ...]:
        return (0.0, 1.0)

    def exact(self, theta: Tensor, phi: Tensor) -> Tensor:
        return theta * phi


@dataclass(frozen=True)
class EmbeddedGaussian(Kernel):
    """exp(theta_i phi_j), without the softmax's normalisation."""

    order: int = 3
    """P, the highest power of the series, default 3."""

    def __post_init__(self):
        _check_order(self.order)

    def coefficients(self) -> tuple[float, ...]:
        return tuple(1 / factorial(p) for p in range(self.order + 1))

    def exponent(self, theta: Tensor, phi: Tensor) -> Tensor:
        return theta * phi

    def check_normalize(self) -> None:
        if self.order % 2:
            raise ValueError(f"normalize=True needs an even order, got order = {self.order}: odd series reach zero")


@dataclass(frozen=True)
class GaussianRBF(Kernel):
    """exp(-gamma (theta_i - phi_j)^2), expanded as beta (2 gamma)^p / p! (theta_i phi_j)^p (eq. 10).

    The paper can be read in two ways about beta, and the true kernel needs a third:

    * ``"paper"``: the constant exp(-2 gamma), as for unit vectors; what the released code trains.
    * ``"norm"``: the constant exp(-gamma (|theta|^2 + |phi|^2)) of each sample and group, read literally.
      It is zero in float32 once the squared norms pass 100 / gamma.
    * ``"exact"``: exp(-gamma theta_i^2) exp(-gamma phi_j^2), folded into the rows of Theta and Phi, so that the series
      converges to the RBF kernel itself.
    """

    order: int = 3
    """P, the highest power of the series, default 3."""
    gamma: float = 1e-4
    """How fast f falls with the distance, default 0.0001."""
    beta: Literal["paper", "norm", "exact"] = "paper"
    """``"paper"``, ``"norm"`` or ``"exact"``, as above."""

    def __post_init__(self):
        _check_order(self.order)
        if not (isinstance(self.gamma, Real) and isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"gamma must be positive and finite, got gamma = {self.gamma!r}")
        if self.beta not in ("paper", "norm", "exact"):
            raise ValueError(f'beta must be "paper", "norm" or "exact", got {self.beta!r}')
        if not any(self.coefficients()):
            raise ValueError(f'exp(-2 gamma) is zero at gamma = {self.gamma}: take beta="exact"')
        if not all(map(isfinite, self.coefficients())):
            raise ValueError(f"the series of order {self.order} is not finite at gamma = {self.gamma}")

    def coefficients(self) -> tuple[float, ...]:
        beta = exp(-2 * self.gamma) if self.beta == "paper" else 1.0
        ratios = (2 * self.gamma / p for p in range(1, self.order + 1))
        return tuple(accumulate(ratios, mul, initial=beta))

    def exponent(self, theta: Tensor, phi: Tensor) -> Tensor:
        """log f, [*shape] of theta and phi, which broadcast.

        For ``beta="norm"`` without its constant: an element does not know the norm of its sample and group.
        """
        if self.beta == "exact":
            return -self.gamma * (theta - phi) ** 2
        return 2 * self.gamma * (theta * phi - (1 if self.beta == "paper" else 0))

    @property
    def envelope(self) -> float:
        return self.gamma if self.beta == "exact" else 0.0

    @property
    def constant(self) -> float:
        return self.gamma if self.beta == "norm" else 0.0


@dataclass(frozen=True, init=False)
class Taylor(Kernel):
    """Any series with alpha_p^2 >= 0, given as ``Taylor([alpha_0^2, alpha_1^2, ...])``."""

    alpha_squared: tuple[float, ...]

    def __init__(self, coefficients):
        try:
            if isinstance(coefficients, str):
                raise TypeError
            values = tuple(float(c) for c in islice(coefficients, HIGHEST + 2))
        except (TypeError, ValueError):
            raise ValueError(f"coefficients must be numbers, got {coefficients!r}") from None
        if len(values) > HIGHEST + 1:
            raise ValueError(f"there must be at most {HIGHEST + 1} coefficients, up to order {HIGHEST}; got more")
        if not values or not all(isfinite(c) and c >= 0 for c in values) or not any(values):
            raise ValueError(f"coefficients must be finite, at least 0 and not all 0, got {values}")
        object.__setattr__(self, "alpha_squared", values)

    def coefficients(self) -> tuple[float, ...]:
        return self.alpha_squared

    def exact(self, theta: Tensor, phi: Tensor) -> Tensor:
        product, value = theta * phi, torch.zeros_like(theta * phi)
        for alpha_squared in reversed(self.alpha_squared):
            value = value * product + alpha_squared
        return value


BY_NAME: dict[str, type[Kernel]] = {"dot": Dot, "embedded_gaussian": EmbeddedGaussian, "rbf": GaussianRBF}
"""Kernels that a name alone stands for, with their defaults."""
_DEFAULTS = {name: kind() for name, kind in BY_NAME.items()}


def resolve(kernel: str | Kernel) -> Kernel:
    """The kernel itself, or the one that a text stands for."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        return _DEFAULTS[kernel] if kernel in _DEFAULTS else parse(kernel)
    raise ValueError(f"unknown kernel {kernel!r}: give one of {', '.join(map(repr, BY_NAME))} or a cgnl.kernels object")


def parse(text: str) -> Kernel:
    """Read a kernel: ``dot``, or a name with options: ``rbf:order=3,gamma=1e-4,beta=exact``, ``taylor:0,1,0.5``."""
    name, _, rest = text.partition(":")
    parts = [part for part in rest.split(",") if part]
    if name == "taylor":
        return Taylor([_number(float, part, "a coefficient", name) for part in parts])
    if name not in BY_NAME:
        raise ValueError(f"unknown kernel {name!r}{_suggest(name, [*BY_NAME, 'taylor'])}")
    types: dict[str, Any] = {field.name: type(field.default) for field in fields(BY_NAME[name])}
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key not in types or not equals:
            raise ValueError(f"{part!r} is no option of the kernel {name}{_suggest(key, types)}")
        options[key] = value if types[key] is str else _number(types[key], value, key, name)
    return BY_NAME[name](**options)


def spell(kernel: Kernel) -> str:
    """The text that ``parse`` reads as this kernel."""
    if isinstance(kernel, Taylor):
        return f"taylor:{','.join(map(repr, kernel.alpha_squared))}"
    name = next((name for name, kind in BY_NAME.items() if type(kernel) is kind), None)
    if name is None:
        raise ValueError(f"the kernel {kernel} has no name: only {', '.join(BY_NAME)} and taylor have")
    options = ",".join(f"{field.name}={getattr(kernel, field.name)}" for field in fields(kernel))
    return f"{name}:{options}" if options else name


def _number(kind: type[int | float], text: str, what: str, name: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{what} of the kernel {name} must be a number, got {text!r}") from None


def _suggest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there is {', '.join(known) or 'none'}"
