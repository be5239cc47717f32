"""Sources decode sample number i: from files, from a seed, or from memory."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol

import torch
from torch import Tensor

from .images import read_image
from .index import Kind, Sample, UnreadableError
from .synthetic import SYNTHETIC, Drawing
from .video import Pick, read_frames


class Source(Protocol):
    """Samples by number."""

    def __len__(self) -> int: ...

    def label(self, index: int) -> int: ...

    def name(self, index: int) -> str: ...

    def read(self, index: int, pick: Pick) -> Tensor:
        """Decode an image [3, H, W], or the frames of a video that ``pick`` chooses, [T, 3, H, W], in uint8.

        Raises ``UnreadableError`` if that fails.
        """
        ...


@dataclass(eq=False)
class FileSource:
    """Samples in files."""

    samples: Sequence[Sample]
    kind: Kind

    @classmethod
    def of_files(cls, paths: Sequence[Path], kind: Kind) -> "FileSource":
        """Files without labels."""
        return cls([Sample(path, 0) for path in paths], kind)

    def __len__(self) -> int:
        return len(self.samples)

    def label(self, index: int) -> int:
        return self.samples[index].label

    def name(self, index: int) -> str:
        return str(self.samples[index].path)

    def shards(self) -> list[int]:
        """The number of each sample's shard."""
        numbers: dict[Any, int] = {}
        return [numbers.setdefault(getattr(s.path, "shard", None), len(numbers)) for s in self.samples]

    def read(self, index: int, pick: Pick) -> Tensor:
        path = self.samples[index].path
        try:
            return read_frames(path, pick) if self.kind == "videos" else read_image(path)
        except OSError as error:  # the file or its disk went away
            raise UnreadableError(path, error) from error


@dataclass(eq=False)
class MemorySource:
    """Images or clips in memory: uint8 [3, H, W] or [T, 3, H, W]."""

    pixels: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.pixels)

    def label(self, index: int) -> int:  # noqa: ARG002
        return 0

    def name(self, index: int) -> str:
        return f"array {index}"

    def read(self, index: int, pick: Pick) -> Tensor:
        return _pick_frames(self.pixels[index], pick)


class SyntheticSource:
    """Samples of a synthetic dataset."""

    def __init__(self, dataset: str, seed: int, count: int):
        self.dataset, self.seed, self.count = dataset, seed, count
        self.classes, self.draw = SYNTHETIC[dataset]
        self._last = (0, self.draw(seed, 0))  # a sample that is read is asked for its label next
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
        return _pick_frames(self._drawing(index).pixels, pick)


class CachedSource:
    """Samples of another source, decoded once and kept in the memory of a device."""

    def __init__(self, source: Source, device: torch.device | str, workers: int = 4):
        self._source, self._device = source, device

        def decode(index: int) -> tuple[Tensor | UnreadableError, int]:
            try:
                return source.read(index, range).to(device), source.label(index)
            except UnreadableError as error:
                return error, source.label(index)

        self._stamps = [_stamp(source.name(index)) for index in range(len(source))]
        with ThreadPoolExecutor(max(1, workers)) as pool:
            self._cache = list(pool.map(decode, range(len(source))))

    def holds(self, source: Source, device: torch.device | str) -> bool:
        """Whether the samples of this source are cached on this device, and no file has changed. Files may be gone."""
        if (len(source), torch.device(device)) != (len(self), torch.device(self._device)):
            return False
        names = [source.name(index) for index in range(len(self))]
        if names != [self.name(index) for index in range(len(self))]:
            return False
        return all(_stamp(name) in (stamp, None) for name, stamp in zip(names, self._stamps, strict=True))

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return sum(pixels.nbytes for pixels, _ in self._cache if isinstance(pixels, Tensor))

    def __len__(self) -> int:
        return len(self._source)

    def label(self, index: int) -> int:
        return self._cache[index][1]

    def name(self, index: int) -> str:
        return self._source.name(index)

    def read(self, index: int, pick: Pick) -> Tensor:
        pixels, _ = self._cache[index]
        if isinstance(pixels, UnreadableError):
            raise pixels.with_traceback(None)
        if pixels.ndim == 3:
            return pixels
        frames = torch.tensor(list(pick(len(pixels))))
        if pixels.is_cuda:  # a copy from pageable memory would wait for the previous step
            frames = frames.pin_memory().to(pixels.device, non_blocking=True)
        return pixels.index_select(0, frames)


def _pick_frames(pixels: Tensor, pick: Pick) -> Tensor:
    """An image as it is, or the frames of a clip that are asked for."""
    return pixels if pixels.ndim == 3 else pixels[list(pick(len(pixels)))]


def _stamp(name: str) -> tuple[int, int] | None:
    """The size and time of a sample's file, or of the shard that holds it, if it has one."""
    shard = next((place for place in PurePath(name).parents if place.suffix == ".tar"), name)
    try:
        status = os.stat(shard)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns
