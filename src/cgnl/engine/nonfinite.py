"""Non-finite steps: they change nothing, and are named with the module they come from.

Nothing here waits for a device. Whether a step was finite stays there, and is read some steps later, when it has long
been computed, and before anything is saved.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.utils._pytree import tree_leaves

from ..data.rng import generator
from ..surgery import inserted
from . import distributed
from .config import Config
from .loaders import read_again

log = logging.getLogger("cgnl")

LATE = 10
"""Steps after which a GPU is asked whether they were finite."""
IN_A_ROW = 10
"""Steps that may be skipped one after another."""
ADVICE = "lower optim.lr, lengthen optim.warmup_epochs, or skip such steps by optim.on_nan=skip"


class Watch:
    """Which steps were not finite. After more than ``limit`` in a row, no further step is made."""

    def __init__(self, device: torch.device, limit: int, in_a_row: int = 0, late: int = LATE):
        self.limit, self.late, self.in_a_row = limit, late, in_a_row
        self._in_a_row = torch.tensor(in_a_row, device=device)  # ahead of what was read
        self._bad_loss = torch.zeros((), dtype=torch.bool, device=device)
        self._unread: deque[tuple[int, Tensor, Any]] = deque()

    def check_loss(self, loss: Tensor) -> Tensor:
        """The loss; NaN, and with it every gradient of every rank, where it is not finite or the limit is passed."""
        bad = ~loss.detach().isfinite() | (self._in_a_row > self.limit)
        self._bad_loss |= bad
        return loss * torch.where(bad, torch.nan, 1.0)

    def check_gradient(self, norm: Tensor, step: int, scaled: bool = False) -> Tensor:
        """Whether step number ``step``, counted from 0, must not be made.

        Where the loss is ``scaled``, gradients overflow as long as the scale is too large, and only losses tell.
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
    """Copies of tensors on their device; those of a type are one, because they are many and small."""

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

    def watch(name: str) -> Callable[..., None]:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not is_finite(tree_leaves(output)):
                found.append(name)

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in modules.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def is_finite(values: Iterable[Any]) -> bool:
    """Whether all tensors among the values are finite."""
    return all(bool(value.isfinite().all()) for value in values if isinstance(value, Tensor))


def find_cause(network: nn.Module, compute_loss: Callable[[], Tensor]) -> str | None:
    """Why the loss, or its gradient, is not finite on any rank, if that is so.

    Norms may be synchronised, so all ranks do the same until one of them knows.
    """
    losses: list[Tensor] = []
    modules = {name: module for name, module in network.named_modules() if name}
    in_blocks = tuple(f"{name}." for name in inserted(network))
    outside = {name: module for name, module in modules.items() if not name.startswith(in_blocks)}
    for watched in (modules, outside) if in_blocks else (modules,):  # a block watched from inside is not fused
        reason = None
        if name := first_nonfinite(watched, lambda: losses.append(compute_loss())):
            also = "" if is_finite(modules[name].parameters(recurse=False)) else ", whose weights are not finite either"
            reason = f"the loss is {losses[-1].item()}; the first module whose output is not finite is {name}{also}"
        if known := _first_reason(reason):
            return known
    loss = losses[-1]
    reason = f"the loss is {loss.item()}, though the output of every module is finite"
    if known := _first_reason(None if loss.isfinite() else reason):
        return known
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    bad = [n for n, g in zip(trained, gradients, strict=True) if g is not None and not g.norm().isfinite()]
    reason = f"the loss is {loss.item():.4g}, but its gradient is not finite, first that of {bad[-1]}" if bad else None
    return _first_reason(reason)  # gradients come from the last layer to the first


def _first_reason(reason: str | None) -> str | None:
    """The reason of the first rank that has one."""
    return next((known for known in distributed.all_gather(reason) if known), None)


class GuardedModule(pl.LightningModule):
    """Base module that skips or aborts a step with a non-finite loss or gradient."""

    network: nn.Module
    config: Config
    train_tally: Any

    def __init__(self):
        super().__init__()
        self.skipped = 0
        """Steps that were not finite, and skipped."""
        self._in_a_row = 0
        self._watch: Watch | None = None
        self._before = Snapshot(())

    def learn(self, batch: Any) -> Tensor:
        """The loss of a batch, which is added to the tally."""
        raise NotImplementedError

    @property
    def skips(self) -> bool:
        return self.config.optim.on_nan == "skip"

    def on_train_start(self) -> None:
        limit, in_a_row = (IN_A_ROW, self._in_a_row) if self.skips else (0, 0)
        self._watch = Watch(self.device, limit, in_a_row)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self.seed(batch_idx)
        if self.skips and batch_idx % self.config.optim.accumulate == 0:
            self._before = Snapshot(self.changed_by_steps())

    def seed(self, batch_idx: int) -> None:
        """Dropout follows from the step alone."""
        torch.manual_seed(generator(self.config.seed, batch_idx, self.global_rank).initial_seed())

    def changed_by_steps(self) -> list[Tensor]:
        """What a step changes besides the weights: statistics of norms, and the tally."""
        return [*self.network.buffers(), *(getattr(self.train_tally, name) for name in self.train_tally.SUMS)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        loss = self.learn(batch)
        return loss if self._watch is None else self._watch.check_loss(loss)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,  # noqa: ARG002
    ) -> None:
        """Clip the gradient, and have the optimizer skip a step whose gradient is not finite."""
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in trained])
        if gradient_clip_val:
            clip_grads_with_norm_(trained, gradient_clip_val, norm)
        if self._watch is None:
            return
        scaled = self.config.precision == "16"
        bad = self._watch.check_gradient(norm, self.global_step, scaled)
        if not scaled:  # or else the scaler skips it
            optimizer.found_inf = bad.float()
        if self.skips:
            self._before.restore(if_=bad)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if (batch_idx + 1) % self.config.optim.accumulate == 0:
            self.check_steps(now=self.device.type == "cpu")  # nobody waits for a CPU

    def check_steps(self, now: bool = True) -> None:
        """Name the steps that were not finite; stop there, unless they may be skipped."""
        if self._watch is None or not (found := self._watch.read(now)):
            return
        reason = self.find_cause(found[0])
        if not self.skips:
            raise ValueError(f"step {found[0]}: {reason}: {ADVICE}")
        for step in found:
            log.warning("step %d is skipped: %s", step, reason if step == found[0] else "it is not finite either")
        if self._watch.in_a_row > IN_A_ROW:
            raise ValueError(f"step {found[-1]}: more than {IN_A_ROW} steps one after another are not finite: {reason}")
        self.skipped += len(found)

    def find_cause(self, step: int) -> str:
        """Why a step was not finite: its batches are read and computed once more, and leave no trace."""
        before, reason = Snapshot(self.changed_by_steps()), None
        loader: Any = self.trainer.train_dataloader
        parts = self.config.optim.accumulate
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
        with eager, torch.enable_grad(), self.trainer.precision_plugin.train_step_context():
            for number in range((step - 1) * parts, step * parts):
                batch = read_again(loader, number).to(self.device)
                self.seed(number)
                reason = reason or find_cause(self.network, partial(self.learn, batch))
        before.restore(if_=torch.ones((), dtype=torch.bool, device=self.device))
        return reason or "its gradient is not finite, but it is when the step is made once more"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_steps()
        in_a_row = self._in_a_row if self._watch is None else self._watch.in_a_row
        checkpoint["cgnl"] = {"skipped": self.skipped, "skipped_in_a_row": in_a_row}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        about = checkpoint["cgnl"]
        self.skipped, self._in_a_row = about.get("skipped", 0), about.get("skipped_in_a_row", 0)
