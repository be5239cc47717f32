"""What a head is worth on a network that stays as it is: images pass it once, and heads are trained on its last maps.

    python -m benchmarks.frozen_heads run cub CUB_200_2011 resnet50.pth RESULTS   # no GPU needed
    python -m benchmarks.frozen_heads table RESULTS

docs/protocol.md, "Frozen networks", says what is compared and how it is decided. Each run is a line of
RESULTS/runs.csv; those that are there already are not run again.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cgnl.data.index import hold_out
from cgnl.data.loading import EvalSet, View, make_loader
from cgnl.data.readers import READERS
from cgnl.data.sources import FileSource
from cgnl.data.transforms import network_input
from cgnl.experiments.statistics import compare_samples, interval, verdict
from cgnl.heads import Classifier, SecondOrderPool
from cgnl.models import create_model
from cgnl.text import markdown_table

NETWORK = "resnet50_caffe"
CHANNELS = 2048
VIEW = View(size=224, short_side=256)
REDUCED = 128
HIDDEN = 512
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
EPOCHS, BATCH = 15, 64
FIELDS: tuple[str, ...] = ("dataset", "head", "split", "rate", "seed", "top1", "seconds", "right")


class HiddenAverage(nn.Sequential):
    """As much to learn as a second-order head, but averages: 1 x 1 convolution, norm, relu, mean over positions."""

    def __init__(self, channels: int, hidden: int):
        super().__init__(
            nn.Conv2d(channels, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def make_head(name: str, classes: int) -> nn.Sequential:
    """Maps [B, 2048, 7, 7] -> logits [B, classes]."""
    if name == "average":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Classifier(CHANNELS, classes))
    if name == "hidden average":
        return nn.Sequential(HiddenAverage(CHANNELS, HIDDEN), Classifier(HIDDEN, classes))
    pool = SecondOrderPool(CHANNELS, REDUCED, kind=name)
    return nn.Sequential(pool, Classifier(pool.features, classes, gain=pool.gain))


HEADS = ("average", "hidden average", "bilinear", "covariance")


class Maps(NamedTuple):
    """Of the images of a split, and of their mirror images where they are for training."""

    views: Tensor  # [V, count, 2048, 7, 7], float16
    labels: Tensor  # [count]


@torch.inference_mode()
def make_maps(source: FileSource, body: nn.Module, views: int) -> Maps:
    """The last maps of the centre of each image, and of its mirror image if ``views`` is 2."""
    loader = make_loader(EvalSet(source, VIEW), torch.utils.data.BatchSampler(range(len(source)), 32, False), 1)
    found, labels = torch.empty(views, len(source), CHANNELS, 7, 7, dtype=torch.float16), []
    for batch in loader:
        pixels = network_input(batch.pixels[:, 0]).contiguous(memory_format=torch.channels_last)
        first = len(labels)
        labels += batch.labels.tolist()
        for view, x in enumerate((pixels, pixels.flip(-1))[:views]):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found[view, first : len(labels)] = body(x).view(-1, CHANNELS, 7, 7).half()
    if len(labels) != len(source):
        raise ValueError(f"{len(source) - len(labels)} images cannot be read")
    return Maps(found, torch.tensor(labels))


def train(name: str, maps: Maps, classes: int, rate: float, seed: int) -> nn.Module:
    """SGD with momentum, warm-up of an epoch, then a cosine to zero."""
    torch.manual_seed(seed)
    head = make_head(name, classes)
    optimizer = torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    steps = len(maps.labels) // BATCH
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / steps, total_iters=steps)
    rest = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, (EPOCHS - 1) * steps)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, rest], [steps])
    for _ in range(EPOCHS):
        order = torch.randperm(len(maps.labels))
        for at in order[: steps * BATCH].split(BATCH):
            x = maps.views[torch.randint(len(maps.views), at.shape), at]
            optimizer.zero_grad()
            F.cross_entropy(logits(head, x), maps.labels[at]).backward()
            optimizer.step()
            schedule.step()
    return head.eval()


def logits(head: nn.Module, maps: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return head(maps.to(torch.bfloat16)).float()


@torch.inference_mode()
def test(head: nn.Module, maps: Maps) -> str:
    """1 for each image that is right, 0 for the others."""
    found = torch.cat([logits(head, part).argmax(1) for part in maps.views[0].split(256)])
    return "".join(str(int(right)) for right in found == maps.labels)


class Runs:
    """The lines of a file, to which runs are added."""

    def __init__(self, folder: Path):
        self.path = folder / "runs.csv"
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, str]] = []
        if self.path.exists():
            with open(self.path, newline="") as file:
                self.rows = list(csv.DictReader(file))

    def select(self, **values: object) -> list[dict[str, str]]:
        return [row for row in self.rows if all(row[key] == str(value) for key, value in values.items())]

    def add(self, run: Callable[[], str], **values: object) -> None:
        """Run and write, unless it is there."""
        if self.select(**values):
            return
        start = time.time()
        right = run()
        top1 = 100 * right.count("1") / len(right)
        row: dict[str, Any] = {**values, "top1": f"{top1:.3f}", "seconds": round(time.time() - start), "right": right}
        new = not self.path.exists()
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append({key: str(value) for key, value in row.items()})
        print(*[row[key] for key in FIELDS[:-1]], flush=True)

    def best_rate(self, dataset: str, head: str) -> float:
        tried = self.select(dataset=dataset, head=head, split="validation")
        return -max((float(row["top1"]), -float(row["rate"])) for row in tried)[1]


def choose_rates(dataset: str, maps: Maps, held_out: Tensor, classes: int, runs: Runs) -> None:
    """Train each head at each rate on a part of the maps, and test it on those ``held_out``."""
    learned = Maps(maps.views[:, ~held_out], maps.labels[~held_out])
    tested = Maps(maps.views[:1, held_out], maps.labels[held_out])
    for head in HEADS:
        for rate in RATES:
            runs.add(
                lambda head=head, rate=rate: test(train(head, learned, classes, rate, 0), tested),
                **{"dataset": dataset, "head": head, "split": "validation", "rate": rate, "seed": 0},
            )


def run(dataset: str, root: Path, weights: Path, folder: Path, seeds: int) -> None:
    index, runs = READERS[dataset](root), Runs(folder)
    classes = len(index.classes)
    body = create_model(NETWORK, num_classes=classes, weights=weights).eval().to(memory_format=torch.channels_last)
    body.set_submodule("avgpool", nn.Identity())
    body.set_submodule("fc", nn.Identity())
    samples: dict[str, Any] = {split: index.splits[split] for split in ("train", "test")}
    maps = make_maps(FileSource(samples["train"], "images"), body, views=2)
    held_out = {sample.path for sample in hold_out(index, 0.2).splits["test"]}
    choose_rates(dataset, maps, torch.tensor([s.path in held_out for s in samples["train"]]), classes, runs)
    final = make_maps(FileSource(samples["test"], "images"), body, views=1)
    for seed in range(seeds):
        for head in HEADS:
            rate = runs.best_rate(dataset, head)
            runs.add(
                lambda head=head, rate=rate, seed=seed: test(train(head, maps, classes, rate, seed), final),
                **{"dataset": dataset, "head": head, "split": "test", "rate": rate, "seed": seed},
            )


def table(folder: Path) -> str:
    """Top-1 of each head, and its difference to the average, over seeds and over images."""
    runs, lines = Runs(folder), []
    for dataset in dict.fromkeys(row["dataset"] for row in runs.rows):
        plain = runs.select(dataset=dataset, head="average", split="test")
        for head in HEADS:
            rows = runs.select(dataset=dataset, head=head, split="test")
            top1 = [float(row["top1"]) for row in rows]
            cells = [dataset, head, rows[0]["rate"], f"{statistics.fmean(top1):.2f} ± {statistics.stdev(top1):.2f}"]
            if head == "average":
                lines.append([*cells, "", "", ""])
                continue
            differences = [b - float(a["top1"]) for a, b in zip(plain, top1, strict=True)]
            low, high = interval(differences, 0.99)
            over_images = compare_samples([row["right"] for row in plain], [row["right"] for row in rows])
            to_average = f"{statistics.fmean(differences):+.2f} ({low:+.2f} to {high:+.2f})"
            lines.append([*cells, to_average, f"± {over_images.half_width:.2f}", verdict(differences, 0.01)])
    titles = ["dataset", "head", "rate", "top-1", "to average (99 %)", "over images", "verdict"]
    return markdown_table(titles, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train_all = commands.add_parser("run")
    train_all.add_argument("dataset", choices=("cub", "pets"))
    train_all.add_argument("root", type=Path)
    train_all.add_argument("weights", type=Path)
    for command in (train_all, commands.add_parser("table")):
        command.add_argument("results", type=Path)
    train_all.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if given.command == "run":
        run(given.dataset, given.root, given.weights, given.results, given.seeds)
    else:
        print(table(given.results))


if __name__ == "__main__":
    main()
