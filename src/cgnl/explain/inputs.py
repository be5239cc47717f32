"""One file as the input of a network, and where its pixels come from."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor

from ..data.sources import FileSource, Source
from ..data.transforms import MEAN, STD, Box, Colour, crop, network_input, resize, spread_boxes
from ..data.video import clip_indices, spread_clip_starts
from ..engine.checkpoint import Trained
from ..engine.predict import find_samples
from ..engine.tasks.detection import set_size
from .maps import read_position


@dataclass(frozen=True, eq=False)
class FileInput:
    """One view of an image, or of the clip in the middle of a video; the middle by default."""

    original: Tensor
    """The file's own pixels, or a smaller copy to be drawn on: uint8 [3, H, W] or [T, 3, H, W]."""
    resized: Tensor
    """What the network's view is cropped from, uint8 [.., 3, H, W]."""
    crop: Box
    """The view, in pixels of ``resized``."""
    height: int
    """Of the file."""
    width: int
    frames: tuple[int, ...] = ()
    """Numbers of the video's frames, as often as they are seen."""
    usual: Box | None = None
    """The view of a test, if this is another."""
    mean: Colour = MEAN
    std: Colour = STD

    @property
    def network_input(self) -> Tensor:
        """What the network is given, [1, 3, H, W] or [1, 3, T, H, W]."""
        return network_input(self.pixels[None], mean=self.mean, std=self.std)

    @property
    def pixels(self) -> Tensor:
        """What the network sees, uint8 [3, H, W] or [T, 3, H, W]."""
        return crop(self.resized, self.crop)

    @property
    def whole(self) -> bool:
        """Whether the network sees all of the file."""
        return self.resized.shape[-2:] == self.crop[2:]

    @property
    def box(self) -> Box:
        """The part of the file that is seen, in its own pixels."""
        return self.box_in(self.height, self.width)

    def box_in(self, height: int, width: int) -> Box:
        """The part that is seen of a copy of the file with so many pixels."""
        down, across = height / self.resized.shape[-2], width / self.resized.shape[-1]
        top, left = round(self.crop.top * down), round(self.crop.left * across)
        top, left = min(top, height - 1), min(left, width - 1)  # a file of few rows or columns keeps one
        bottom, right = (self.crop.top + self.crop.height) * down, (self.crop.left + self.crop.width) * across
        return Box(top, left, max(round(bottom) - top, 1), max(round(right) - left, 1))

    def containing(self, at: Sequence[float] | None) -> Self:
        """The view of a test if it has the position (x, y[, frame]) of the file, else one of that size around it."""
        if at is None:
            return self
        self._check_count(read_position(at))
        x, y = at[:2]
        if not (0 <= x < self.width and 0 <= y < self.height):
            raise ValueError(f"at = {_words(at)} is outside the file, which has {self.width} x {self.height} pixels")
        seen = replace(self, crop=self.usual, usual=None) if self.usual else self
        box = seen.box
        if not (box.left <= x < box.left + box.width and box.top <= y < box.top + box.height):
            rows, columns = self.resized.shape[-2:]
            height, width = seen.crop[2:]
            top = min(max(round(y * rows / self.height - height / 2), 0), rows - height)
            left = min(max(round(x * columns / self.width - width / 2), 0), columns - width)
            seen = replace(seen, crop=Box(top, left, height, width), usual=seen.crop)
        return self if seen.crop == self.crop else seen

    def place(self, at: Sequence[float] | None) -> tuple[float, ...]:
        """(x, y[, frame]) of the file as the nearest in the pixels; the middle of the first frame by default."""
        box = self.box
        if at is None:
            at = (box.left + box.width / 2, box.top + box.height / 2)
        self._check_count(at)
        x, y = (min(max(a, 0), n - 1e-3) for a, n in zip(self.inside(at[0], at[1]), self.crop[:1:-1], strict=True))
        if not self.frames:
            return x, y
        frame = at[2] if len(at) == 3 else self.frames[0]
        if not min(self.frames) <= frame <= max(self.frames):
            seen = f"{min(self.frames)} to {max(self.frames)}"
            raise ValueError(f"at = {_words(at)} is in frame {frame:g}, and the network sees frames {seen}")
        return x, y, min(range(len(self.frames)), key=lambda i: abs(self.frames[i] - frame))

    def _check_count(self, at: Sequence[float]) -> None:
        if len(at) not in ((2, 3) if self.frames else (2,)):
            wanted = "x,y or x,y,frame" if self.frames else "x,y"
            raise ValueError(f"at = {_words(at)} has {len(at)} numbers: give {wanted}")

    def inside(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of the file to those that the network sees; outside of these for what it does not."""
        box, (height, width) = self.box, self.crop[2:]
        return (x - box.left) * width / box.width, (y - box.top) * height / box.height

    def in_file(self, x: float, y: float) -> tuple[float, float]:
        """The reverse: pixels that the network sees to those of the file."""
        box, (height, width) = self.box, self.crop[2:]
        return box.left + x * box.width / width, box.top + y * box.height / height


@dataclass(frozen=True, eq=False)
class DetectorInput(FileInput):
    """An image for a detector, with the margin on its right and bottom that its backbone sees."""

    _: KW_ONLY
    image: Tensor
    """What the detector is given, float [3, H, W]."""
    prepared: Tensor
    """What it makes of it for its backbone, [1, 3, H, W]."""

    @property
    def network_input(self) -> Tensor:
        return self.prepared


def whole_input(pixels: Tensor, frames: Sequence[int] = (), mean: Colour = MEAN, std: Colour = STD) -> FileInput:
    """An image [3, H, W], or a clip [T, 3, H, W], that a network sees whole."""
    height, width = pixels.shape[-2:]
    return FileInput(pixels, pixels, Box(0, 0, height, width), height, width, tuple(frames), mean=mean, std=std)


def read_input(trained: Trained, file: Path | str) -> FileInput:
    """The one view of a file that a network is tested on between epochs."""
    paths = find_samples([file], trained.task)
    if len(paths) > 1:
        raise ValueError(f"{file} holds {len(paths)} {trained.task.file}s: name one")
    return read_sample(trained, FileSource.of_files(paths, trained.kind), 0)


def read_sample(trained: Trained, source: Source, index: int) -> FileInput:
    """The same for a sample of a dataset."""
    data = trained.config.data
    view = trained.task.view_in_test(data, full=False)
    colours: Any = {"mean": data.mean or MEAN, "std": data.std or STD}
    numbers: list[int] = []

    def pick(count: int) -> list[int]:
        start = spread_clip_starts(count, 1, view.frames, view.stride)[0]
        numbers[:] = clip_indices(count, view.frames, view.stride, start)
        return numbers

    pixels = source.read(index, pick)
    if not trained.task.classifies:
        return _prepare(trained, pixels)
    if view.size is None:
        return whole_input(pixels, numbers, **colours)
    height, width = pixels.shape[-2:]
    new_height, new_width, (box,) = spread_boxes(height, width, view.size, view.short_side, count=1)
    resized = resize(pixels, new_height, new_width)
    return FileInput(pixels, resized, box, height, width, tuple(numbers), **colours)


def _prepare(trained: Trained, pixels: Tensor) -> DetectorInput:
    """An image as a detector resizes it in a test."""
    set_size(trained.network, trained.config.data, training=False)
    transform, device = trained.network.get_submodule("transform"), next(trained.network.parameters()).device
    image = pixels.to(device) / 255
    batch, _ = transform.eval()([image])
    height, width = pixels.shape[-2:]
    (inside,), outside = batch.image_sizes, batch.tensors.shape[-2:]
    rows, columns = (round(n * out / of) for n, out, of in zip((height, width), outside, inside, strict=True))
    original = F.pad(pixels, (0, columns - width, 0, rows - height))
    seen = resize(original, *outside)
    shown = {"original": original, "resized": seen, "crop": Box(0, 0, *outside), "height": rows, "width": columns}
    return DetectorInput(**shown, image=image, prepared=batch.tensors)


def _words(at: Sequence[float]) -> str:
    return ",".join(f"{a:g}" for a in at)
