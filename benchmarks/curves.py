"""Draw the curves of runs from their metrics.csv.

python benchmarks/curves.py benchmarks/results/h200/cub_*.csv --plot docs/figures/cub_curves.png
"""

import argparse
import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path, required=True)
    args = parser.parse_args()
    figure, axes = plt.subplots(figsize=(8, 4), constrained_layout=True)
    for number, path in enumerate(args.runs):
        rows = list(csv.DictReader(path.open()))
        name = path.parent.name if path.stem == "metrics" else path.stem
        epochs = [int(row["epoch"]) for row in rows]
        axes.plot(epochs, [100 * float(row["train_top1"]) for row in rows], "--", color=f"C{number}", alpha=0.5)
        tested = [(int(row["epoch"]), 100 * float(row["test_top1"])) for row in rows if row["test_top1"]]
        label = f"{name}: {tested[-1][1]:.2f} %"
        axes.plot(*zip(*tested, strict=True), "o-", color=f"C{number}", label=label, markersize=4)
    axes.set_xlabel("epoch")
    axes.set_ylabel("top-1, %   (line: test, dashes: training)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.plot, dpi=120)


if __name__ == "__main__":
    main()
