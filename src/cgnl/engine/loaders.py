"""Loaders for one process of a run."""

import copy
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ..data.detection import DetectionEvalSet, DetectionTrainSet, aspect_groups
from ..data.loading import EvalBatches, EvalSet, TrainBatches, TrainSet, loader
from ..data.sources import CachedSource, Source
from .config import SYNTHETIC, Config
from .datasets import Dataset, view_in_test, view_in_training

log = logging.getLogger("cgnl")


@dataclass(frozen=True)
class CudaPrefetcher:
    """Batches that a GPU takes and resizes on a stream of their own, while it is busy with the step before."""

    batches: DataLoader
    device: torch.device

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        aside, batches = torch.cuda.Stream(self.device), iter(self.batches)
        while True:
            with torch.cuda.stream(aside):
                batch = next(batches, None)
                if batch is None:
                    return
                batch = batch.to(self.device)
            here = torch.cuda.current_stream(self.device)
            here.wait_stream(aside)
            for tensor in batch.tensors():
                tensor.record_stream(here)  # or its memory would be given away before the step has read it
            yield batch


def read_again(batches: DataLoader | CudaPrefetcher, number: int) -> Any:
    """One of the training batches, by its number, read once more by the process that asks."""
    loader: Any = batches.batches if isinstance(batches, CudaPrefetcher) else batches
    sampler = copy.copy(loader.batch_sampler)
    sampler.first = number
    return loader.collate_fn(loader.dataset.__getitems__(next(iter(sampler))))


@dataclass
class Loaders:
    """What process ``rank`` of ``world`` reads, for the device it computes on."""

    config: Config
    dataset: Dataset
    device: torch.device
    rank: int = 0
    world: int = 1
    held: dict[str, CachedSource] = field(default_factory=dict)
    """Samples by split that were decoded before; runs of one process may share them."""

    def train(self, batch_size: int, epochs: int, first: int = 0) -> DataLoader | CudaPrefetcher:
        """The training batches of all epochs, from number ``first`` on."""
        data, seed, accumulate = self.config.data, self.config.seed, self.config.optim.accumulate
        source, groups = self.dataset.train, None
        if isinstance(source, tuple):
            samples, groups = DetectionTrainSet(source, seed, data.flip, data.bad_limit), aspect_groups(source)
        else:
            later = self.device.type == "cuda" and data.cache == "none"
            held = self._source("train", source)
            samples = TrainSet(held, view_in_training(data), seed, data.bad_limit, later)
        share = {"rank": self.rank, "world": self.world, "accumulate": accumulate}
        batches = TrainBatches(len(source), batch_size, epochs, seed, first=first, groups=groups, **share)
        loader = self._loader(samples, batches)
        return CudaPrefetcher(loader, self.device) if self.device.type == "cuda" else loader

    def test(self, batch_size: int, full: bool) -> DataLoader:
        """Every test sample once, with all its views or one."""
        source, at_once = self.dataset.test, batch_size
        if isinstance(source, tuple):
            samples = DetectionEvalSet(source)
        else:
            view = view_in_test(self.config.data, self.dataset.kind, full)
            samples = EvalSet(self._source("test", source), view)
            at_once = max(1, batch_size // (view.clips * view.crops))
        return self._loader(samples, EvalBatches(len(source), at_once, self.rank, self.world))

    def _source(self, split: str, source: Source) -> Source:
        """The samples, decoded once where that is asked for."""
        if self.config.data.cache == "none":
            return source
        if split not in self.held or not self.held[split].holds(source, self.device):
            self.held.pop(split, None)  # or there would be two of them for a while
            self.held[split] = held = CachedSource(source, self.device, self._workers())
            log.info("%s samples decoded: %.1f GiB held on %s", split, held.bytes / 2**30, self.device)
        return self.held[split]

    def _loader(self, samples: TorchDataset, batches: TrainBatches | EvalBatches) -> DataLoader:
        held = self.config.data.cache == "gpu"  # read by the process that owns the device
        return loader(samples, batches, 0 if held else self._workers(), self.device.type == "cuda" and not held)

    def _workers(self) -> int:
        """How many processes read samples."""
        if self.config.data.workers is not None:
            return self.config.data.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.device.type == "cuda":
            return min(16, max(1, cores // (self.config.devices or 1)))
        return 0 if self.dataset.name in SYNTHETIC else min(1, cores - 1)
