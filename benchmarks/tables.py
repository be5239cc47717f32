"""Tables of docs/results.md and docs/performance.md that are put together from the files of single runs.

python -m benchmarks.tables && cgnl reproduce --fill docs/results.md,docs/performance.md
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
KERNELS = {"Dot()": "dot", "GaussianRBF(order=3, gamma=0.0001, beta='paper')": "RBF, order 3"}
AUTHORS = "SpatialCGNL"
"""The authors' block, as ``cgnl bench block peer=...`` names it."""
SIZE = "32x1024x28x28"
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


def blocks() -> Rows:
    """What ``cgnl bench block`` measured, a line for each combination of options."""
    yield "", "authors", "reference", "reference, compiled", "fused", "fused, eager", "in `add_`", "fused, MiB"
    lines: dict[str, dict[str, dict[str, str]]] = {}
    for row in (row for row in read("bench.csv") if row["benchmark"] == "block"):
        lines.setdefault(describe(row), {})[row["row"]] = row
    for name, rows in lines.items():
        authors, reference, compiled = (milliseconds(rows.get(n)) for n in (AUTHORS, "reference", "reference compiled"))
        for kind in (kind for kind in ("fused", "fused recompute") if kind in rows):
            fused, recomputes = rows[kind], kind != "fused"
            if recomputes and fused["mode"] == "forward":  # the same kernels
                continue
            others = ("", "", "") if recomputes else (authors, reference, compiled)
            eager, memory = f"{float(fused['eager_ms']):.2f}", f"{float(fused['peak_mib']):.0f}"
            adds = f"{float(fused['eager_adds']):.0f}" if fused["eager_adds"] else ""
            yield f"{name}, `recompute`" if recomputes else name, *others, milliseconds(fused), eager, adds, memory


def describe(row: dict[str, str]) -> str:
    """What a row was measured on, without what is usual; blocks without a kernel are compared with the dot product."""
    given = dict(word.split("=") for word in row["settings"].split() if "=" in word)
    parts = ["training" if row["mode"] == "train" else "forward", KERNELS.get(row["kernel"], "dot")]
    parts += [row["shape"].replace("x", " x ")] if row["shape"] != SIZE else []
    parts += [row["dtype"]] if row["dtype"] != "bfloat16" else []
    parts += ["one group"] if given["groups"] == "1" else []
    parts += ["group norm"] if given["norm"] == "group" else []
    contiguous = "channels_last" not in row["settings"] and row["row"] != AUTHORS  # theirs takes nothing else
    return ", ".join([*parts, *(["contiguous"] if contiguous else [])])


def milliseconds(row: dict[str, str] | None) -> str:
    return "" if row is None else f"{float(row['ms']):.3f}"


def networks() -> Rows:
    """What blocks, and a covariance head, add to a training step of ResNet-50 at 448 pixels."""
    yield "", "batch", "ms", "ratio", "ms, eager", "ratio, eager", "MiB"
    names = {"reference": "+ 5 CGNL, reference", "fused": "+ 5 CGNL, fused"}
    for name in ("bench.csv", "heads.csv"):
        rows = [row for row in read(name) if row["benchmark"] == "network"]
        plain = next(row for row in rows if row["row"].startswith("plain"))
        for row in rows:
            times = ((float(row[n]), float(row[n]) / float(plain[n])) for n in ("ms", "eager_ms"))
            cells = [cell for ms, ratio in times for cell in (f"{ms:.2f}", f"{ratio:.3f}")]
            batch, memory = row["shape"].split("x")[0], f"{float(row['peak_mib']):,.0f}"
            yield names.get(row["row"], row["row"]), batch, *cells, memory


def serving() -> Rows:
    """Samples a second, and the median and 99th percentile of the latency, for each batch size."""
    lines: dict[str, dict[str, dict[str, str]]] = {}
    for row in read("serve.csv"):
        lines.setdefault(row["row"], {})[row["shape"].split("x")[0]] = row
    sizes = list(next(iter(lines.values())))
    yield "", *(cell for n in sizes for cell in (f"{n} at once: samples/s", "ms", "99 %"))
    for name, rows in lines.items():
        measured = ((float(rows[n]["per_second"]), float(rows[n]["ms"]), float(rows[n]["ms_99"])) for n in sizes)
        yield name, *(cell for rate, ms, most in measured for cell in (f"{rate:,.0f}", f"{ms:.2f}", f"{most:.2f}"))


TABLES: dict[str, Callable[[], Rows]] = {
    "cub_448.csv": birds,
    "relation_table.csv": relation,
    "coco_table.csv": objects,
    "block_table.csv": blocks,
    "network_table.csv": networks,
    "serve_table.csv": serving,
}


def write(folder: Path = RESULTS) -> None:
    """Write all of them."""
    for name, rows in TABLES.items():
        with (folder / name).open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows())


if __name__ == "__main__":
    write()
