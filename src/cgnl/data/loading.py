"""Batches of views. They depend on seed, epoch and sample alone, not on the worker or rank that loads them."""

import copy
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from .augment import Augmentation, Mix, augment, mix
from .index import UnreadableError
from .sources import Source
from .transforms import AREA, generator, random_crop, resize, resize_all, spread_crops
from .video import clip_indices, spread_clip_starts

MAX_UNCROPPED_SIDE = 1024
"""Longest side of a square input that is not cropped."""
K = TypeVar("K", int, "EpochSample")
T = TypeVar("T")


class EpochSample(NamedTuple):
    """A sample in an epoch."""

    epoch: int
    sample: int
    """Its number, plus the number of all samples for each time that it was drawn in this epoch already."""


class Batch(NamedTuple):
    """Samples for one step."""

    pixels: Tensor
    """uint8, float32 if mixed. Training: [B, 3, H, W] or [B, T, 3, H, W]. Testing: [B, V, ...], all views of each."""
    labels: Tensor
    """Classes [B], or shares of classes [B, K] if mixed."""
    samples: Tensor
    problems: tuple[str, ...]
    """One sentence for each file that could not be read."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """If given, the pixels are packed crops of these shapes, which ``to`` flips and resizes."""
    flips: tuple[bool, ...] = ()
    size: int = 0
    mix: Mix | None = None
    """If given, ``to`` mixes the samples."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that ``to`` moves."""
        return self.pixels, self.labels

    def to(self, device: torch.device | str) -> "Batch":
        """Move the batch to a device, resize packed crops there, and mix the samples."""
        pixels, labels = self.pixels.to(device, non_blocking=True), self.labels
        if pixels.is_cuda and not labels.is_cuda:  # a copy from pageable memory would wait for the previous step
            labels = (labels if labels.is_pinned() else labels.pin_memory()).to(device, non_blocking=True)
        if self.shapes:
            pixels = resize_all(unpack(pixels, self.shapes), self.flips, self.size)
        if self.mix is not None:
            pixels, labels = mix(pixels, labels, self.mix)
        return Batch(pixels, labels, self.samples, self.problems)


@dataclass(frozen=True)
class View:
    """Which crops and clips of a sample the network sees."""

    size: int | None
    """Side of the square; None to keep the pixels as they are."""
    area: tuple[float, float] = AREA
    flip: bool = True
    short_side: int = 256
    frames: int = 32
    stride: int = 2
    clips: int = 1
    crops: int = 1


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Join uint8 tensors of any shapes to one row, because workers send one tensor faster than many."""
    return torch.cat([t.flatten() for t in tensors]) if tensors else torch.empty(0, dtype=torch.uint8)


def unpack(row: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The tensors that were packed."""
    parts = row.split([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def read_all(
    read: Callable[[K, int], T], keys: Sequence[K], count: int, bad_limit: int = 0
) -> tuple[list[T], tuple[str, ...]]:
    """Read the sample of each key, or one of the ``bad_limit`` next; also return what is wrong with the others.

    ``read`` takes a key and the number of a sample, of which there are ``count``.
    """
    found, problems = [], []
    for key in keys:
        first = key.sample if isinstance(key, EpochSample) else key
        for index in ((first + step) % count for step in range(min(count, bad_limit + 1))):
            try:
                found.append(read(key, index))
                break
            except UnreadableError as error:
                problems.append(str(error))
    return found, tuple(problems)


@dataclass(eq=False)
class TrainSet(Dataset[Batch]):
    """A random view of each sample. One that cannot be read is replaced by the next that can.

    With ``resize_later``, the device resizes: loading is then twice as fast, and a GPU hardly notices. Samples that are
    augmented are resized first, so it has no effect on them.
    """

    source: Source
    view: View
    seed: int
    bad_limit: int
    resize_later: bool = False
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        if self.view.size is None or self.augmentation.changes_samples:
            self.resize_later = False

    def __getitems__(self, keys: Sequence[EpochSample]) -> Batch:
        found, problems = read_all(self._read, keys, len(self.source), self.bad_limit)
        if not found:
            return _batch([], [], problems, pack([]))
        places, crops, flips, labels, samples = zip(*found, strict=True)
        size, how = self.view.size, self.augmentation
        if size is not None:
            crops = [resize(part, size, size) if max(part.shape[-2:]) > 2 * size else part for part in crops]
        mixing = how.draw_mix(self.seed, keys[0].epoch, [key.sample for key in keys])
        if self.resize_later:
            shapes = tuple(tuple(part.shape) for part in crops)
            batch = _batch(labels, samples, problems, pack(crops))
            return batch._replace(shapes=shapes, flips=flips, size=size, mix=mixing)
        pixels = torch.stack(list(crops)) if size is None else resize_all(crops, flips, size)
        if how.changes_samples:
            pixels = torch.stack([augment(p, how, self.seed, *key) for p, key in zip(pixels, places, strict=True)])
        return _batch(labels, samples, problems, pixels)._replace(mix=mixing)

    def _read(self, key: EpochSample, index: int) -> tuple[EpochSample, Tensor, bool, int, int]:
        """The key, a random crop, not yet resized, whether to flip it, and the label and number of the sample."""
        view, rng = self.view, generator(self.seed, *key)
        pixels = self.source.read(index, lambda n: clip_indices(n, view.frames, view.stride, generator=rng))
        part, flip = (pixels, False) if view.size is None else random_crop(pixels, rng, view.area, view.flip)
        return key, part, flip, self.source.label(index), index


@dataclass(eq=False)
class EvalSet(Dataset[Batch]):
    """All views of each sample, [V, ...]: the centre of an image, or crops of clips of a video."""

    source: Source
    view: View

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        found, problems = read_all(self._read, indices, len(self.source))
        views, labels, samples = zip(*found, strict=True) if found else ((), (), ())
        return _batch(labels, samples, problems, torch.stack(views) if views else pack([]))

    def _read(self, _: int, index: int) -> tuple[Tensor, int, int]:
        """The views, label and number of a sample."""
        view = self.view
        pixels = self.source.read(index, self._frames)
        height, width = pixels.shape[-2:]
        if view.size is not None:
            pixels = spread_crops(pixels, view.size, view.short_side, view.crops)
        elif height * width > MAX_UNCROPPED_SIDE**2:
            reason = f"{width} x {height} pixels are too many for a network that sees files as they are"
            raise UnreadableError(self.source.name(index), reason)
        else:
            pixels = pixels[None]
        if pixels.ndim == 5:  # [crops, clips * T, 3, H, W] -> [crops * clips, T, 3, H, W]
            pixels = pixels.unflatten(1, (view.clips, view.frames)).flatten(0, 1)
        return pixels, self.source.label(index), index

    def _frames(self, count: int) -> list[int]:
        view = self.view
        starts = spread_clip_starts(count, view.clips, view.frames, view.stride)
        return [i for start in starts for i in clip_indices(count, view.frames, view.stride, start)]


@dataclass(eq=False)
class TrainBatchSampler(Sampler[list[EpochSample]]):
    """The batches of a whole run, epoch after epoch, from batch number ``first`` on.

    Every epoch is a permutation of the samples; those that do not fill a batch are left out. Each rank takes its share
    of each step, so that together they see the batches of a single one. With ``groups``, the group of each sample, a
    batch is of one group if there are enough. With ``labels``, the class of each sample, an epoch has as many samples
    of each class. With ``shards``, the shard of each sample, only those of ``window`` shards are mixed at a time.
    """

    count: int
    batch_size: int
    epochs: int
    seed: int
    _: KW_ONLY
    first: int = 0
    rank: int = 0
    world: int = 1
    accumulate: int = 1
    groups: Sequence[int] | None = None
    labels: Sequence[int] | None = None
    shards: Sequence[int] | None = None
    window: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % (self.world * self.accumulate) or not self.batch_size <= self.count:
            parts = f"{self.world} x {self.accumulate} equal parts out of {self.count} samples"
            raise ValueError(f"a batch of {self.batch_size} cannot be cut into {parts}")

    @property
    def batches_per_epoch(self) -> int:
        return self.count // self.batch_size * self.accumulate

    def __len__(self) -> int:
        """Batches of the whole run, with those before ``first``."""
        return self.epochs * self.batches_per_epoch

    def __iter__(self) -> Iterator[list[EpochSample]]:
        share = self.batch_size // self.accumulate  # samples of a micro-batch over all ranks
        for epoch in range(self.first // self.batches_per_epoch, self.epochs):
            rng = generator(self.seed, epoch)
            order = torch.randperm(self.count, generator=rng).tolist()
            if self.labels is not None:
                order = balance(order, self.labels, rng)
            if self.shards is not None:
                order = group_shards(order, self.shards, self.window)
            if self.groups is not None:
                order = group_batches(order, self.groups, self.batch_size)
            begin = max(self.first - epoch * self.batches_per_epoch, 0)
            for batch in range(begin, self.batches_per_epoch):
                part = order[batch * share : (batch + 1) * share]
                yield [EpochSample(epoch, index) for index in part[self.rank :: self.world]]


def balance(order: Sequence[int], labels: Sequence[int], rng: torch.Generator) -> list[int]:
    """Choose as many samples as there are, each class equally often, from samples in random order.

    Every sample of a class is drawn before one is drawn again, which has the number of all samples added to its own.
    """
    by_class: dict[int, list[int]] = {}
    for sample in order:
        by_class.setdefault(labels[sample], []).append(sample)
    each, more = divmod(len(order), len(by_class))  # the first classes of the order get one more
    chosen = []
    for turn, samples in enumerate(by_class.values()):
        draws = range(each + (turn < more))
        chosen += [samples[n % len(samples)] + n // len(samples) * len(order) for n in draws]
    return [chosen[i] for i in torch.randperm(len(chosen), generator=rng).tolist()]


def group_shards(order: Sequence[int], shards: Sequence[int], window: int) -> list[int]:
    """Reorder the samples so that those of ``window`` shards come before any of the next; random as the order is."""
    turns: dict[int, int] = {}
    for sample in order:
        turns.setdefault(shards[sample], len(turns))
    return sorted(order, key=lambda sample: turns[shards[sample]] // window)


def group_batches(order: Sequence[int], groups: Sequence[int], batch_size: int) -> list[int]:
    """Reorder the samples so that batches are of one group, in the order they fill up; the remainder comes last."""
    batches: list[int] = []
    waiting: dict[int, list[int]] = {}
    for sample in order:
        group = waiting.setdefault(groups[sample], [])
        group.append(sample)
        if len(group) == batch_size:
            batches += group
            group.clear()
    return batches + [sample for _, group in sorted(waiting.items()) for sample in group]


class EvalBatches(BatchSampler):
    """Every sample once, in order: each of n ranks takes every n-th, without padding."""

    def __init__(self, count: int, batch_size: int, rank: int = 0, world: int = 1):
        super().__init__(range(rank, count, world), batch_size, drop_last=False)


def _batch(labels: Sequence[int], samples: Sequence[int], problems: tuple[str, ...], pixels: Tensor) -> Batch:
    return Batch(pixels, torch.tensor(labels, dtype=torch.long), torch.tensor(samples, dtype=torch.long), problems)


def make_loader(dataset: Dataset, batches: Sampler, workers: int, pin_memory: bool = False) -> DataLoader:
    """A loader of these batches. Samples cached on a device need ``workers=0``: its own process reads them."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=_pass_through,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_outlive_signals if workers else None,
    )


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


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pass_through(batch: T) -> T:
    """In place of collating: datasets with ``__getitems__`` return batches."""
    return batch


def _outlive_signals(_: int) -> None:
    """Keep a worker alive for a second after a signal, which the main process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.setitimer(signal.ITIMER_REAL, 1))
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
