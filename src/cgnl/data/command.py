"""``cgnl data``: check a dataset, or draw one."""

from typing import Literal

from .check import check, table
from .drawing import draw
from .embedded import EMBEDDED
from .readers import READERS


def data(
    action: Literal["check", "draw"],
    root: str,
    dataset: str | None = None,
    min_frames: int = 64,
    count: int = 100,
    seed: int = 0,
) -> None:
    """Walk a dataset, decode its files and say whether it can be used; or draw an embedded dataset into files.

    Args:
        action: check or draw.
        root: where the dataset is, or is to be.
        dataset: to check, its layout: folder (unless said otherwise), cub, imagenet, ucf101, kinetics400,
            mini_kinetics200 or coco. To draw: parts (unless said otherwise), relation or actions.
        min_frames: check: videos with fewer frames are reported as too short.
        count: draw: how many samples.
        seed: draw: other samples for another seed.
    """
    if action not in ("check", "draw"):
        raise ValueError(f"there is no action {action!r}; there is check and draw")
    known = READERS if action == "check" else EMBEDDED
    name = dataset or next(iter(known))
    if name not in known:
        raise ValueError(f"there is no dataset {name!r} to {action}; there is {', '.join(known)}")
    if action == "draw":
        print(f"{count} samples of {len(draw(name, root, count, seed))} classes in {root}")
        return
    index = READERS[name](root)
    report = check(index, min_frames)
    print("\n".join(table(index, report, min_frames)))
    if not report.usable:
        raise ValueError(f"{root} is not usable: {'; '.join(report.faults)}")
