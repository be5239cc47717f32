"""Skip non-finite steps, and name the module they come from.

The host never waits for the device: whether a step was finite is kept there and read ten steps later, or before a
checkpoint is saved.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..surgery import inserted
from . import distributed

LATE = 10
"""Steps after which a GPU is asked whether they were finite."""
IN_A_ROW = 10
"""Steps that may be skipped one after another."""
ADVICE = "lower optim.lr, lengthen optim.warmup_epochs, or skip such steps by optim.on_nan=skip"


class Watch:
    """Records which steps were not finite. After more than ``limit`` in a row, all further steps are skipped."""

    def __init__(self, device: torch.device, limit: int, in_a_row: int = 0, late: int = LATE):
        self.limit, self.late, self.in_a_row = limit, late, in_a_row
        self._in_a_row = torch.tensor(in_a_row, device=device)  # on the device, ahead of ``in_a_row``
        self._bad_loss = torch.zeros((), dtype=torch.bool, device=device)
        self._unread: deque[tuple[int, Tensor, Any]] = deque()

    def check_loss(self, loss: Tensor) -> Tensor:
        """The loss; NaN if it is not finite or the limit is passed, which makes the gradients of all ranks NaN."""
        bad = ~loss.detach().isfinite() | (self._in_a_row > self.limit)
        self._bad_loss |= bad
        return loss * torch.where(bad, torch.nan, 1.0)

    def check_gradient(self, norm: Tensor, step: int, scaled: bool = False) -> Tensor:
        """Whether step number ``step``, counted from 0, must be skipped.

        If the loss is ``scaled``, gradients overflow while the scale is too large: then only the loss is checked.
        """
        bad = (self._bad_loss if scaled else ~norm.isfinite()).int()
        if scaled and distributed.world_size() > 1:
            dist.all_reduce(bad, dist.ReduceOp.MAX)
        self._in_a_row = (self._in_a_row + 1) * bad
        self._bad_loss.zero_()
        copy = self._in_a_row.to("cpu", non_blocking=True)
        done = torch.cuda.current_stream(norm.device).record_event() if norm.is_cuda else None
        self._unread.append((step + 1, copy, done))
        return bad > 0

    def read(self, now: bool = False) -> list[int]:
        """Numbers, from 1 on, of non-finite steps that were not returned before: up to ten steps ago, or all."""
        found = []
        while len(self._unread) > (0 if now else self.late):
            step, in_a_row, done = self._unread.popleft()
            if done is not None:
                done.synchronize()  # the device has later steps to compute meanwhile
            self.in_a_row = int(in_a_row)
            found += [step] if self.in_a_row else []
        return found


class Snapshot:
    """Copies of many small tensors on their device, as one tensor for each dtype."""

    def __init__(self, tensors: Iterable[Tensor]):
        self.tensors: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            self.tensors.setdefault(tensor.dtype, []).append(tensor)
        self.before = {dtype: _row(group) for dtype, group in self.tensors.items()}

    def restore(self, if_: Tensor) -> None:
        """Restore them if the flag is set."""
        for dtype, group in self.tensors.items():
            row = torch.where(if_, self.before[dtype], _row(group))
            parts = row.split([tensor.numel() for tensor in group])
            then = [part.view(tensor.shape) for part, tensor in zip(parts, group, strict=True)]
            torch._foreach_copy_(group, then)  # pyright: ignore[reportPrivateImportUsage]


def _row(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def first_nonfinite(modules: Mapping[str, nn.Module], run: Callable[[], Any]) -> str | None:
    """The name of the first of these modules whose output is not finite, when ``run`` is called."""
    found: list[str] = []

    def look(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not found and not is_finite(tree_leaves(output)):
            found.append(name)

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(look, name)))
        run()
    return found[0] if found else None


def is_finite(values: Iterable[Any]) -> bool:
    """Whether all tensors among the values are finite."""
    return all(bool(value.isfinite().all()) for value in values if isinstance(value, Tensor))


def find_cause(network: nn.Module, compute_loss: Callable[[], Tensor]) -> str | None:
    """Why the loss, or its gradient, is not finite on any rank, if that is so: the reason of the first rank.

    Norms may be synchronised, so all ranks do the same until one of them knows.
    """
    for reason in _look_for_cause(network, compute_loss):
        if known := next(filter(None, distributed.all_gather(reason)), None):
            return known
    return None


def _look_for_cause(network: nn.Module, compute_loss: Callable[[], Tensor]) -> Iterator[str | None]:
    """What is not finite on this rank, if anything: first of the modules' outputs, then the loss, then the gradient."""
    losses: list[Tensor] = []
    modules = {name: module for name, module in network.named_modules() if name}
    in_blocks = tuple(f"{name}." for name in inserted(network))
    outside = {name: module for name, module in modules.items() if not name.startswith(in_blocks)}
    for watched in (modules, outside) if in_blocks else (modules,):  # a block watched from inside is not fused
        if name := first_nonfinite(watched, lambda: losses.append(compute_loss())):
            also = "" if is_finite(modules[name].parameters(recurse=False)) else ", whose weights are not finite either"
            yield f"the loss is {losses[-1].item()}; the first module whose output is not finite is {name}{also}"
        else:
            yield None
    loss = losses[-1]
    yield None if loss.isfinite() else f"the loss is {loss.item()}, though the output of every module is finite"
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    bad = [n for n, g in zip(trained, gradients, strict=True) if g is not None and not g.norm().isfinite()]
    if bad:  # gradients come from the last layer to the first
        yield f"the loss is {loss.item():.4g}, but its gradient is not finite, first that of {bad[-1]}"
    else:
        yield None
