"""Batches of views. What is in them follows from seed, epoch and sample: not from who loads them, nor from where."""

import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from .index import UnreadableError
from .rng import generator
from .sources import Source
from .transforms import centre_view, random_part, resize, resize_all, spread_crops
from .video import clip_indices, spread_clip_starts

AS_THEY_ARE = 1024
"""Pixels in the square root of what a network may be given that sees files as they are."""


class Place(NamedTuple):
    """Which sample, and in which epoch it is seen."""

    epoch: int
    sample: int


class Item(NamedTuple):
    """A sample as the network sees it, or no pixels where it could not be read."""

    pixels: Tensor | None
    label: int
    sample: int
    problems: tuple[str, ...]


class Layout(NamedTuple):
    """How parts of different sizes that lie one behind the other become squares."""

    shapes: tuple[tuple[int, ...], ...]
    flips: tuple[bool, ...]
    size: int


class Batch(NamedTuple):
    """Samples for one step."""

    pixels: Tensor
    """uint8. Training: [B, 3, H, W] or [B, T, 3, H, W]. Testing: [B, V, ...], all views of each sample."""
    labels: Tensor
    samples: Tensor
    problems: tuple[str, ...]
    """A sentence for each file that could not be read."""
    layout: Layout | None = None
    """If there is one, the pixels lie in a row, and are resized by the device that takes them."""

    def tensors(self) -> tuple[Tensor, ...]:
        """What lies on a device."""
        return self.pixels, self.labels

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device, with its pixels as squares."""
        pixels, labels = self.pixels.to(device, non_blocking=True), self.labels
        if pixels.is_cuda and not labels.is_cuda:  # a copy from pageable memory would wait for the step before
            labels = (labels if labels.is_pinned() else labels.pin_memory()).to(device, non_blocking=True)
        if self.layout is not None:
            shapes, flips, size = self.layout
            parts = pixels.split([math.prod(shape) for shape in shapes])
            pixels = resize_all([p.view(shape) for p, shape in zip(parts, shapes, strict=True)], flips, size)
        return Batch(pixels, labels, self.samples, self.problems)


@dataclass(frozen=True)
class View:
    """How samples are seen."""

    size: int | None
    """Side of the square; None for pixels as they are."""
    area: tuple[float, float] = (0.08, 1.25)
    flip: bool = True
    short_side: int = 256
    frames: int = 32
    stride: int = 2
    clips: int = 1
    crops: int = 1


Read = TypeVar("Read")


def first_readable(
    read: Callable[[int], Read], sample: int, count: int, bad_limit: int
) -> tuple[Read | None, int, tuple[str, ...]]:
    """A sample, or the next that can be read; its number; and a sentence for each that could not."""
    problems: list[str] = []
    for index in ((sample + step) % count for step in range(min(count, bad_limit + 1))):
        try:
            return read(index), index, tuple(problems)
        except UnreadableError as error:
            problems.append(str(error))
    return None, sample, tuple(problems)


class TrainSet(Dataset[Item]):
    """A random view of each sample. One that cannot be read is replaced by the next that can.

    ``resize_later`` leaves it to the device to resize: reading is then twice as fast, and a GPU hardly notices.
    """

    def __init__(self, source: Source, view: View, seed: int, bad_limit: int, resize_later: bool = False):
        self.source, self.view, self.seed, self.bad_limit = source, view, seed, bad_limit
        self.resize_later = resize_later

    def __getitem__(self, place: Place) -> Item:
        item, flip = self._part(place)
        if item.pixels is None or self.view.size is None:
            return item
        return item._replace(pixels=resize_all([item.pixels], [flip], self.view.size)[0])

    def __getitems__(self, places: Sequence[Place]) -> Batch:
        pairs = [self._part(place) for place in places]
        items, size = [item for item, _ in pairs], self.view.size
        flips = tuple(flip for item, flip in pairs if item.pixels is not None)
        parts = [item.pixels for item in items if item.pixels is not None]
        if size is None or not parts:
            return _batch(items, parts)
        parts = [resize(part, size, size) if max(part.shape[-2:]) > 2 * size else part for part in parts]
        if not self.resize_later:
            return _batch(items, resize_all(parts, flips, size))
        row = torch.cat([part.flatten() for part in parts])
        return _batch(items, row, Layout(tuple(tuple(part.shape) for part in parts), flips, size))

    def _part(self, place: Place) -> tuple[Item, bool]:
        """The part of a sample that is seen, and whether it is to be mirrored."""
        read = lambda index: self._read(index, generator(self.seed, *place))  # noqa: E731
        found, index, problems = first_readable(read, place.sample, len(self.source), self.bad_limit)
        if found is None:
            return Item(None, -1, index, problems), False
        return Item(found[0], self.source.label(index), index, problems), found[1]

    def _read(self, index: int, draws: torch.Generator) -> tuple[Tensor, bool]:
        view = self.view
        pixels = self.source.read(index, lambda n: clip_indices(n, view.frames, view.stride, generator=draws))
        return (pixels, False) if view.size is None else random_part(pixels, draws, view.area, view.flip)


class EvalSet(Dataset[Item]):
    """All views of each sample, [V, ...]: crops of clips for a video, the centre of a picture."""

    def __init__(self, source: Source, view: View):
        self.source, self.view = source, view

    def __getitem__(self, index: int) -> Item:
        try:
            return Item(self._views(index), self.source.label(index), index, ())
        except UnreadableError as error:
            return Item(None, self.source.label(index), index, (str(error),))

    def _views(self, index: int) -> Tensor:
        view = self.view
        pixels = self.source.read(index, self._frames)
        height, width = pixels.shape[-2:]
        if view.size is None and height * width > AS_THEY_ARE**2:
            reason = f"{width} x {height} pixels are too many for a network that sees files as they are"
            raise UnreadableError(self.source.name(index), reason)
        if self.source.kind == "images":
            return (pixels if view.size is None else centre_view(pixels, view.size, view.short_side))[None]
        if view.size is None:
            return pixels.unflatten(0, (view.clips, view.frames))
        crops = spread_crops(pixels, view.size, view.short_side, view.crops)  # [crops, clips * T, 3, S, S]
        return crops.unflatten(1, (view.clips, view.frames)).flatten(0, 1)

    def _frames(self, count: int) -> list[int]:
        view = self.view
        starts = spread_clip_starts(count, view.clips, view.frames, view.stride)
        return [i for start in starts for i in clip_indices(count, view.frames, view.stride, start)]


class TrainBatches(Sampler[list[Place]]):
    """The batches of a whole run, epoch after epoch, from batch number ``first`` on.

    Every epoch is a permutation of the samples, of which those that do not fill a batch are left out. A process takes
    its share of each step, so that together they see what one alone would. With ``groups``, the number of a group for
    each sample, a batch is of one group wherever there are enough.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        epochs: int,
        seed: int,
        *,
        first: int = 0,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        groups: Sequence[int] | None = None,
    ):
        if batch_size % (world * accumulate) or not batch_size <= count:
            raise ValueError(
                f"a batch of {batch_size} cannot be cut into {world} x {accumulate} equal parts out of {count} samples"
            )
        self.count, self.batch_size, self.epochs, self.seed, self.first = count, batch_size, epochs, seed, first
        self.rank, self.world, self.accumulate, self.groups = rank, world, accumulate, groups

    @property
    def batches_per_epoch(self) -> int:
        return self.count // self.batch_size * self.accumulate

    def __len__(self) -> int:
        """Of the whole run, wherever it begins."""
        return self.epochs * self.batches_per_epoch

    def __iter__(self) -> Iterator[list[Place]]:
        share = self.batch_size // self.accumulate  # samples of a part over all processes
        for epoch in range(self.first // self.batches_per_epoch, self.epochs):
            order = torch.randperm(self.count, generator=generator(self.seed, epoch)).tolist()
            if self.groups is not None:
                order = gathered(order, self.groups, self.batch_size)
            begin = max(self.first - epoch * self.batches_per_epoch, 0)
            for batch in range(begin, self.batches_per_epoch):
                part = order[batch * share : (batch + 1) * share]
                yield [Place(epoch, index) for index in part[self.rank :: self.world]]


def gathered(order: Sequence[int], groups: Sequence[int], batch_size: int) -> list[int]:
    """The same samples, batch after batch of one group, in the order the batches fill up; what is left comes last."""
    batches: list[int] = []
    waiting: dict[int, list[int]] = {}
    for sample in order:
        group = waiting.setdefault(groups[sample], [])
        group.append(sample)
        if len(group) == batch_size:
            batches += group
            group.clear()
    return batches + [sample for _, group in sorted(waiting.items()) for sample in group]


class EvalBatches(Sampler[list[int]]):
    """Every sample once, in order: each process takes its own, and nothing is repeated to even them out."""

    def __init__(self, count: int, batch_size: int, rank: int = 0, world: int = 1):
        self.mine, self.batch_size = range(rank, count, world), batch_size

    def __len__(self) -> int:
        return -(-len(self.mine) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, len(self.mine), self.batch_size):
            yield list(self.mine[start : start + self.batch_size])


def collate(items: Any) -> Any:
    """Items to a batch, unless they are one."""
    if not isinstance(items, list):
        return items
    return _batch(items, [item.pixels for item in items if item.pixels is not None])


def _batch(items: Sequence[Item], pixels: Tensor | list[Tensor], layout: Layout | None = None) -> Batch:
    """A batch of those items that could be read; the others are only named."""
    if not isinstance(pixels, Tensor):
        pixels = torch.empty(0, dtype=torch.uint8) if not pixels else default_collate(pixels)
    read = [item for item in items if item.pixels is not None]
    labels, samples = torch.tensor([(i.label, i.sample) for i in read], dtype=torch.long).view(-1, 2).unbind(1)
    problems = tuple(problem for item in items for problem in item.problems)
    return Batch(torch.as_tensor(pixels), labels.clone(), samples.clone(), problems, layout)


def loader(dataset: Dataset, batches: Sampler, workers: int, pin_memory: bool = False) -> DataLoader:
    """A loader of these batches. What a device holds is read by the process that owns it."""
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_leave_interrupts if workers else None,
    )


def _leave_interrupts(_: int) -> None:
    """A signal reaches every process: the one that trains answers it, and needs the others for a moment yet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.setitimer(signal.ITIMER_REAL, 1))
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
