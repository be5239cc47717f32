"""The contract of a task: its samples and loaders, loss, metric and wording. The training loop knows no more."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ...data.index import IMAGE_SUFFIXES, Kind, has_suffix
from ...data.loading import CudaPrefetcher, EvalBatches, TrainBatchSampler, View, count_cores, make_loader
from ...data.sources import CachedSource
from ...models import is_detector
from ...text import counted
from .. import distributed
from ..datasets import Dataset, central_view, short_side_in_test
from ..predictions import Prediction
from ..settings import SYNTHETIC, Config, Data

log = logging.getLogger("cgnl")


class Sums:
    """Running sums over the samples of this rank, in float64; ``read`` adds those of all ranks."""

    def __init__(self, *names: str, device: torch.device | str = "cpu"):
        self.names = (*names, "count")
        self.values = torch.zeros(len(self.names), dtype=torch.float64, device=device)

    def add(self, count: int, **sums: Tensor) -> None:
        """Add the sums over ``count`` samples; nothing waits for the device."""
        for name, value in sums.items():
            self.values[self.names.index(name)].add_(value.detach())
        self.values[-1].add_(count)

    def read(self) -> list[float]:
        total = self.values.clone()
        if distributed.world_size() > 1:
            dist.all_reduce(total)
        return total.tolist()

    def means(self) -> dict[str, Any]:
        """Each sum divided by the count, and the count itself."""
        *sums, count = self.read()
        means = {name: value / max(count, 1.0) for name, value in zip(self.names, sums, strict=False)}
        return {**means, "count": int(count)}


def list_labels(source: Any) -> list[int]:
    """The class of each sample."""
    return [source.label(index) for index in range(len(source))]


class Task(ABC):
    """A network with its training and test samples, as one rank of a run sees them."""

    kind: ClassVar[Kind]
    sample: ClassVar = "image"
    """What a training sample is called."""
    file: ClassVar = "image"
    """What a file is called."""
    suffixes: ClassVar[frozenset[str]] = IMAGE_SUFFIXES
    """Of its files."""
    metric: ClassVar = "top1"
    """The result by which tests are compared."""
    default_network: ClassVar[str]
    default_lr: ClassVar[float | None] = None
    """If not given, it depends on the weights to start from."""
    fixed_size: ClassVar = True
    """Whether all inputs of a run have one size, so that it can be compiled and its samples cached."""
    classifies: ClassVar = True
    """Whether there is one prediction for each sample."""
    has_frames: ClassVar = False
    """Whether samples are clips."""
    memory_format: ClassVar = torch.channels_last
    train_sums: ClassVar[Sequence[str]] = ("loss",)
    """Summed in training."""
    train_columns: ClassVar[Sequence[str]] = ("loss",)
    """Those of them that are in ``metrics.csv``."""

    def __init__(
        self,
        network: nn.Module,
        config: Config,
        dataset: Dataset,
        device: torch.device,
        batch_size: int = 1,
        cache: dict[str, CachedSource] | None = None,
    ):
        self.network, self.config, self.dataset, self.device = network, config, dataset, device
        self.micro_batch = max(1, config.micro_batch(batch_size))
        """Samples that the network gets at a time."""
        self.cache = {} if cache is None else cache
        """Decoded samples by split; runs of one process may share them."""
        self.sums = Sums(*self.train_sums, device=device)
        self.problems: set[str] = set()
        """Sentences on files that could not be read."""
        self.results: dict[str, float] = {}
        """Of the last test."""
        self.predictions: list[Prediction] = []
        """Of the last test, in the order of the samples."""
        network.to(device)
        if config.channels_last:
            network.to(memory_format=self.memory_format)

    @abstractmethod
    def train_set(self, source: Any) -> tuple[TorchDataset, Sequence[int] | None]:
        """The samples to learn from, and a group for each where batches are of one group."""

    @abstractmethod
    def test_set(self, source: Any, full: bool) -> tuple[TorchDataset, int]:
        """The samples to test on, and how many views each has."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch, which is added to the sums."""

    @abstractmethod
    def test_step(self, network: nn.Module, batch: Any) -> None:
        """Test one batch."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The results of what was tested, over all ranks."""

    @classmethod
    @abstractmethod
    def describe(cls, test: dict[str, float], classes: int) -> list[str]:
        """The results of a test in words."""

    @classmethod
    def fits(cls, name: str) -> bool:
        """Whether a network is for this task."""
        return is_detector(name) != cls.classifies

    @classmethod
    def view_in_test(cls, data: Data, full: bool = True) -> View:  # noqa: ARG003
        """How the network sees test samples: in full, or one view of each."""
        return central_view(data, short_side_in_test(data))

    @classmethod
    def find_files(cls, folder: Path) -> list[Path]:
        """The files in a folder that a network of this task takes."""
        return [path for path in sorted(folder.rglob("*")) if path.is_file() and has_suffix(path, cls.suffixes)]

    def train_batches(self, batch_size: int, epochs: int, first: int = 0) -> DataLoader | CudaPrefetcher:
        """The training batches of all epochs, from number ``first`` on."""
        source = self._source("train")
        samples, groups = self.train_set(source)
        rank, accumulate = distributed.current_rank().rank, self.config.optim.accumulate
        labels = list_labels(source) if self.config.data.balance == "sampling" else None
        share: dict[str, Any] = {"rank": rank, "world": self.config.world, "accumulate": accumulate}
        share |= {"groups": groups, "labels": labels}
        if self.config.data.shard_window is not None:
            share |= {"shards": self.dataset.train.shards(), "window": self.config.data.shard_window}
        batches = TrainBatchSampler(len(source), batch_size, epochs, self.config.seed, first=first, **share)
        loader = self._loader(samples, batches)
        return CudaPrefetcher(loader, self.device) if self.device.type == "cuda" else loader

    def test_batches(self, full: bool) -> DataLoader:
        """Every test sample once, with all its views or one."""
        source = self._source("test")
        samples, views = self.test_set(source, full)
        rank, batch_size = distributed.current_rank().rank, max(1, self.micro_batch // views)
        return self._loader(samples, EvalBatches(len(source), batch_size, rank, self.config.world))

    def _source(self, split: str) -> Any:
        """The samples of a split, decoded once where ``data.cache`` says so."""
        source = getattr(self.dataset, split)
        if self.config.data.cache == "none":
            return source
        if split not in self.cache or not self.cache[split].holds(source, self.device):
            self.cache.pop(split, None)  # before the new one is made, which may fill the memory
            self.cache[split] = cached = CachedSource(source, self.device, self._workers())
            log.info("%s samples decoded: %.1f GiB held on %s", split, cached.bytes / 2**30, self.device)
        return self.cache[split]

    def _loader(self, samples: TorchDataset, batches: TrainBatchSampler | EvalBatches) -> DataLoader:
        cached = self.config.data.cache == "gpu"  # read by the process that owns the device
        return make_loader(
            samples, batches, 0 if cached else self._workers(), self.device.type == "cuda" and not cached
        )

    def _workers(self) -> int:
        """How many processes read samples."""
        if self.config.data.workers is not None:
            return self.config.data.workers
        cores = count_cores()
        if self.device.type == "cuda":
            return min(16, max(1, cores // (self.config.devices or 1)))
        return 0 if self.dataset.name in SYNTHETIC else min(1, cores - 1)

    def start_test(self, network: nn.Module) -> None:
        """Begin a test. All ranks use the buffers of rank 0, which are the ones that are saved."""
        if distributed.world_size() > 1:
            for buffer in network.buffers():
                dist.broadcast(buffer, src=0)

    def end_test(self) -> dict[str, float]:
        """Keep the results of a test, if anything was tested."""
        self.gather_problems()
        results = self.compute()
        if not results["count"]:
            raise ValueError(f"no test sample could be read; one is: {sorted(self.problems)[0]}")
        self.results = {f"test_{name}": value for name, value in results.items()}
        return self.results

    def note(self, batch: Any) -> None:
        """Count the samples of a batch that could not be read."""
        self._add_problems(set(batch.problems), check=distributed.world_size() == 1)

    def gather_problems(self) -> None:
        """Let every rank know what the others could not read."""
        self._add_problems(set().union(*distributed.all_gather(self.problems)), check=True)

    def _add_problems(self, problems: set[str], check: bool) -> None:
        """Log new problems; stop if there are too many. Ranks check together, so that they stop together."""
        for problem in sorted(problems - self.problems):
            log.warning("skipped: %s", problem)
        self.problems |= problems
        limit = self.config.data.bad_limit
        if check and len(self.problems) > limit:
            many, one = counted(len(self.problems), "sample"), sorted(self.problems)[0]
            raise ValueError(f"{many} cannot be read, which is more than data.bad_limit = {limit}; one is: {one}")
