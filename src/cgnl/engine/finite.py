"""Steps whose loss or gradient is not finite: they change nothing, and where they come from is named.

Nothing here waits for a device. What became of a step stays there, and is read some steps later, when it has long been
computed, and before anything is saved.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..surgery import inserted
from . import distributed

LATE = 10
"""Steps after which a GPU is asked what became of them."""
IN_A_ROW = 10
"""Steps that may be skipped one after another."""


class Watch:
    """Which steps were not finite. When there are more than ``limit`` one after another, no further one is made."""

    def __init__(self, device: torch.device, limit: int, in_a_row: int = 0, late: int = LATE):
        self.limit, self.late = limit, late
        self.in_a_row = in_a_row
        """Steps up to the last one that was read of which none was finite."""
        self._state = torch.zeros(late + 1, dtype=torch.int32, device=device)
        self._state[-1] = in_a_row
        self._lost = torch.zeros((), dtype=torch.bool, device=device)
        self._copied: tuple[Tensor, Any, int] | None = None

    def of_loss(self, loss: Tensor) -> Tensor:
        """The loss. One that is not finite makes every gradient of every process NaN, and so do those after the end."""
        lost = ~loss.detach().isfinite() | (self._state[-1] > self.limit)
        self._lost |= lost
        return loss * torch.where(lost, torch.nan, 1.0)

    def of_gradient(self, norm: Tensor, step: int, scaled: bool = False) -> Tensor:
        """Whether step number ``step``, counted from 0, must not be made.

        Where the loss is ``scaled``, gradients overflow as long as the scale is too large, and only losses tell.
        """
        bad = self._lost.clone() if scaled else ~norm.isfinite()
        if scaled and distributed.world_size() > 1:
            bad = bad.int()
            dist.all_reduce(bad)
        self._state[step % self.late] = bad
        self._state[-1] = (self._state[-1] + 1) * bad
        self._lost.zero_()
        return bad > 0

    def look(self, steps: int, now: bool = False) -> list[int]:
        """Numbers, from 1 on, of steps that were not finite and have not been named, after ``steps`` have been made."""
        if not now and steps % self.late:
            return []
        found = self._read()
        on_gpu = self._state.is_cuda
        copy = torch.empty(self._state.shape, dtype=self._state.dtype, pin_memory=on_gpu)
        copy.copy_(self._state, non_blocking=True)
        done = torch.cuda.current_stream(self._state.device).record_event() if on_gpu else None
        self._copied = copy, done, steps
        self._state[:-1] = 0
        return found + self._read() if now else found

    def _read(self) -> list[int]:
        """What was copied the last time."""
        if self._copied is None:
            return []
        copy, done, steps = self._copied
        self._copied = None
        if done is not None:
            done.synchronize()  # the device has later steps to compute meanwhile
        *flags, self.in_a_row = copy.tolist()
        return [n for n in range(max(1, steps - self.late + 1), steps + 1) if flags[(n - 1) % self.late]]


class Kept:
    """Numbers as they were, to be put back on their device: all of a type at once, for they are many and small."""

    def __init__(self, tensors: Iterable[Tensor]):
        self.tensors: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            self.tensors.setdefault(tensor.dtype, []).append(tensor)
        self.before = {dtype: _row(group) for dtype, group in self.tensors.items()}

    def put_back(self, if_: Tensor) -> None:
        """Put them back if the flag is set."""
        for dtype, group in self.tensors.items():
            row = torch.where(if_, self.before[dtype], _row(group))
            parts = row.split([tensor.numel() for tensor in group])
            then = [part.view(tensor.shape) for part, tensor in zip(parts, group, strict=True)]
            torch._foreach_copy_(group, then)  # pyright: ignore[reportPrivateImportUsage]


def _row(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def first_not_finite(modules: Mapping[str, nn.Module], run: Callable[[], Any]) -> str | None:
    """The name of the first of these modules whose output is not finite, when ``run`` is called."""
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not all(bool(tensor.isfinite().all()) for tensor in tensors_in(output)):
                found.append(name)

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in modules.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors of what a module returns."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        yield from tensors_in(list(output.values()))
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from tensors_in(part)


def why(network: nn.Module, learn: Callable[[], Tensor]) -> str | None:
    """Why the loss that ``learn`` computes, or its gradient, is not finite in any process, if that is so.

    Norms may be those of all processes, so that all do the same until one of them knows.
    """
    losses: list[Tensor] = []
    modules = {name: module for name, module in network.named_modules() if name}
    in_blocks = tuple(f"{name}." for name in inserted(network))
    outside = {name: module for name, module in modules.items() if not name.startswith(in_blocks)}
    for watched in (modules, outside) if in_blocks else (modules,):  # a block watched from inside is not fused
        reason = None
        if name := first_not_finite(watched, lambda: losses.append(learn())):
            whole = all(bool(weight.isfinite().all()) for weight in modules[name].parameters(recurse=False))
            also = "" if whole else ", whose weights are not finite either"
            reason = f"the loss is {losses[-1].item()}; the first module whose output is not finite is {name}{also}"
        if known := _of_any(reason):
            return known
    loss = losses[-1]
    finite = bool(loss.isfinite())
    if known := _of_any(None if finite else f"the loss is {loss.item()}, though the output of every module is finite"):
        return known
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    bad = [n for n, g in zip(trained, gradients, strict=True) if g is not None and not g.norm().isfinite()]
    where = f"first that of {bad[-1]}" if bad else ""  # gradients come from the last layer to the first
    return _of_any(f"the loss is {loss.item():.4g}, but its gradient is not finite, {where}" if bad else None)


def _of_any(reason: str | None) -> str | None:
    """The reason of the first process that has one."""
    return next((known for known in distributed.all_gather(reason) if known), None)
