"""Training from image files: ``cgnl train`` and timm's own train.py, in turns, on one device.

    python -m benchmarks.against_timm TRAIN_PY FOLDER [--csv FILE]

TRAIN_PY is train.py of timm's repository, of the release line that is installed (1.0, from 1.0.23 on). FOLDER holds
class folders of images, in train/ or itself. What is compared is each script as it comes, started anew for each
measurement, with the same network from random weights, files, batch size and number of loader workers: bfloat16
autocast, channels_last, SGD with momentum, random resized crops and flips alone, no moving average of the weights.

Each rate is what the trainer itself reports of a whole epoch: samples_per_second of metrics.csv, and the average in
timm's last line of an epoch. Neither counts tests and checkpoints, and there are none between the epochs. The first
epoch is left out: it reads the files into memory, chooses and compiles kernels, and fills the loader's queue. Given
are medians over the other epochs of all rounds.

timm also gets --pin-mem and --use-multi-epochs-loader. Our loader works on from one epoch to the next, theirs does so
only with the latter; without it, an epoch begins with empty queues, which weighs more the shorter the epochs are.
"""

import argparse
import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, product, zip_longest
from pathlib import Path

import torch

from benchmarks.harness import make_parser, report
from cgnl.atomic_io import write_csv
from cgnl.data.index import is_image_file
from cgnl.text import counted, format_duration, markdown_table

MODES = {"plain": False, "compiled": True}
COLUMNS = ("pixels", "mode", "round", "trainer", "epoch", "samples_per_second")
AHEAD = 4
"""Batches that each worker of our loader prepares ahead; those of timm's prepare two."""
LINE = re.compile(r"^Train: (\d+) \[ *(\d+)/(\d+) .*?  Time: .*?\([\d.]+s, +([\d.]+)/s\)", re.MULTILINE)
"""A line of timm's log: epoch, step, steps, and the average samples per second of the epoch so far."""

Row = tuple[int, str, int, str, int, float]


@dataclass(frozen=True)
class Setting:
    """What both train."""

    data: Path
    """Holds train/ and test/."""
    classes: int
    network: str
    batch_size: int
    workers: int
    epochs: int
    device: str
    size: int = 224
    compiled: bool = False


def link(folder: Path, limit: int, into: Path) -> tuple[int, int]:
    """Link so many pictures of a dataset, balanced over the classes; returns the numbers of classes and pictures.

    The test split, which our trainer needs, has one picture of each class.
    """
    source = folder / "train" if (folder / "train").is_dir() else folder
    found = {each.name: sorted(filter(is_image_file, each.iterdir())) for each in source.iterdir() if each.is_dir()}
    found = {name: files for name, files in found.items() if files}
    if len(found) < 2:
        raise ValueError(f"{source} must hold at least two class folders of images")
    in_turn = filter(None, chain.from_iterable(zip_longest(*found.values())))
    train = list(islice(in_turn, limit))
    for split, files in {"train": train, "test": [files[0] for files in found.values()]}.items():
        for file in files:
            place = into / split / file.parent.name
            place.mkdir(parents=True, exist_ok=True)
            (place / file.name).symlink_to(file.resolve())
    return len(found), len(train)


def run(command: Sequence[object]) -> str:
    """Run a command to its end; returns what it prints."""
    words = list(map(str, command))
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{last}")
    return done.stdout


def ours(setting: Setting, folder: Path) -> list[float]:
    """Samples a second of each epoch of ``cgnl train``."""
    given = {
        **{"data.dataset": "folder", "data.root": setting.data, "data.size": setting.size, "data.area": "[0.08,1.0]"},
        **{"data.workers": setting.workers, "model.name": setting.network, "model.block": "null"},
        **{"model.head": "average", "model.dropout": 0, "optim.batch_size": setting.batch_size, "optim.lr": 0.01},
        **{"optim.epochs": setting.epochs, "optim.warmup_epochs": 0, "optim.decay_norms": "false"},
        **{"precision": "bf16", "compile": str(setting.compiled).lower(), "test_every": setting.epochs},
        **{"accelerator": "cpu" if setting.device == "cpu" else "gpu", "save_every": 10**9},
        **{"runs": folder, "name": "ours"},
    }
    run([sys.executable, "-m", "cgnl", "train", *(f"{name}={value}" for name, value in given.items())])
    with (folder / "ours" / "metrics.csv").open(newline="") as file:
        return [float(row["samples_per_second"]) for row in csv.DictReader(file)]


def theirs(script: Path, setting: Setting, folder: Path) -> list[float]:
    """Samples a second of each epoch of timm's train.py."""
    given = {
        **{"data-dir": setting.data, "val-split": "", "num-classes": setting.classes, "img-size": setting.size},
        **{"scale": (0.08, 1.0), "hflip": 0.5, "color-jitter": 0, "train-interpolation": "bilinear", "smoothing": 0},
        **{"workers": setting.workers, "pin-mem": (), "use-multi-epochs-loader": ()},
        **{"model": setting.network, "channels-last": (), "amp": (), "amp-dtype": "bfloat16"},
        **{"opt": "momentum", "weight-decay": 1e-4, "batch-size": setting.batch_size, "lr": 0.01},
        **{"epochs": setting.epochs, "warmup-epochs": 0, "val-interval": 10**9, "device": setting.device},
        **{"output": folder, "experiment": "theirs"},
        **({"torchcompile": ()} if setting.compiled else {}),
    }
    options = ([f"--{name}", *(value if isinstance(value, tuple) else [value])] for name, value in given.items())
    return read_log(run([sys.executable, script, *chain.from_iterable(options)]))


def read_log(log: str) -> list[float]:
    """Samples a second of each epoch, from the last line of each in timm's log."""
    return [float(speed) for _, step, steps, speed in LINE.findall(log) if int(step) + 1 == int(steps)]


def measure(script: Path, setting: Setting, folder: Path) -> dict[str, list[float]]:
    """Samples a second of each epoch, of one run after the other."""
    speeds = {"ours": ours(setting, folder), "theirs": theirs(script, setting, folder)}
    for trainer, found in speeds.items():
        if len(found) != setting.epochs:
            raise RuntimeError(f"the log of {trainer} has the rate of {len(found)} epochs, not of {setting.epochs}")
    return speeds


def describe(rows: Sequence[Row]) -> str:
    """A table of the medians and their ratios."""
    cells = []
    for size, mode in dict.fromkeys(row[:2] for row in rows):
        speeds = {name: steady(rows, size, mode, name) for name in ("ours", "theirs")}
        ratio = speeds["ours"] / speeds["theirs"]
        cells.append([str(size), mode, *(f"{speed:,.1f}" for speed in speeds.values()), f"{ratio:.3f}"])
    return markdown_table(["pixels", "", "cgnl, samples/s", "timm, samples/s", "ratio"], cells)


def steady(rows: Sequence[Row], size: int, mode: str, trainer: str) -> float:
    """The median over all epochs but the first of each run."""
    return statistics.median(row[5] for row in rows if (*row[:2], row[3]) == (size, mode, trainer) and row[4] > 1)


def read_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "rounds", 1, "runs of each trainer in each setting, in turns")
    parser.add_argument("train_py", type=Path, help="train.py of timm's repository")
    parser.add_argument("folder", type=Path, help="class folders of images, or a folder with train/")
    parser.add_argument("--sizes", type=int, nargs="+", default=[448, 224], help="sides of the training crops")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--network", default="resnet50", help="of that name in both")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="default: one for each core")
    parser.add_argument("--epochs", type=int, default=4, help="with the first, which is left out")
    parser.add_argument("--limit", type=int, default=6400, help="most pictures in an epoch")
    parser.add_argument("--csv", type=Path, help="write the rate of each epoch here, after each pair of runs")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error("--epochs must be at least 2: the first one is left out")
    return args


def main() -> int:
    args, rows, began = read_arguments(), list[Row](), time.perf_counter()
    sizes: list[int] = args.sizes
    modes: list[str] = args.modes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary, "data")
        classes, pictures = link(args.folder, args.limit, data)
        if pictures // args.batch <= AHEAD * args.workers:
            ahead = f"the {AHEAD * args.workers} batches that {args.workers} workers prepare ahead"
            sys.exit(f"{pictures} pictures are too few: an epoch must have more steps than {ahead}")
        same = data, classes, args.network, args.batch, args.workers, args.epochs, device
        for number, size, mode in product(range(1, args.rounds + 1), sizes, modes):
            with tempfile.TemporaryDirectory() as folder:
                speeds = measure(args.train_py, Setting(*same, size, MODES[mode]), Path(folder))
            for trainer, found in speeds.items():
                rows += [(size, mode, number, trainer, *epoch) for epoch in enumerate(found, 1)]
            if args.csv:
                write_csv(args.csv, COLUMNS, rows)
            passed = format_duration(time.perf_counter() - began)
            print(f"round {number}, {size} pixels, {mode}, after {passed}: {speeds}", file=sys.stderr, flush=True)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    versions = f"torch {torch.__version__}, timm {timm_version(args.train_py)}"
    lines = [
        f"{where}, {versions}, {args.network}, batch of {args.batch}, {counted(args.workers, 'worker')}",
        f"{counted(pictures, 'picture')} of {counted(classes, 'class')}, {counted(args.rounds, 'round')} of "
        f"{counted(args.epochs, 'epoch')}, of which the first is left out",
        describe(rows),
    ]
    return report(lines, [], args.output)


def timm_version(script: Path) -> str:
    """The version that the script imports: one beside it comes first."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import timm; print(timm.__version__)"
    return run([sys.executable, "-c", code, script.resolve().parent]).splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
