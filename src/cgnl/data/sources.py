"""Where samples come from: files, drawings, or memory."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from .images import read_image
from .index import Index, Kind, Sample, Scene, UnreadableError
from .synthetic import SYNTHETIC, Drawing
from .video import Pick, read_frames


class Source(Protocol):
    """Samples by number."""

    kind: Kind

    def __len__(self) -> int: ...

    def label(self, index: int) -> int: ...

    def name(self, index: int) -> str: ...

    def read(self, index: int, pick: Pick) -> Tensor:
        """A picture [3, H, W], or the frames of a video that ``pick`` wants, [T, 3, H, W], in uint8.

        Raises ``UnreadableError`` where there is none.
        """
        ...


class Files:
    """Samples of an index."""

    def __init__(self, samples: Sequence[Sample], kind: Kind):
        self.samples = samples
        self.kind: Kind = kind

    def __len__(self) -> int:
        return len(self.samples)

    def label(self, index: int) -> int:
        return self.samples[index].label

    def name(self, index: int) -> str:
        return str(self.samples[index].path)

    def read(self, index: int, pick: Pick) -> Tensor:
        path = self.samples[index].path
        try:
            if self.kind == "images":
                return read_image(path)
            return read_frames(path, pick)
        except OSError as error:  # it went away, or its disk did
            raise UnreadableError(path, error.strerror or error) from error


class SyntheticSource:
    """Samples of an embedded dataset."""

    def __init__(self, dataset: str, seed: int, count: int):
        self.dataset, self.seed, self.count = dataset, seed, count
        self.classes, self.draw = SYNTHETIC[dataset]
        self._last = (0, self.draw(seed, 0))  # whoever reads a sample asks for its label next
        self.kind: Kind = "videos" if self._last[1].pixels.ndim == 4 else "images"

    def _drawing(self, index: int) -> Drawing:
        last = self._last
        if last[0] != index:
            self._last = last = (index, self.draw(self.seed, index))
        return last[1]

    def __len__(self) -> int:
        return self.count

    def label(self, index: int) -> int:
        return self._drawing(index).label

    def name(self, index: int) -> str:
        return f"{self.dataset} {index}"

    def read(self, index: int, pick: Pick) -> Tensor:
        pixels = self._drawing(index).pixels
        return pixels[list(pick(len(pixels)))] if self.kind == "videos" else pixels


class CachedSource:
    """Samples of another source, all decoded once and held in the memory of a device."""

    def __init__(self, source: Source, device: torch.device | str, workers: int = 4):
        self._source, self._device = source, device
        self.kind: Kind = source.kind

        def decode(index: int) -> tuple[Tensor | UnreadableError, int]:
            try:
                return source.read(index, range).to(device), source.label(index)
            except UnreadableError as error:
                return error, source.label(index)

        with ThreadPoolExecutor(max(1, workers)) as pool:
            held = list(pool.map(decode, range(len(source))))
        self._pixels, self._labels = [pixels for pixels, _ in held], [label for _, label in held]

    def holds(self, source: Source, device: torch.device | str) -> bool:
        """Whether these are the samples of a source, on a device."""
        if (len(source), torch.device(device)) != (len(self), torch.device(self._device)):
            return False
        return all(source.name(i) == self.name(i) for i in range(len(self)))

    @property
    def bytes(self) -> int:
        """Memory that is held."""
        return sum(p.nbytes for p in self._pixels if isinstance(p, Tensor))

    def __len__(self) -> int:
        return len(self._source)

    def label(self, index: int) -> int:
        return self._labels[index]

    def name(self, index: int) -> str:
        return self._source.name(index)

    def read(self, index: int, pick: Pick) -> Tensor:
        pixels = self._pixels[index]
        if isinstance(pixels, UnreadableError):
            raise pixels.with_traceback(None)
        if self.kind == "images":
            return pixels
        frames = torch.tensor(list(pick(len(pixels))))
        if pixels.is_cuda:  # a copy from pageable memory would wait for the step before
            frames = frames.pin_memory().to(pixels.device, non_blocking=True)
        return pixels.index_select(0, frames)


def hold_out(index: Index, share: float) -> Index:
    """The index with a test split: a share of the training samples of each class, and never all of them.

    Where pictures have objects of many classes, it is a share of the pictures.

    Which ones follows from their names, so that files added later do not mix what was trained on with the rest.
    """
    by_class: dict[int, list[Sample | Scene]] = {}
    for sample in index.splits["train"]:
        by_class.setdefault(0 if index.kind == "objects" else sample.label, []).append(sample)
    test: set[Path] = set()
    for samples in by_class.values():
        count = min(max(1, round(share * len(samples))), len(samples) - 1) if share else 0
        test.update(sample.path for sample in sorted(samples, key=_digest)[:count])
    train = index.splits["train"]
    splits = {"train": tuple(s for s in train if s.path not in test), "test": tuple(s for s in train if s.path in test)}
    return dataclasses.replace(index, splits={**index.splits, **splits})


def at_most(index: Index, limit: int) -> Index:
    """The index with no more than ``limit`` training samples, as evenly spread over the classes as can be."""
    seen: Counter[int] = Counter()
    turns: dict[Path, int] = {}
    for sample in sorted(index.splits["train"], key=_digest):
        group = 0 if isinstance(sample, Scene) else sample.label
        seen[group] += 1
        turns[sample.path] = seen[group]
    chosen = set(sorted(turns, key=turns.__getitem__)[:limit])
    train = tuple(sample for sample in index.splits["train"] if sample.path in chosen)
    return dataclasses.replace(index, splits={**index.splits, "train": train})


def _digest(sample: Sample | Scene) -> bytes:
    return hashlib.blake2b(f"{sample.path.parent.name}/{sample.path.name}".encode(errors="surrogateescape")).digest()
