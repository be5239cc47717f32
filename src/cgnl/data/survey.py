"""What an unknown folder holds: its layout, its classes, and the sizes of some of its samples."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

from ..text import counted, escape
from .check import Size, count_labels, find_faults, measure
from .index import DatasetIndex, is_image_file, is_video_file, require_folder, walk
from .readers import READERS
from .recognise import NAMES, recognise

SAMPLED = {"images": 64, "videos": 16, "objects": 64}
"""Kind -> how many samples are decoded, spread evenly over the dataset."""
UNEVEN = 3
"""Times as many samples in the largest class as in the smallest from which on the classes count as uneven."""


@dataclass(frozen=True)
class Survey:
    """What a folder holds."""

    root: Path
    layout: str
    """A name in ``READERS``."""
    index: DatasetIndex
    given: dict[str, str] = field(default_factory=dict)
    """Arguments of the reader, such as the file of the labels."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Height and width of the samples that were read."""
    frames: tuple[int, ...] = ()
    """Their numbers of frames, if they are clips."""
    unreadable: tuple[str, ...] = ()
    """A sentence for each that cannot be read."""

    @cached_property
    def counts(self) -> dict[str, int]:
        """Class -> training samples, or objects."""
        return count_labels(self.index)["train"]

    @property
    def samples(self) -> int:
        """Training samples, those that would be held out for a test among them."""
        return len(self.index.splits["train"])

    @property
    def short_side(self) -> int:
        """The median of the shorter sides in pixels."""
        return int(median(min(size) for size in self.sizes))

    @property
    def imbalance(self) -> float:
        """How many times the largest class is as large as the smallest that has any samples."""
        filled = [count for count in self.counts.values() if count]
        return max(filled) / min(filled)


def survey(root: Path | str) -> Survey:
    """Find out what a folder holds, or raise with the reason why a network cannot be trained on it."""
    root = require_folder(root)
    layout, given = recognise(root)
    if layout == "folder":
        _require_class_folders(root)
    index = READERS[layout](root, **given)
    if faults := find_faults(index, count_labels(index)):
        raise ValueError(f"{root} cannot be trained on: {faults[0]}")
    every = [sample for samples in index.splits.values() for sample in samples]
    count = min(len(every), SAMPLED[index.kind])
    measured = [measure(every[i * len(every) // count], index.kind) for i in range(count)]
    found, unreadable = [m for m in measured if isinstance(m, Size)], tuple(m for m in measured if isinstance(m, str))
    if not found:
        raise ValueError(f"{root} holds nothing that can be read: {unreadable[0]}")
    frames = tuple(size.frames for size in found) if index.has_clips else ()
    return Survey(root, layout, index, given, tuple((s.height, s.width) for s in found), frames, unreadable)


def describe(found: Survey) -> Iterator[str]:
    """The survey in lines."""
    index, what = found.index, "images" if found.index.is_detection else "samples"
    splits = ", ".join(f"{len(samples):,} to {split}" for split, samples in index.splits.items())
    kind = {"images": "images", "videos": "clips", "objects": "objects to detect"}[index.kind]
    yield f"{found.root}: {NAMES.get(found.layout, 'class folders')}, {counted(len(index.classes), 'class')} of {kind}"
    held_out = "" if "test" in index.splits else " (no test split: a fifth is held out)"
    yield f"{what}: {splits}{held_out}; {describe_balance(found)}"
    smallest, largest = (f(found.sizes, key=min) for f in (min, max))
    sides = " to ".join(dict.fromkeys(f"{width} x {height}" for height, width in (smallest, largest)))
    frames = " to ".join(dict.fromkeys(f"{f(found.frames)}" for f in (min, max))) if found.frames else ""
    length = f", {frames} frames" if frames else ""
    looked = len(found.sizes) + len(found.unreadable)
    yield f"{looked:,} read: {sides} pixels, median shorter side {found.short_side}{length}"
    if found.unreadable:
        yield f"{len(found.unreadable):,} of these cannot be read, such as {found.unreadable[0]}"
    yield from index.problems


def describe_balance(found: Survey) -> str:
    """How many samples the classes have."""
    counts = found.counts
    fewest, most = (f(counts, key=counts.__getitem__) for f in (min, max))
    if counts[fewest] == counts[most]:
        return f"{counts[most]:,} in each class"
    return escape(f"{counts[fewest]:,} ({fewest}) to {counts[most]:,} ({most}) in a class")


def _require_class_folders(root: Path) -> None:
    """Raise for a folder that is empty, or whose files lie in no folder of a class."""
    top = next(walk(root))
    loose = [path for path in top.files if is_image_file(path) or is_video_file(path)]
    if top.folders:
        return
    if loose:
        raise ValueError(f"{root} holds {counted(len(loose), 'file')}, but no folder for each class to tell them by")
    raise ValueError(f"{root} is empty" if not top.files else f"{root} holds no images, clips or folders of classes")
