"""The Lightning modules: one training step, one test, the optimizer."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, nn

from ..data.detection import DetectionBatch
from ..data.index import Kind
from ..data.loading import Batch
from ..data.transforms import network_input
from ..models.weights import CLASSIFIERS, new_parts
from ..spelling import counted
from . import distributed, schedule
from .config import Config, plain
from .nonfinite import GuardedModule
from .predictions import Prediction, ranked
from .tasks import TASKS

log = logging.getLogger("cgnl")

TOP = 5
"""Ranks that are counted."""


class Sums(torchmetrics.Metric):
    """Numbers that are added up over all samples and processes."""

    SUMS: Sequence[str] = ("loss", "count")
    SHOWN: Sequence[str] = ("loss",)
    """Those a progress bar shows, for each sample."""
    full_state_update = False

    loss: Tensor
    count: Tensor

    def __init__(self):
        super().__init__()
        for name in self.SUMS:
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def sums(self) -> list[float]:
        """What was counted so far, by all processes."""
        with self.sync_context():
            return [float(getattr(self, name)) for name in self.SUMS]

    def restore(self, sums: list[float]) -> None:
        """Go on counting from here."""
        for name, value in zip(self.SUMS, sums, strict=True):
            getattr(self, name).fill_(value)

    def compute(self) -> dict[str, float]:
        count = max(float(self.count), 1.0)
        means = {name: float(getattr(self, name)) / count for name in self.SUMS if name != "count"}
        return {**means, "count": int(self.count)}


class Tally(Sums):
    """Loss, top-1 and top-5 accuracy over samples that are counted once each, over all processes."""

    SUMS = ("loss", "top1", "top5", "count")
    SHOWN = ("loss", "top1")

    top1: Tensor
    top5: Tensor

    def update(self, losses: Tensor, classes: Tensor, labels: Tensor) -> None:
        """``losses`` [B] or their mean, the five likeliest ``classes`` [B, 5] or fewer by rank, ``labels`` [B]."""
        best = classes == labels[:, None]  # [B, 5]
        self.loss += losses.detach().double().mean() * len(labels)
        self.top1 += best[:, 0].sum()
        self.top5 += best.sum()
        self.count += len(labels)


class TaskModule(GuardedModule):
    """A network that learns: what is the same whatever it learns."""

    TRAIN_COLUMNS: Sequence[str] = ("loss",)
    """What is written down of the training, of all that is counted."""

    def __init__(
        self,
        network: nn.Module,
        config: Config,
        classes: tuple[str, ...],
        kind: Kind,
        lr: float = 0.0,
        steps_per_epoch: int = 1,
        at_once: int = 1,
        counts: tuple[int, int] = (0, 0),
    ):
        super().__init__()
        self.network, self.config, self.classes, self.kind = network, config, classes, kind
        self.train_tally = self.make_tally()
        self.lr, self.steps_per_epoch, self.at_once, self.counts = lr, steps_per_epoch, at_once, counts
        self.chosen = False
        """Whether what is saved was chosen by its own test."""
        self.problems: set[str] = set()
        """Sentences on files that could not be read."""
        self.results: dict[str, float] = {}
        """Of the last test."""
        self.metric = f"test_{TASKS[kind].metric}"
        """The result by which tests are compared."""
        self.predictions: list[Prediction] = []
        """What the last test said of each sample, in their order, where it names samples."""
        if config.channels_last:
            network.to(memory_format=TASKS[kind].memory_format)

    def make_tally(self) -> Sums:
        """What counts during training."""
        return Sums()

    def about(self) -> dict[str, Any]:
        """What a checkpoint says, beside the rest, of this kind of network."""
        return {}

    def on_train_batch_start(self, batch: Batch | DetectionBatch, batch_idx: int) -> None:
        self.note(batch)
        if len(batch.samples) < self.at_once:  # what cannot be read is replaced as long as anything can
            raise ValueError(f"nothing can be read in place of a sample any more: {batch.problems[0]}")
        super().on_train_batch_start(batch, batch_idx)

    def on_validation_epoch_start(self) -> None:
        if distributed.world_size() > 1:  # test what the first process will save
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, src=0)

    def conclude_test(self, results: dict[str, float]) -> None:
        """Keep the results of a test, if anything was tested."""
        if not results["count"]:
            raise ValueError(f"no test sample could be read; one is: {sorted(self.problems)[0]}")
        self.results = {f"test_{name}": value for name, value in results.items()}
        self.log(self.metric, self.results[self.metric], logger=False)

    def note(self, batch: Batch | DetectionBatch) -> None:
        """Count unreadable samples."""
        new = set(batch.problems) - self.problems
        self.problems |= new
        for problem in sorted(new):
            log.warning("skipped: %s", problem)
        if distributed.world_size() == 1:
            self.check_problems()

    def gather_problems(self) -> None:
        """Let every process know what the others could not read."""
        if distributed.world_size() == 1:
            return
        together = set().union(*distributed.all_gather(self.problems))
        for problem in sorted(together - self.problems):
            log.warning("skipped: %s", problem)
        self.problems = together
        self.check_problems()

    def check_problems(self) -> None:
        """Stop when too many samples are unreadable."""
        if len(self.problems) > self.config.data.bad_limit:
            raise ValueError(
                f"{counted(len(self.problems), 'sample')} cannot be read, which is more than data.bad_limit = "
                f"{self.config.data.bad_limit}; one is: {sorted(self.problems)[0]}"
            )

    def configure_optimizers(self) -> Any:
        optim = self.config.optim
        sgd = torch.optim.SGD(
            self.parameter_groups(),
            lr=self.lr,
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            nesterov=optim.nesterov,
            fused=self.config.precision != "16",  # Lightning scales no gradients for an optimizer that does so itself
        )
        if optim.momentum:  # of a fused optimizer it would be undefined after a first step that is left out
            for p in (p for group in sgd.param_groups for p in group["params"]):
                sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
        rate = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: schedule.factor(optim, self.steps_per_epoch, step))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What is trained: all at one rate, or what starts untrained at another."""
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        untrained = (*CLASSIFIERS, *new_parts(self.network))
        new = [p for name, p in trained.items() if name.startswith(untrained)]
        if self.config.optim.new_layers == 1 or not new:
            return [{"params": list(trained.values())}]
        old = [p for name, p in trained.items() if not name.startswith(untrained)]
        return [{"params": old}, {"params": new, "lr": self.lr * self.config.optim.new_layers}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["cgnl"] |= {
            "config": plain(self.config),
            "classes": list(self.classes),
            "kind": self.kind,
            **self.about(),
            "results": dict(self.results),
            "problems": sorted(self.problems),
            "tally": self.train_tally.sums(),
            "counts": list(self.counts),
            "chosen": self.chosen,
            "finished": bool(self.trainer.should_stop),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.problems = set(checkpoint["cgnl"]["problems"])
        self.results = dict(checkpoint["cgnl"]["results"])
        if self.global_rank == 0:  # the sums are those of all processes
            self.train_tally.restore(checkpoint["cgnl"]["tally"])


class Classification(TaskModule):
    """A network that learns to name samples."""

    TRAIN_COLUMNS = ("loss", "top1")

    train_tally: Tally

    def __init__(self, network: nn.Module, config: Config, *rest: Any, **options: Any):
        super().__init__(network, config, *rest, **options)
        self.test_tally, self.view_tally = Tally(), Tally()
        self._said: list[tuple[Tensor, Tensor]] = []
        if config.compile:
            network.compile()

    def make_tally(self) -> Tally:
        return Tally()

    def forward(self, pixels: Tensor) -> Tensor:
        """uint8 [B, 3, H, W] or [B, T, 3, H, W] -> [B, K]."""
        # Tests do not run the compiled network: their last batch has a size of its own, and compiling takes longer.
        network = self.network if self.training else self.network.forward
        return network(network_input(pixels, self.config.channels_last)).float()

    def learn(self, batch: Batch) -> Tensor:
        logits = self(batch.pixels)
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=self.config.optim.label_smoothing)
        self.train_tally.update(loss, ranked(logits.detach(), TOP)[1], batch.labels)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        self.note(batch)
        if not len(batch.labels):
            return
        views = batch.pixels.shape[1]
        parts = batch.pixels.flatten(0, 1).split(self.at_once)
        logits = torch.cat([self(part) for part in parts])  # [B * V, K]
        labels, of_views = batch.labels.repeat_interleave(views), logits.softmax(1)
        self.view_tally.update(F.cross_entropy(logits, labels), ranked(of_views, TOP)[1], labels)
        scores = of_views.unflatten(0, (-1, views)).mean(1)  # [B, K]
        best, classes = ranked(scores, TOP)  # once, so that results and predictions are of one ranking
        self.test_tally.update(F.nll_loss(scores.clamp_min(1e-30).log(), batch.labels), classes, batch.labels)
        said = torch.stack((batch.labels.double(), classes[:, 0].double(), best[:, 0].double()), 1)  # [B, 3]
        self._said.append((batch.samples, said))  # it stays on the device until the end, so that nothing waits

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self._said = []

    def on_validation_epoch_end(self) -> None:
        self.gather_problems()
        results, views = self.test_tally.compute(), self.view_tally.compute()
        self.conclude_test(results)
        if self.kind == "videos":
            self.results["test_clip_top1"] = views["top1"]
            self.results["test_views"] = views["count"] // results["count"]
        for tally in (self.test_tally, self.view_tally):
            tally.reset()
        mine = [
            Prediction(sample, int(label), int(predicted), score)
            for samples, said in self._said
            for sample, (label, predicted, score) in zip(samples.tolist(), said.tolist(), strict=True)
        ]
        self.predictions = sorted(prediction for process in distributed.all_gather(mine) for prediction in process)
