"""``cgnl data check``: whether every file of a dataset can be used."""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from ..text import counted
from .detection import read_scene
from .images import read_image, turns_in_place
from .index import DatasetIndex, File, Kind, Sample, Scene, UnreadableError, count_skipped, name_some
from .video import VideoInfo, decode_all, probe

CHUNK = 1024
"""Samples queued at a time, so that a large dataset takes little memory."""


class Size(NamedTuple):
    """The size of a readable sample."""

    height: int
    width: int
    frames: int
    turned: bool = False
    """Whether the image of a scene fits its annotations as it is stored and as it is shown."""


@dataclass(frozen=True)
class Report:
    """What is wrong with the files of a dataset."""

    unreadable: dict[File, str]
    """File -> why it cannot be read."""
    short: dict[File, int]
    """Video with too few frames -> how many it has."""
    faults: tuple[str, ...]
    """Why the dataset cannot be used. A few unreadable files are skipped and short clips are looped: not faults."""
    turned: tuple[File, ...] = ()
    """Annotated images that are turned without a change of size, so that no size tells how they were annotated."""


def check(index: DatasetIndex, min_frames: int = 1, workers: int = 2) -> Report:
    """Decode every image and every frame, in threads; videos of fewer frames are reported as too short."""
    if min_frames < 1 or workers < 1:
        raise ValueError(f"min_frames = {min_frames} and workers = {workers} must be at least 1")
    once = list({sample.path: sample for samples in index.splits.values() for sample in samples}.values())
    unreadable: dict[File, str] = {}
    short: dict[File, int] = {}
    turned: list[File] = []
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(once), CHUNK):
            some = once[start : start + CHUNK]
            for sample, result in zip(some, pool.map(lambda s: measure(s, index.kind, decode_all), some), strict=True):
                if isinstance(result, str):
                    unreadable[sample.path] = result
                elif index.has_clips and result.frames < min_frames:
                    short[sample.path] = result.frames
                elif result.turned:
                    turned.append(sample.path)
    return Report(unreadable, short, find_faults(index, count_labels(index, unreadable)), tuple(turned))


def table(index: DatasetIndex, report: Report, min_frames: int) -> Iterator[str]:
    """The report in lines."""
    readable = count_labels(index, report.unreadable)
    yield f"{counted(len(index.classes), 'class')} of {index.kind}"
    yield ""
    yield f"{'split':10} {index.unit + 's':>10} {'readable':>10}   fewest in a class, most in a class"
    for split, counts in count_labels(index).items():
        fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        yield (
            f"{split:10} {sum(counts.values()):10,} {sum(readable[split].values()):10,}   "
            f"{counts[fewest]:,} ({fewest}), {counts[most]:,} ({most})"
        )
    lines = [*index.problems, *report.unreadable.values()]
    if report.short:  # one line, because often all of them are
        path, frames = min(report.short.items(), key=lambda item: item[1])
        clips = counted(len(report.short), "clip")
        lines.append(f"{clips} too short and played in a loop: {path} has {frames} of {min_frames} frames")
    why = "turned or mirrored by EXIF, and so must be their annotations"
    lines += count_skipped(report.turned, "image", why)
    yield from ["", *lines] if lines else []


def measure(sample: Sample | Scene, kind: Kind, look: Callable[[File], VideoInfo] = probe) -> Size | str:
    """The size of a sample, or why it cannot be read; ``look`` says how thoroughly videos are read."""
    try:
        if kind == "videos":
            info = look(sample.path)
            return Size(info.height, info.width, info.frames)
        if isinstance(sample, Scene):
            return Size(*read_scene(sample).shape[1:], frames=1, turned=turns_in_place(sample.path))
        return Size(*read_image(sample.path).shape[1:], frames=1)
    except UnreadableError as error:
        return str(error)
    except OSError as error:
        return str(UnreadableError(sample.path, error))


def count_labels(index: DatasetIndex, without: Container[File] = ()) -> dict[str, dict[str, int]]:
    """Split -> class -> samples, or objects."""
    counts = {}
    for split, samples in index.splits.items():
        found = Counter(label for sample in samples if sample.path not in without for label in sample.labels)
        counts[split] = {name: found[label] for label, name in enumerate(index.classes)}
    return counts


def find_faults(index: DatasetIndex, readable: dict[str, dict[str, int]]) -> tuple[str, ...]:
    """Why these readable samples are not enough."""
    bare = [split for split, counts in readable.items() if not any(counts.values())]
    faults = [f"split {split} has no readable {index.unit}" for split in bare]
    if index.is_detection:  # a single class can be detected, and a rare one may be missing
        return tuple(faults)
    empty = [name for name, count in readable.get("train", {}).items() if not count]
    if 0 < len(empty) < len(index.classes):
        faults.append(f"no readable training sample for {'class' if len(empty) == 1 else 'classes'} {name_some(empty)}")
    if len(index.classes) < 2:
        faults.append("there are fewer than two classes")
    return tuple(faults)
