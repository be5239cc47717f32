"""``cgnl data``: check, draw, shrink or convert a dataset."""

from collections.abc import Iterable
from typing import Literal

from ..data.check import check, table
from ..data.readers import READERS
from ..data.synthetic import SYNTHETIC, draw
from ..spelling import counted, nearest

Action = Literal["check", "draw", "shrink", "convert"]
WORDS = {
    "check": ("FOLDER",),
    "draw": ("FOLDER",),
    "shrink": ("ROOT", "OUT"),
    "convert": ("cityscapes", "ROOT", "OUT"),
}
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
    """Check whether a dataset can be used, draw an embedded one, shrink clips, or convert Cityscapes to COCO's format.

    Args:
        action: check, draw, shrink or convert.
        words: check or draw: the folder. shrink: the folder of the dataset, and that of the copy. convert:
            cityscapes, the folder of the dataset, and that of the copy in COCO's format.
        dataset: to check, its layout: folder (unless said otherwise), cub, pets, imagenet, ucf101, kinetics400,
            mini_kinetics200, lsa64 or coco. To draw: parts (unless said otherwise), relation or actions.
        annotations: check: a file in COCO's format, from root on, where it is not called as COCO's are.
        images: check: the folder of its pictures, from root on.
        min_frames: check: videos with fewer frames are reported as too short.
        count: draw: how many samples.
        seed: draw: other samples for another seed.
        short_side: shrink: pixels of the shorter side; smaller frames keep their size.
        frames: shrink: frames to keep of each clip, spread evenly over its length.
        frame_folders: shrink: folders of pictures are clips too.
        workers: shrink: processes; as many as there are cores unless given.
    """
    if action not in WORDS:
        raise ValueError(f"there is no action {action!r}{nearest(action, WORDS)}")
    if len(words) != len(WORDS[action]):
        raise ValueError(f"this is said as: cgnl data {action} {' '.join(WORDS[action])} [option=value ...]")
    if action == "check":
        given = {"annotations": annotations, "images": images}
        _check(words[0], dataset, {name: value for name, value in given.items() if value is not None}, min_frames)
    elif action == "draw":
        name = _known(dataset or next(iter(SYNTHETIC)), SYNTHETIC, action)
        classes = draw(name, words[0], count, seed)
        print(f"{counted(count, 'sample')} of {counted(len(classes), 'class')} in {words[0]}")
    elif action == "shrink":
        _shrink(words[0], words[1], short_side, frames, workers, frame_folders)
    else:
        _known(words[0], ("cityscapes",), action)
        _convert(words[1], words[2])


def _known(name: str, known: Iterable[str], action: str) -> str:
    """The name of a dataset, if there is one."""
    if name not in known:
        raise ValueError(f"there is no dataset {name!r} to {action}; there is {', '.join(known)}")
    return name


def _check(root: str, dataset: str | None, objects: dict[str, str], min_frames: int) -> None:
    """Print what a dataset holds and what is wrong with it."""
    name = _known(dataset or ("coco" if objects else next(iter(READERS))), READERS, "check")
    if objects and name != "coco":
        raise ValueError(f"{next(iter(objects))} is for dataset=coco, not for {name}")
    index = READERS[name](root, **objects)
    report = check(index, min_frames)
    print("\n".join(table(index, report, min_frames)))
    if not report.usable:
        raise ValueError(f"{root} is not usable: {'; '.join(report.faults)}")
    if bad := len(report.unreadable):
        files = len({sample.path for samples in index.splits.values() for sample in samples})
        raise ValueError(f"{root} is usable, but {bad:,} of {files:,} files cannot be read: training leaves them out")


def _say(line: str) -> None:
    print(line, flush=True)


def _shrink(root: str, out: str, short_side: int, frames: int, workers: int | None, frame_folders: bool) -> None:
    """Write a small copy of a dataset of clips."""
    from ..data.shrink import shrink

    done = shrink(root, out, short_side, frames, workers, frame_folders, say=_say)
    there = f" ({done.skipped:,} were there already)" if done.skipped else ""
    print(f"{counted(done.written, 'clip')} written{there}, {counted(done.copied, 'other file')} copied to {out}")
    if bad := len(done.failed):
        raise ValueError(f"{bad:,} of {bad + done.written + done.skipped:,} clips cannot be read")


def _convert(root: str, out: str) -> None:
    """Write Cityscapes in COCO's format."""
    from ..data.cityscapes import SMALLEST, convert

    splits = convert(root, out, say=_say)
    print(f"\n{'split':8} {'pictures':>10} {'objects':>10} {'crowds':>10} {f'below {SMALLEST} pixels':>16}")
    for name, split in splits.items():
        print(f"{name:8} {split.pictures:10,} {split.objects:10,} {split.crowds:10,} {split.too_small:16,}")
    if bad := sum(len(split.problems) for split in splits.values()):
        raise ValueError(f"{counted(bad, 'picture')} left out")
