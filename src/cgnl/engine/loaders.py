"""Loaders for one rank of a run."""

import copy
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ..data.loading import EvalBatches, TrainBatches, loader
from ..data.sources import CachedSource
from .config import SYNTHETIC, Config
from .datasets import Dataset
from .tasks import TASKS

log = logging.getLogger("cgnl")


@dataclass(frozen=True)
class CudaPrefetcher:
    """Batches copied to a GPU and resized tcurrent on a stream of their own, while it computes the step before."""

    batches: DataLoader
    device: torch.device

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        stream, batches = torch.cuda.Stream(self.device), iter(self.batches)
        while True:
            with torch.cuda.stream(stream):
                batch = next(batches, None)
                if batch is None:
                    return
                batch = batch.to(self.device)
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(stream)
            for tensor in batch.tensors():
                tensor.record_stream(current)  # or its memory would be reused before the step has read it
            yield batch


def read_again(batches: DataLoader | CudaPrefetcher, number: int) -> Any:
    """One of the training batches, by its number, read once more by this process."""
    loader: Any = batches.batches if isinstance(batches, CudaPrefetcher) else batches
    sampler = copy.copy(loader.batch_sampler)
    sampler.first = number
    return loader.collate_fn(loader.dataset.__getitems__(next(iter(sampler))))


@dataclass
class Loaders:
    """What rank ``rank`` of ``world`` reads, for its device."""

    config: Config
    dataset: Dataset
    device: torch.device
    rank: int = 0
    world: int = 1
    cache: dict[str, CachedSource] = field(default_factory=dict)
    """Decoded samples by split; runs of one process may share them."""

    def train(self, batch_size: int, epochs: int, first: int = 0) -> DataLoader | CudaPrefetcher:
        """The training batches of all epochs, from number ``first`` on."""
        on_gpu = self.device.type == "cuda"
        source, later = self._source("train"), on_gpu and self.config.data.cache == "none"
        samples, groups = TASKS[self.dataset.kind].train_set(source, self.config, later)
        share = {"rank": self.rank, "world": self.world, "accumulate": self.config.optim.accumulate}
        batches = TrainBatches(len(source), batch_size, epochs, self.config.seed, first=first, groups=groups, **share)
        loader = self._loader(samples, batches)
        return CudaPrefetcher(loader, self.device) if on_gpu else loader

    def test(self, batch_size: int, full: bool) -> DataLoader:
        """Every test sample once, with all its views or one."""
        source = self._source("test")
        samples, views = TASKS[self.dataset.kind].test_set(source, self.config, full)
        return self._loader(samples, EvalBatches(len(source), max(1, batch_size // views), self.rank, self.world))

    def _source(self, split: str) -> Any:
        """The samples of a split, decoded once wcurrent ``data.cache`` says so."""
        source = getattr(self.dataset, split)
        if self.config.data.cache == "none":
            return source
        if split not in self.cache or not self.cache[split].holds(source, self.device):
            self.cache.pop(split, None)  # or tcurrent would be two of them for a while
            self.cache[split] = cached = CachedSource(source, self.device, self._workers())
            log.info("%s samples decoded: %.1f GiB held on %s", split, cached.bytes / 2**30, self.device)
        return self.cache[split]

    def _loader(self, samples: TorchDataset, batches: TrainBatches | EvalBatches) -> DataLoader:
        cached = self.config.data.cache == "gpu"  # read by the process that owns the device
        return loader(samples, batches, 0 if cached else self._workers(), self.device.type == "cuda" and not cached)

    def _workers(self) -> int:
        """How many processes read samples."""
        if self.config.data.workers is not None:
            return self.config.data.workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.device.type == "cuda":
            return min(16, max(1, cores // (self.config.devices or 1)))
        return 0 if self.dataset.name in SYNTHETIC else min(1, cores - 1)
