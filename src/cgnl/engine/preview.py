"""A training batch, loaded as the training loads it."""

import dataclasses

import torch
from torch import nn

from ..data.loading import Batch
from .datasets import Dataset, open_dataset
from .distributed import find_accelerator
from .settings import Config
from .tasks import TASKS
from .train import choose_batch_size, resolve


def load_batch(config: Config, epoch: int = 1) -> tuple[Batch, Dataset]:
    """The first training batch of an epoch, counted from 1, as the network sees it, and its dataset."""
    dataset = open_dataset(config.data)
    task = TASKS[dataset.kind]
    if not task.classifies:
        raise ValueError(f"{dataset.name} has objects, and only images and clips are shown")
    config = resolve(config, dataset)
    # Neither changes a batch: workers would load more of them, and a cache the whole dataset.
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, workers=0, cache="none"))
    batch_size, accumulate = choose_batch_size(config, len(dataset.train)), config.optim.accumulate
    loading = task(nn.Identity(), config, dataset, torch.device(find_accelerator(config)))
    first = (epoch - 1) * (len(dataset.train) // batch_size) * accumulate
    batch = next(iter(loading.train_batches(batch_size, epoch, first)))
    if not len(batch.samples):
        raise ValueError(f"nothing of the batch can be read: {batch.problems[0]}")
    return batch.to(loading.device), dataset
