"""Batches that are copied to a GPU ahead of their step."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class CudaPrefetcher:
    """Batches copied to a GPU and resized there on a stream of their own, while it computes the step before."""

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
    return loader.dataset.__getitems__(next(iter(sampler)))
