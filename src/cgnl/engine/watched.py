"""A Lightning module whose steps are finite, or are not made."""

import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..data.transforms import generator
from .config import Config
from .finite import IN_A_ROW, Kept, Watch, why
from .loaders import read_again

log = logging.getLogger("cgnl")

ADVICE = "lower optim.lr, lengthen optim.warmup_epochs, or skip such steps by optim.on_nan=skip"


class Watched(pl.LightningModule):
    """What a module does around its steps; what it learns is for its subclasses to say."""

    network: nn.Module
    config: Config
    train_tally: Any

    def __init__(self):
        super().__init__()
        self.skipped = 0
        """Steps that were not finite, and left out."""
        self._in_a_row = 0
        self._watch: Watch | None = None
        self._kept = Kept(())

    def learn(self, batch: Any) -> Tensor:
        """The loss of a batch, which is counted in the tally."""
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
            self._kept = Kept(self.changed_by_steps())

    def seed(self, batch_idx: int) -> None:
        """Dropout follows from the step alone."""
        torch.manual_seed(generator(self.config.seed, batch_idx, self.global_rank).initial_seed())

    def changed_by_steps(self) -> list[Tensor]:
        """What a step changes beside the weights: statistics of norms, and what is counted."""
        return [*self.network.buffers(), *(getattr(self.train_tally, name) for name in self.train_tally.SUMS)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        loss = self.learn(batch)
        return loss if self._watch is None else self._watch.of_loss(loss)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,  # noqa: ARG002
    ) -> None:
        """Shorten the gradient, and have the optimizer leave out a step whose gradient is not finite."""
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = get_total_norm([p.grad for p in trained])
        if gradient_clip_val:
            clip_grads_with_norm_(trained, gradient_clip_val, norm)
        if self._watch is None:
            return
        scaled = self.config.precision == "16"
        bad = self._watch.of_gradient(norm, self.global_step, scaled)
        if not scaled:  # or else the scaler sees to it
            optimizer.found_inf = bad.float()
        if self.skips:
            self._kept.put_back(if_=bad)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if (batch_idx + 1) % self.config.optim.accumulate == 0:
            self.check_steps(now=self.device.type == "cpu")  # which nobody waits for

    def check_steps(self, now: bool = True) -> None:
        """Name the steps that were not finite; stop there, unless they may be skipped."""
        if self._watch is None or not (found := self._watch.look(self.global_step, now)):
            return
        reason = self.why(found[0])
        if not self.skips:
            raise ValueError(f"step {found[0]}: {reason}: {ADVICE}")
        for step in found:
            log.warning("step %d is skipped: %s", step, reason if step == found[0] else "it is not finite either")
        if self._watch.in_a_row > IN_A_ROW:
            raise ValueError(f"step {found[-1]}: more than {IN_A_ROW} steps one after another are not finite: {reason}")
        self.skipped += len(found)

    def why(self, step: int) -> str:
        """Why a step was not finite: its batches are read and computed once more, and leave no trace."""
        kept, reason = Kept(self.changed_by_steps()), None
        loader: Any = self.trainer.train_dataloader
        parts = self.config.optim.accumulate
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
        with eager, torch.enable_grad(), self.trainer.precision_plugin.train_step_context():
            for number in range((step - 1) * parts, step * parts):
                batch = read_again(loader, number).to(self.device)
                self.seed(number)
                reason = reason or why(self.network, partial(self.learn, batch))
        kept.put_back(if_=torch.ones((), dtype=torch.bool, device=self.device))
        return reason or "its gradient is not finite, but it is when the step is made once more"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_steps()
        in_a_row = self._in_a_row if self._watch is None else self._watch.in_a_row
        checkpoint["cgnl"] = {"skipped": self.skipped, "skipped_in_a_row": in_a_row}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        about = checkpoint["cgnl"]
        self.skipped, self._in_a_row = about.get("skipped", 0), about.get("skipped_in_a_row", 0)
