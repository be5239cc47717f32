"""Tables of docs/results.md that are put together from the files of single runs.

python -m benchmarks.tables && cgnl reproduce --fill docs/results.md
"""

import csv
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "h200"
BIRDS = (
    # network, seed, files, commit, name
    ("R-50", 0, "full size", "just before 3688622", "cub_r50_seed0.csv"),
    ("R-50", 1, "full size", "just before 3688622", "cub_r50_seed1.csv"),
    ("R-50 + 1 CGNL", 0, "full size", "just before 3688622", "cub_r50_cgnl1_seed0.csv"),
    ("R-50", 0, "short side of 360", "3688622", "cub_r50_30_epochs_before.csv"),
    ("R-50", 0, "short side of 360", "f14b14e", "cub_r50_30_epochs.csv"),
)
BLOCKS = {"plain": "plain", "residual": "+ 1 residual block", "nl": "+ 1 NL", "cgnl": "+ 1 CGNL"}
OBJECTS = ("test_box_ap50", "test_box_ap", "test_mask_ap")
Rows = Iterator[Sequence[object]]


def read(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def birds() -> Rows:
    """The last epoch of runs at 448 pixels."""
    yield "network", "seed", "epochs", "files", "commit", "top-1", "top-5", "epochs in"
    for network, seed, files, commit, name in BIRDS:
        last = read(name)[-1]
        top1, top5 = (f"{100 * float(last[f'test_top{k}']):.2f}" for k in (1, 5))
        yield network, seed, last["epoch"], files, commit, top1, top5, name


def relation() -> Rows:
    """The seeds of each network, and their mean and deviation."""
    rows = read("relation.csv")
    yield "network", *(f"seed {n}" for n in range(5)), "mean", "deviation", "mean of the best tests"
    for block, label in BLOCKS.items():
        mine = [row for row in rows if row["block"] == block]
        top1, best = ([100 * float(row[name]) for row in mine] for name in ("test_top1", "best_top1"))
        numbers = *top1, statistics.mean(top1), statistics.stdev(top1), statistics.mean(best)
        yield label, *(f"{number:.1f}" for number in numbers)


def objects() -> Rows:
    """What ``cgnl eval data.test_on=train`` printed of each network, and its last test on what it had not seen."""
    names = ("box AP50", "box AP", "mask AP")
    yield "network", f"training pictures: {names[0]}", *names[1:], f"held out: {names[0]}", *names[1:], "minutes"
    for row in read("coco_on_train.csv"):
        last = read(f"{row['run']}.csv")[-1]
        held_out = (f"{100 * float(last[name]):.2f}" for name in OBJECTS)
        yield row["network"], row["box_ap50"], row["box_ap"], row["mask_ap"], *held_out, row["minutes"]


TABLES: dict[str, Callable[[], Rows]] = {
    "cub_448.csv": birds,
    "relation_table.csv": relation,
    "coco_table.csv": objects,
}


def write(folder: Path = RESULTS) -> None:
    """Write all of them."""
    for name, rows in TABLES.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows())


if __name__ == "__main__":
    write()
