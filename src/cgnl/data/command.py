"""``cgnl data``: check a dataset, or draw one."""

from typing import Literal

from ..spelling import counted
from .check import check, table
from .drawing import draw
from .embedded import EMBEDDED
from .readers import READERS


def data(
    action: Literal["check", "draw"],
    root: str,
    dataset: str | None = None,
    annotations: str | None = None,
    images: str | None = None,
    min_frames: int = 64,
    count: int = 100,
    seed: int = 0,
) -> None:
    """Walk a dataset, decode its files and say whether it can be used; or draw an embedded dataset into files.

    Args:
        action: check or draw.
        root: where the dataset is, or is to be.
        dataset: to check, its layout: folder (unless said otherwise), cub, pets, imagenet, ucf101, kinetics400,
            mini_kinetics200, lsa64 or coco. To draw: parts (unless said otherwise), relation or actions.
        annotations: check: a file in COCO's format, from root on, where it is not called as COCO's are.
        images: check: the folder of its pictures, from root on.
        min_frames: check: videos with fewer frames are reported as too short.
        count: draw: how many samples.
        seed: draw: other samples for another seed.
    """
    if action not in ("check", "draw"):
        raise ValueError(f"there is no action {action!r}; there is check and draw")
    known = READERS if action == "check" else EMBEDDED
    objects = {key: value for key, value in (("annotations", annotations), ("images", images)) if value is not None}
    name = dataset or ("coco" if objects else next(iter(known)))
    if name not in known:
        raise ValueError(f"there is no dataset {name!r} to {action}; there is {', '.join(known)}")
    if objects and name != "coco":
        raise ValueError(f"{next(iter(objects))} is for dataset=coco, not for {name}")
    if action == "draw":
        classes = draw(name, root, count, seed)
        print(f"{counted(count, 'sample')} of {counted(len(classes), 'class')} in {root}")
        return
    index = READERS[name](root, **objects)
    report = check(index, min_frames)
    print("\n".join(table(index, report, min_frames)))
    if not report.usable:
        raise ValueError(f"{root} is not usable: {'; '.join(report.faults)}")
    if bad := len(report.unreadable):
        files = len({sample.path for samples in index.splits.values() for sample in samples})
        raise ValueError(f"{root} is usable, but {bad:,} of {files:,} files cannot be read: training leaves them out")
