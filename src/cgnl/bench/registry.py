"""Everything that can be measured: the setting of a table, and the rows of each benchmark."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import ops
from ..blocks import CGNL, NonLocal
from ..export import for_inference
from ..extras import need
from ..models import create_model, is_detector
from ..ops.kernels import Dot, Kernel
from ..ops.reference import attention_by_kernels, attention_by_products
from ..surgery import inserted
from ..text import nearest

Call = Callable[..., Tensor]
Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


@dataclass(frozen=True)
class Setting:
    """What is measured: the same for every row of a table."""

    benchmark: str
    batch: int
    channels: int
    size: tuple[int, ...]
    device: torch.device
    groups: int = 8
    inner: int = 0
    kernel: Kernel = Dot()  # noqa: RUF009  # frozen
    norm: str | None = "batch"
    dtype: torch.dtype = torch.float32
    tf32: bool = False
    channels_last: bool = True
    mode: Literal["forward", "train"] = "train"
    seconds: float = 0.2
    network: str = ""
    blocks: int = 0
    head: str = "average"
    reduced: int = 256

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, *self.size)

    @property
    def memory_format(self) -> torch.memory_format:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d} if self.channels_last else {}
        return formats.get(len(self.size), torch.contiguous_format)

    @property
    def autocast(self) -> bool:
        """Whether parameters stay in float32 under autocast, as in half-precision training."""
        return self.mode == "train" and self.dtype != torch.float32

    @property
    def dtype_name(self) -> str:
        return "tf32" if self.tf32 else str(self.dtype).removeprefix("torch.")

    @property
    def summary(self) -> str:
        """The options that the shape, the dtype and the kernel do not show."""
        shown = {
            "ops": "groups",
            "block": "groups inner norm",
            "network": "groups network blocks reduced norm",
            "serve": f"groups network blocks {'' if self.head == 'average' else 'head reduced'} norm",
        }
        options = [f"{name}={getattr(self, name) or 'none'}" for name in shown[self.benchmark].split()]
        return " ".join([*options, *(["channels_last"] if self.channels_last else [])])


def place(call: Call, setting: Setting) -> Call:
    """Put a module on the device, in the dtype, layout and mode of the setting."""
    if isinstance(call, nn.Module):
        call.to(setting.device, torch.float32 if setting.autocast else setting.dtype)
        call.to(memory_format=setting.memory_format)
        call.train(setting.mode == "train")
    return call


def compile_(call: Call, setting: Setting) -> Call:
    """Place and compile; of a network with blocks these alone, because its baseline is not compiled."""
    call = place(call, setting)
    # On a CPU, the compiler's worker processes would still be starting while the first steps are timed.
    threads = {"compile_threads": 1} if setting.device.type == "cpu" else None
    options: dict[str, Any] = {"dynamic": False, "options": threads}
    if not isinstance(call, nn.Module):
        return torch.compile(call, **options)
    for module in inserted(call).values() or [call]:
        module.compile(**options)
    return call


def fold(call: Any, setting: Setting, graphs: bool = False) -> nn.Module:
    return for_inference(call, setting.device, setting.dtype, graphs)


def fold_and_compile(call: Any, setting: Setting, mode: str | None = None) -> Call:
    return torch.compile(fold(call, setting), dynamic=False, mode=mode)


@dataclass(frozen=True)
class Subject:
    """A row of a table.

    Attributes:
        build: makes a module, or a function of tensors.
        like_reference: it computes what the row ``reference`` computes, gets its weights, and is checked against it.
        prepare: moves it to the device, and compiles or folds it.
        counts_as: the row whose FLOPs count as its own: those of the equations, not of an implementation that
            repeats some of them, or hides them from the counter.
        compared_with: the row that its time is compared with; by default the benchmark's baseline.
        only_on_gpu: there is nothing to measure on a CPU.
    """

    name: str
    build: Callable[[Setting], Call]
    like_reference: bool = False
    prepare: Callable[[Call, Setting], Call] = place
    counts_as: str = ""
    compared_with: str = ""
    only_on_gpu: bool = False

    def load(self, setting: Setting, weights: Mapping[str, Tensor]) -> Call:
        """Build it, with these weights if it is like the reference, and make it ready to run."""
        torch.manual_seed(0)
        call = self.build(setting)
        if self.like_reference and isinstance(call, nn.Module):
            call.load_state_dict(weights)
        return self.prepare(call, setting)


@dataclass(frozen=True)
class Benchmark:
    """The rows of one table."""

    subjects: tuple[Subject, ...]
    baseline: str = "reference"
    inputs: int = 1
    input_gradient: bool = True

    def choose(self, *names: str) -> list[Subject]:
        """The rows with these names, in the table's order; spaces, ``-`` and ``_`` are the same."""
        known = {_normalize(subject.name): subject for subject in self.subjects}
        for name in names:
            if _normalize(name) not in known:
                raise ValueError(f"there is no row {name!r}{nearest(name, [s.name for s in self.subjects])}")
        wanted = set(map(_normalize, names))
        return [subject for name, subject in known.items() if name in wanted]

    @property
    def reference(self) -> Subject:
        return self.choose("reference")[0]


def _normalize(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def build_block(setting: Setting, **options: Any) -> nn.Module:
    options |= {"groups": setting.groups, "kernel": setting.kernel, "norm": setting.norm, "zero_init": False}
    return CGNL(setting.channels, setting.inner, ndim=len(setting.size), **options)


def build_network(setting: Setting, block: str | None, **options: Any) -> nn.Module:
    if is_detector(setting.network):
        raise ValueError(f"{setting.network} is a detector: only classifiers can be measured")
    if setting.head != "average":
        options |= {"head": setting.head, "reduced": setting.reduced}
    if block is not None:
        options |= {"blocks": setting.blocks, "norm": setting.norm, "zero_init": False}
    if block == "cgnl":
        options |= {"groups": setting.groups, "kernel": setting.kernel}
    return create_model(setting.network, block=block, dropout=0.0, **options)


def build_operator(setting: Setting, **options: Any) -> Call:
    options |= {"kernel": setting.kernel, "groups": setting.groups}
    return partial(ops.compact_generalized_non_local, **options)


def non_local(attention: Attention, theta: Tensor, phi: Tensor, g: Tensor) -> Tensor:
    query, key, value = (t.flatten(2).transpose(1, 2) for t in (theta, phi, g))  # [B, N, C]
    y = attention(query, key, value, query.shape[-1] ** -0.5)  # [B, N, C]
    return y.transpose(1, 2).unflatten(2, theta.shape[2:])  # [B, C, *P]


class ForcedNonLocal(NonLocal):
    """``NonLocal`` with a given attention, where the block picks the faster one by the number of positions."""

    attention: Attention

    def branch(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.z(non_local(self.attention, self.theta(x), self.phi(x), self.g(x))), None


def build_non_local(setting: Setting, attention: Attention) -> nn.Module:
    block = ForcedNonLocal(setting.channels, setting.inner, ndim=len(setting.size), norm=setting.norm, zero_init=False)
    block.attention = attention
    return block


def build_timm(setting: Setting, name: str) -> nn.Module:
    if len(setting.size) != 2:
        raise ValueError(f"timm's {name} is for images")
    return getattr(need("timm.layers", "timm"), name)(setting.channels)


def like_reference(
    name: str, build: Callable[..., Call], prepare=place, *, only_on_gpu: bool = False, **options: Any
) -> Subject:
    return Subject(name, partial(build, **options), True, prepare, "reference", only_on_gpu=only_on_gpu)


def by_backend(build: Callable[..., Call]) -> tuple[Subject, ...]:
    """The rows that stand first in a table: the reference as it is and compiled, and the fused kernels."""
    return (
        like_reference("reference", build, backend="reference"),
        like_reference("reference compiled", build, compile_, backend="reference"),
        like_reference("fused", build, backend="fused"),
    )


def with_covariance_head(setting: Setting) -> nn.Module:
    return build_network(replace(setting, head="covariance"), None)


plain, with_cgnl = partial(build_network, block=None), partial(build_network, block="cgnl")

BENCHMARKS = {
    "block": Benchmark(
        (
            *by_backend(build_block),
            like_reference("fused recompute", build_block, backend="fused", recompute=True),
            Subject("non-local bmm", partial(build_non_local, attention=attention_by_products)),
            Subject(
                "non-local sdpa", partial(build_non_local, attention=attention_by_kernels), counts_as="non-local bmm"
            ),
            Subject("squeeze-excitation", partial(build_timm, name="SEModule")),
            Subject("global-context", partial(build_timm, name="GlobalContext")),
        ),
    ),
    "network": Benchmark(
        (
            Subject("plain", plain),
            Subject("plain compiled", plain, prepare=compile_, counts_as="plain"),
            *by_backend(with_cgnl),
            Subject("nl", partial(build_network, block="nl")),
            Subject("covariance head", with_covariance_head),
            Subject(
                "covariance head compiled",
                with_covariance_head,
                prepare=compile_,
                counts_as="covariance head",
                compared_with="plain compiled",
            ),
        ),
        baseline="plain",
        input_gradient=False,
    ),
    "ops": Benchmark(
        (
            *by_backend(build_operator),
            Subject("non-local bmm", lambda _: partial(non_local, attention_by_products)),
            Subject("non-local sdpa", lambda _: partial(non_local, attention_by_kernels), counts_as="non-local bmm"),
        ),
        inputs=3,
    ),
    "serve": Benchmark(
        (
            like_reference("reference", with_cgnl, backend="reference"),
            like_reference("fused", with_cgnl, backend="fused", only_on_gpu=True),
            like_reference("folded", with_cgnl, fold),
            like_reference("folded graph", with_cgnl, partial(fold, graphs=True), only_on_gpu=True),
            like_reference("folded compiled", with_cgnl, fold_and_compile),
            like_reference(
                "folded compiled graph", with_cgnl, partial(fold_and_compile, mode="reduce-overhead"), only_on_gpu=True
            ),
            Subject("plain folded graph", plain, prepare=partial(fold, graphs=True)),
        ),
    ),
}
