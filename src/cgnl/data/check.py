"""``cgnl data check``: whether every file of a dataset can be used."""

from collections import Counter
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..spelling import counted
from .index import Index, Kind, Sample, Scene, UnreadableError

AT_ONCE = 1024
"""Files that are handed to the threads at a time, so that a large dataset needs little memory."""


@dataclass(frozen=True)
class Report:
    """What a dataset holds and what is wrong with it."""

    counts: dict[str, dict[str, int]]
    """Split -> class -> samples that are listed, readable or not."""
    unreadable: dict[Path, str]
    """File -> the sentence that says why."""
    short: dict[Path, int]
    """Video with too few frames -> how many it has."""
    problems: tuple[str, ...]
    """What the reader found, such as labels without files."""
    faults: tuple[str, ...]
    """Why the dataset cannot be used. A few unreadable files, which are skipped, and short clips, which are played in a
    loop, are no fault."""

    @property
    def usable(self) -> bool:
        """Whether a network can be trained and tested on it."""
        return not self.faults


def check(index: Index, min_frames: int = 1, workers: int = 2) -> Report:
    """Decode every image, or probe every video, and count.

    Args:
        index: the dataset.
        min_frames: videos with fewer frames are reported as too short.
        workers: threads.
    """
    if min_frames < 1 or workers < 1:
        raise ValueError(f"min_frames = {min_frames} and workers = {workers} must be at least 1")
    unreadable: dict[Path, str] = {}
    short: dict[Path, int] = {}
    for path, result in _results(index, workers):
        if isinstance(result, str):
            unreadable[path] = result
        elif index.kind == "videos" and result < min_frames:
            short[path] = result
    return Report(_counts(index), unreadable, short, index.problems, _faults(index, _counts(index, without=unreadable)))


def _frames(sample: Sample | Scene, kind: Kind) -> int | str:
    """How many frames a sample has, or the sentence that says why it cannot be read."""
    from .detection import read_scene
    from .images import read_image
    from .video import probe

    try:
        if kind == "videos":
            return probe(sample.path).frames
        if isinstance(sample, Scene):
            read_scene(sample)
        else:
            read_image(sample.path)
    except UnreadableError as error:
        return str(error)
    except OSError as error:
        return str(UnreadableError(sample.path, error))
    return 1


def _results(index: Index, workers: int) -> Iterator[tuple[Path, int | str]]:
    """Every file once, in order, with what ``_frames`` says of it."""
    once = list({sample.path: sample for samples in index.splits.values() for sample in samples}.values())
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(once), AT_ONCE):
            some = once[start : start + AT_ONCE]
            results = pool.map(lambda sample: _frames(sample, index.kind), some)
            yield from zip((sample.path for sample in some), results, strict=True)


def _counts(index: Index, without: Container[Path] = ()) -> dict[str, dict[str, int]]:
    """Samples, or objects, for each split and class."""
    counts = {}
    for split, samples in index.splits.items():
        found = Counter(label for sample in samples if sample.path not in without for label in sample.labels)
        counts[split] = {name: found[label] for label, name in enumerate(index.classes)}
    return counts


def _faults(index: Index, readable: dict[str, dict[str, int]]) -> tuple[str, ...]:
    """Why readable samples in these numbers are not enough."""
    classes, what = index.classes, "object" if index.kind == "objects" else "sample"
    faults = [f"split {split} has no readable {what}" for split, counts in readable.items() if not any(counts.values())]
    if index.kind == "objects":  # one class is enough to be found, and a rare one may not be there
        return tuple(faults)
    empty = [name for name, count in readable.get("train", {}).items() if not count]
    if 0 < len(empty) < len(classes):
        more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
        names = ", ".join(empty[:3])
        faults.append(f"no readable training sample for {'class' if len(empty) == 1 else 'classes'} {names}{more}")
    if len(classes) < 2:
        faults.append("there are fewer than two classes")
    return tuple(faults)


def table(index: Index, report: Report, min_frames: int) -> Iterator[str]:
    """The report in lines."""
    readable = _counts(index, without=report.unreadable)
    yield f"{counted(len(index.classes), 'class')} of {index.kind}"
    yield ""
    what = "objects" if index.kind == "objects" else "samples"
    yield f"{'split':10} {what:>10} {'readable':>10}   fewest in a class, most in a class"
    for split, counts in report.counts.items():
        fewest, most = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        yield (
            f"{split:10} {sum(counts.values()):10,} {sum(readable[split].values()):10,}   "
            f"{counts[fewest]:,} ({fewest}), {counts[most]:,} ({most})"
        )
    lines = [*report.problems, *report.unreadable.values(), *_too_short(report.short, min_frames)]
    yield from ["", *lines] if lines else []


def _too_short(short: dict[Path, int], min_frames: int) -> Iterator[str]:
    """One line on all clips that are too short, for often they all are."""
    if short:
        least = min(short, key=lambda path: short[path])
        clips, frames = counted(len(short), "clip"), f"{short[least]} of {min_frames} frames"
        yield f"{clips} too short and played in a loop: {least} has {frames}"
