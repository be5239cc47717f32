"""Plain, residual, non-local and CGNL networks on the embedded relation, on one schedule, over seeds.

python benchmarks/relation.py --seeds 0 1 2 3 4 --csv benchmarks/results/relation_h200.csv
"""

import argparse
import csv
import statistics
from pathlib import Path

from cgnl.engine.config import load
from cgnl.engine.train import train

BLOCKS = ("null", "residual", "nl", "cgnl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--csv", type=Path, default=Path("relation.csv"))
    parser.add_argument("--table", type=Path, help="only print the table of what was measured before")
    parser.add_argument("--set", nargs="*", default=[], help="settings, such as data.samples=100")
    args = parser.parse_args()
    if args.table:
        print_table(args.table)
        return
    settings = dict(word.split("=", 1) for word in args.set)
    with args.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("block", "seed", "test_top1", "best_top1", "train_top1", "epochs"))
        for seed in args.seeds:
            for block in BLOCKS:
                result = train(load("relation", settings | {"model.block": block, "seed": seed, "test_every": 5}))
                row = result.rows[-1]
                name = "plain" if block == "null" else block
                writer.writerow((name, seed, result.test["test_top1"], result.best, row["train_top1"], row["epoch"]))
                file.flush()
    print_table(args.csv)


def print_table(path: Path) -> None:
    """The mean and the deviation over seeds of each network."""
    rows = list(csv.DictReader(path.open()))
    for block in dict.fromkeys(row["block"] for row in rows):
        mine = [row for row in rows if row["block"] == block]
        top1, best = ([100 * float(row[name]) for row in mine] for name in ("test_top1", "best_top1"))
        seeds, spread = ", ".join(f"{value:.1f}" for value in top1), statistics.stdev(top1) if len(top1) > 1 else 0.0
        mean, of_the_best = statistics.mean(top1), statistics.mean(best)
        print(f"{block:9} {seeds}: mean {mean:.1f}, deviation {spread:.1f}, mean of the best {of_the_best:.1f}")


if __name__ == "__main__":
    main()
