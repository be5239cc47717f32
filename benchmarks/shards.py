"""Samples a second of the training loader: from class folders, and from the shards packed of them, in one run.

python -m benchmarks.shards [FOLDER] [--workers 1] [--rounds 5]

Without a folder, 400 pictures of 256 x 256 pixels are drawn. Rounds take turns; each reads every picture once, either
from the memory where the system keeps files, or after these were dropped from it.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from cgnl.data.images import to_image
from cgnl.data.loading import TrainBatchSampler, TrainSet, make_loader
from cgnl.data.pack import pack
from cgnl.data.readers import READERS
from cgnl.engine.datasets import open_dataset, view_in_training
from cgnl.engine.settings import Data
from cgnl.text import markdown_table


def draw(folder: Path, classes: int = 10, count: int = 40) -> None:
    """Smooth pictures with noise, which compress about as photographs do."""
    source = torch.Generator().manual_seed(0)
    for label in range(classes):
        (folder / f"{label:02}").mkdir(parents=True)
        for number in range(count):
            smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 16, 16, generator=source), 256, mode="bilinear")
            noise = torch.randn(1, 3, 256, 256, generator=source) / 30
            pixels = ((smooth + noise)[0].clamp(0, 1) * 255).to(torch.uint8)
            to_image(pixels).save(folder / f"{label:02}" / f"{number}.jpg", quality=90)


def forget(folder: Path) -> None:
    """Drop files from the memory where the system keeps them."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def measure(data: Data, workers: int, seed: int, batch_size: int = 32) -> float:
    """Samples a second over an epoch, without the first batch; of the processor's time where there are no workers."""
    source = open_dataset(data).train
    batches = TrainBatchSampler(len(source), batch_size, 1, seed)
    samples = TrainSet(source, view_in_training(data), seed, 0)
    count, start, clock = 0, 0.0, time.perf_counter if workers else time.process_time
    for number, batch in enumerate(make_loader(samples, batches, workers)):
        if number == 0:
            start = clock()
        else:
            count += len(batch.samples)
    return count / (clock() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or f"{temporary}/pictures")
        if given.folder is None:
            draw(folder)
        shards = Path(temporary) / "shards"
        done = pack(READERS["folder"](folder), folder, shards, say=lambda _: None)
        places = {"folder": folder, "shards": shards}
        rows = []
        for cold in (False, True):
            speeds: dict[str, list[float]] = {name: [] for name in places}
            for number in range(given.rounds + 1):
                for name, place in places.items():
                    if cold:
                        forget(place)
                    speed = measure(Data(name, str(place), size=128), given.workers, number)
                    speeds[name] += [speed] if number else []  # the first round warms up
            ratio = statistics.median(b / a for a, b in zip(*speeds.values(), strict=True))
            medians = [f"{statistics.median(speeds[name]):,.0f}" for name in places]
            rows.append(["dropped from memory" if cold else "in memory", *medians, f"{ratio:.2f}"])
    print(f"{done.samples:,} samples in {done.shards} shards, {given.workers} workers, {platform.machine()}")
    print(markdown_table(["files", "folder, samples/s", "shards, samples/s", "ratio"], rows))


if __name__ == "__main__":
    main()
