"""``cgnl data``."""

from collections.abc import Iterable
from typing import Literal

from ..data.readers import READERS
from ..engine.config import SYNTHETIC
from ..spelling import counted, nearest, say

Action = Literal["check", "draw", "shrink", "convert"]
WORDS = {"check": "FOLDER", "draw": "FOLDER", "shrink": "ROOT OUT", "convert": "cityscapes ROOT OUT"}
"""Action -> the words that follow it."""


def data(
    action: Action,
    *words: str,
    dataset: str | None = None,
    annotations: str | None = None,
    images: str | None = None,
    min_frames: int = 64,
    count: int = 100,
    seed: int = 0,
    short_side: int = 128,
    frames: int = 32,
    frame_folders: bool = False,
    workers: int | None = None,
) -> None:
    """Check a dataset, draw a synthetic one, shrink clips, or convert Cityscapes to COCO's format.

    Args:
        action: check, draw, shrink or convert.
        words: check, draw: FOLDER. shrink: ROOT OUT, the dataset and its copy. convert: cityscapes ROOT OUT.
        dataset: check: the layout: folder (the default), images, clips, cub, pets, imagenet, ucf101, kinetics400,
            mini_kinetics200, lsa64 or coco. draw: parts (the default), relation or actions.
        annotations: check: annotation file in COCO's format, relative to the folder. If not given: COCO's own names.
        images: check: folder of its images, relative to the folder.
        min_frames: check: report videos with fewer frames as too short.
        count: draw: number of samples.
        seed: draw: seed of the samples.
        short_side: shrink: pixels of the shorter side; smaller frames keep their size.
        frames: shrink: frames to keep of each clip, spread evenly over its length.
        frame_folders: shrink: folders of images are clips too.
        workers: shrink: number of processes. If not given: one for each core.
    """
    if action not in WORDS:
        raise ValueError(f"there is no action {action!r}{nearest(action, WORDS)}")
    if len(words) != len(WORDS[action].split()):
        raise ValueError(f"usage: cgnl data {action} {WORDS[action]} [option=value ...]")
    if action == "check":
        given = {"annotations": annotations, "images": images}
        _check(words[0], dataset, {name: value for name, value in given.items() if value is not None}, min_frames)
    elif action == "draw":
        _draw(dataset or SYNTHETIC[0], words[0], count, seed)
    elif action == "shrink":
        _shrink(words[0], words[1], short_side, frames, workers, frame_folders)
    else:
        _check_dataset(words[0], ("cityscapes",), action)
        _convert(words[1], words[2])


def _check_dataset(name: str, known: Iterable[str], action: str) -> None:
    if name not in known:
        raise ValueError(f"there is no dataset {name!r} to {action}{nearest(name, known)}")


def _check(root: str, dataset: str | None, coco: dict[str, str], min_frames: int) -> None:
    """Print what a dataset holds and what is wrong with it."""
    name = dataset or ("coco" if coco else "folder")
    _check_dataset(name, READERS, "check")
    if coco and name != "coco":
        raise ValueError(f"{next(iter(coco))} is for dataset=coco, not for {name}")
    from ..data.check import check, table

    index = READERS[name](root, **coco)
    report = check(index, min_frames)
    say(*table(index, report, min_frames))
    if not report.usable:
        raise ValueError(f"{root} is not usable: {'; '.join(report.faults)}")
    if bad := len(report.unreadable):
        files = len({sample.path for samples in index.splits.values() for sample in samples})
        raise ValueError(f"{root} is usable, but {bad:,} of {files:,} files cannot be read: training skips them")


def _draw(name: str, folder: str, count: int, seed: int) -> None:
    """Write samples of a synthetic dataset."""
    _check_dataset(name, SYNTHETIC, "draw")
    from ..data.synthetic import draw

    classes = draw(name, folder, count, seed)
    say(f"{counted(count, 'sample')} of {counted(len(classes), 'class')} in {folder}")


def _shrink(root: str, out: str, short_side: int, frames: int, workers: int | None, frame_folders: bool) -> None:
    """Write a small copy of a dataset of clips."""
    from ..data.shrink import shrink

    done = shrink(root, out, short_side, frames, workers, frame_folders, say=say)
    there = f" ({done.skipped:,} were there already)" if done.skipped else ""
    say(f"{counted(done.written, 'clip')} written{there}, {counted(done.copied, 'other file')} copied to {out}")
    if bad := len(done.failed):
        raise ValueError(f"{bad:,} of {bad + done.written + done.skipped:,} clips cannot be read")


def _convert(root: str, out: str) -> None:
    """Write Cityscapes in COCO's format."""
    from ..data.cityscapes import SMALLEST, convert

    splits = convert(root, out, say=say)
    say("", f"{'split':8} {'images':>10} {'objects':>10} {'crowds':>10} {f'below {SMALLEST} pixels':>16}")
    for name, split in splits.items():
        say(f"{name:8} {split.pictures:10,} {split.objects:10,} {split.crowds:10,} {split.too_small:16,}")
    if bad := sum(len(split.problems) for split in splits.values()):
        raise ValueError(f"{counted(bad, 'image')} left out")
