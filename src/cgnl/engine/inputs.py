"""One file as the input of a network, and where its pixels come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..data.index import Sample
from ..data.sources import Files
from ..data.transforms import Box, crop, resize, spread_boxes
from ..data.video import clip_indices, spread_clip_starts
from .checkpoint import Trained
from .datasets import view_in_test
from .predict import find


@dataclass(frozen=True)
class FileInput:
    """The middle of a picture, or of the clip in the middle of a video."""

    pixels: Tensor
    """uint8 [3, H, W] or [T, 3, H, W]."""
    height: int
    """Of the file."""
    width: int
    box: Box
    """The part of the file that is seen, in its own pixels."""
    frames: tuple[int, ...] = ()
    """Numbers of the video's frames, as often as they are seen."""

    def place(self, at: Sequence[float] | None) -> tuple[float, ...]:
        """(x, y[, frame]) of the file as a position in the pixels; by default the middle of the first frame."""
        box = self.box
        if at is None:
            at = (box.left + box.width / 2, box.top + box.height / 2)
        if len(at) not in ((2, 3) if self.frames else (2,)):
            wanted = "x,y or x,y,frame" if self.frames else "x,y"
            raise ValueError(f"at = {_words(at)} has {len(at)} numbers: give {wanted}")
        if not (box.left <= at[0] < box.left + box.width and box.top <= at[1] < box.top + box.height):
            part = f"{box.left} <= x < {box.left + box.width}, {box.top} <= y < {box.top + box.height}"
            size = f"{self.width} x {self.height} pixels"
            raise ValueError(f"at = {_words(at)} is outside what the network sees of {size}: {part}")
        x, y = self.inside(at[0], at[1])
        if not self.frames:
            return x, y
        frame = at[2] if len(at) == 3 else self.frames[0]
        if not min(self.frames) <= frame <= max(self.frames):
            seen = f"{min(self.frames)} to {max(self.frames)}"
            raise ValueError(f"at = {_words(at)} is in frame {frame:g}, and the network sees frames {seen}")
        return x, y, min(range(len(self.frames)), key=lambda i: abs(self.frames[i] - frame))

    def inside(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of the file to those that the network sees; outside of these for what it does not."""
        height, width = self.pixels.shape[-2:]
        return (x - self.box.left) * width / self.box.width, (y - self.box.top) * height / self.box.height


def read_input(trained: Trained, file: Path | str) -> FileInput:
    """The one view of a file that a network is tested on between epochs."""
    paths = find([file], trained.kind)
    if len(paths) > 1:
        raise ValueError(f"{file} holds {len(paths)} {trained.task.file}s: name one")
    view = view_in_test(trained.config.data, trained.kind, full=False)
    numbers: list[int] = []

    def pick(count: int) -> list[int]:
        start = spread_clip_starts(count, 1, view.frames, view.stride)[0]
        numbers[:] = clip_indices(count, view.frames, view.stride, start)
        return numbers

    pixels = Files([Sample(paths[0], 0)], trained.kind).read(0, pick)
    height, width = pixels.shape[-2:]
    if view.size is None:
        return FileInput(pixels, height, width, Box(0, 0, height, width), tuple(numbers))
    new_height, new_width, (box,) = spread_boxes(height, width, view.size, view.short_side, count=1)
    pixels = crop(resize(pixels, new_height, new_width), box)
    down, across = height / new_height, width / new_width
    part = Box(round(box.top * down), round(box.left * across), round(box.height * down), round(box.width * across))
    return FileInput(pixels, height, width, part, tuple(numbers))


def _words(at: Sequence[float]) -> str:
    return ",".join(f"{a:g}" for a in at)
