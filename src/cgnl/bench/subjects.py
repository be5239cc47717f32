"""Everything that can be measured, by name."""

import importlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from .. import ops
from ..blocks import CGNL, NonLocal
from ..models import create_model, is_detector
from ..ops.dispatch import Backend
from ..ops.reference import attention_by_kernels, attention_by_products
from ..spelling import nearest
from ..surgery import inserted
from . import peers
from .settings import Setting

Call = Callable[..., Tensor]
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Subject:
    """A row of a table.

    Attributes:
        name: of the row.
        build: a module, or a function of tensors.
        like_reference: it computes what the row ``reference`` computes, has its weights, and is held to it.
        compiled: by torch.compile; of a network with blocks, these alone.
        counts_as: the row whose arithmetic counts as its own: FLOPs are those of the equations, not of an
            implementation that repeats some of them, or hides them from the counter.
        compared_with: the row that its time is compared with, the benchmark's baseline unless given.
    """

    name: str
    build: Callable[[Setting], Call]
    like_reference: bool = False
    compiled: bool = False
    counts_as: str = ""
    compared_with: str = ""


@dataclass(frozen=True)
class Benchmark:
    """Rows that belong in one table. ``baseline`` is the row that the others are compared with unless they name one."""

    subjects: tuple[Subject, ...]
    baseline: str
    inputs: int = 1
    input_gradient: bool = True


def _cgnl(setting: Setting, backend: Backend = "reference", **options) -> nn.Module:
    return CGNL(
        setting.channels,
        setting.inner,
        ndim=len(setting.size),
        groups=setting.groups,
        kernel=setting.kernel,
        norm=setting.norm,
        zero_init=False,
        backend=backend,
        **options,
    )


def _non_local(attention: Attention, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
    query, key, value = (t.flatten(2).transpose(1, 2) for t in (theta, phi, g))  # [B, N, C]
    y = attention(query, key, value, query.shape[-1] ** -0.5)  # [B, N, C]
    return y.transpose(1, 2).unflatten(2, theta.shape[2:])  # [B, C, *P]


class _ForcedNonLocal(NonLocal):
    """``NonLocal`` picks the faster attention by the number of positions; this one has no choice."""

    attention: Attention

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.z(_non_local(self.attention, self.theta(x), self.phi(x), self.g(x))), None


def _non_local_block(setting: Setting, attention: Attention) -> nn.Module:
    block = _ForcedNonLocal(setting.channels, setting.inner, ndim=len(setting.size), norm=setting.norm, zero_init=False)
    block.attention = attention
    return block


def _timm(setting: Setting, name: str) -> nn.Module:
    if len(setting.size) != 2:
        raise ValueError(f"timm's {name} is for images")
    try:
        return getattr(importlib.import_module("timm.layers"), name)(setting.channels)
    except ModuleNotFoundError:
        raise ModuleNotFoundError("timm is not installed: pip install timm") from None


def whole_network(setting: Setting, block: str | None, **options) -> nn.Module:
    """The network of a setting, plain or with its blocks, and with its head."""
    if is_detector(setting.network):
        raise ValueError(f"{setting.network} takes pictures with objects, which are not measured here")
    if setting.head != "average":
        options |= {"head": setting.head, "reduced": setting.reduced}
    if block is not None:
        options |= {"blocks": setting.blocks, "norm": setting.norm, "zero_init": False}
    if block == "cgnl":
        options |= {"groups": setting.groups, "kernel": setting.kernel}
    return create_model(setting.network, block=block, dropout=0.0, **options)


def _with_head(setting: Setting, head: str) -> nn.Module:
    return whole_network(replace(setting, head=head), None)


def _operator(setting: Setting, backend: Backend) -> Call:
    def call(theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
        return ops.compact_generalized_non_local(
            theta, phi, g, kernel=setting.kernel, groups=setting.groups, backend=backend
        )

    return call


def _compact(build: Callable[..., Call]) -> tuple[Subject, ...]:
    """The implementations of one thing."""
    reference, fused = partial(build, backend="reference"), partial(build, backend="fused")
    return (
        Subject("reference", reference, like_reference=True),
        Subject("reference compiled", reference, like_reference=True, compiled=True, counts_as="reference"),
        Subject("fused", fused, like_reference=True, counts_as="reference"),
    )


BENCHMARKS = {
    "block": Benchmark(
        (
            *_compact(_cgnl),
            Subject("fused recompute", partial(_cgnl, backend="fused", recompute=True), True, counts_as="reference"),
            Subject("non-local bmm", partial(_non_local_block, attention=attention_by_products)),
            Subject(
                "non-local sdpa", partial(_non_local_block, attention=attention_by_kernels), counts_as="non-local bmm"
            ),
            Subject("squeeze-excitation", partial(_timm, name="SEModule")),
            Subject("global-context", partial(_timm, name="GlobalContext")),
        ),
        baseline="reference",
    ),
    "network": Benchmark(
        (
            Subject("plain", partial(whole_network, block=None)),
            Subject("plain compiled", partial(whole_network, block=None), compiled=True, counts_as="plain"),
            *_compact(partial(whole_network, block="cgnl")),
            Subject("nl", partial(whole_network, block="nl")),
            Subject("covariance head", partial(_with_head, head="covariance")),
            Subject(
                "covariance head compiled",
                partial(_with_head, head="covariance"),
                compiled=True,
                counts_as="covariance head",
                compared_with="plain compiled",
            ),
        ),
        baseline="plain",
        input_gradient=False,
    ),
    "ops": Benchmark(
        (
            *_compact(_operator),
            Subject("non-local bmm", lambda _: partial(_non_local, attention_by_products)),
            Subject("non-local sdpa", lambda _: partial(_non_local, attention_by_kernels), counts_as="non-local bmm"),
        ),
        baseline="reference",
        inputs=3,
    ),
}


def numbers(setting: Setting) -> dict[str, int]:
    """What the arguments of a peer may name."""
    return {
        "C": setting.channels,
        "inner": setting.inner,
        "groups": setting.groups,
        "ndim": len(setting.size),
        "N": math.prod(setting.size),
    }


def peer_subjects(text: str, setting: Setting) -> list[Subject]:
    """A row for each peer, named by its class."""
    found = [peers.parse(part, numbers(setting)) for part in peers.split(text)]
    names = [peer.name for peer in found]
    taken = {s.name for s in BENCHMARKS["block"].subjects}
    return [
        Subject(
            peer.name if names.count(peer.name) == 1 and peer.name not in taken else peer.text,
            lambda setting, peer=peer: peer.build(numbers(setting)),
        )
        for peer in found
    ]


class Named(Protocol):
    """A row that can be chosen."""

    @property
    def name(self) -> str: ...


Choice = TypeVar("Choice", bound=Named)


def choose(names: Iterable[str], subjects: Iterable[Choice]) -> list[Choice]:
    """The subjects with these names, in the order of the registry; ``non-local-bmm`` and ``non_local_bmm`` do too."""
    known = {_plain(s.name): s for s in subjects}
    wanted = {_plain(name): name for name in names}
    for key, name in wanted.items():
        if key not in known:
            raise ValueError(f"there is no row {name!r}{nearest(name, [s.name for s in known.values()])}")
    return [subject for key, subject in known.items() if key in wanted]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def compile_(call: Call, on_cpu: bool) -> Call:
    """Of a network with blocks, its blocks alone: what they add is compared with a network that is not compiled.

    One without blocks is compiled whole.
    """
    # On a CPU, the compiler's helpers would still be starting when the first steps are timed.
    options: dict[str, Any] = {"dynamic": False, "options": {"compile_threads": 1} if on_cpu else None}
    if not isinstance(call, nn.Module):
        return torch.compile(call, **options)
    for module in inserted(call).values() or [call]:
        module.compile(**options)
    return call
