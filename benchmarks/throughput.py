"""How close training from files comes to the same compiled step on a batch that stays on the GPU, in one run.

python benchmarks/throughput.py cub_r50_cgnl1 data.root=CUB_200_2011 optim.batch_size=64
"""

import statistics
import sys
import time

import torch

from cgnl.data.loading import Batch
from cgnl.engine.config import load
from cgnl.engine.datasets import Dataset, get_size
from cgnl.engine.network import build_network
from cgnl.engine.optimizer import make_optimizer
from cgnl.engine.tasks import Images
from cgnl.engine.train import train

EPOCHS = 5


def resident_speed(task: Images, size: int, batch_size: int, steps: int = 60) -> float:
    """Samples a second of the training step on one batch of random pictures."""
    pixels = torch.randint(0, 256, (batch_size, 3, size, size), dtype=torch.uint8, device="cuda")
    labels = torch.randint(0, len(task.dataset.classes), (batch_size,), device="cuda")
    batch = Batch(pixels, labels, labels, ())
    optimizer = make_optimizer(task.network, task.config.optim, lr=0.01)
    start, warm_up = 0.0, 20
    for step in range(warm_up + steps):
        if step == warm_up:
            torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = task.loss(task.network, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    return steps * batch_size / (time.perf_counter() - start)


def main() -> None:
    recipe, *words = sys.argv[1:]
    fixed = {"compile": True, "optim.epochs": EPOCHS - 1, "optim.warmup_epochs": 1, "test_every": EPOCHS}
    config = load(recipe, fixed | dict(word.split("=", 1) for word in words))
    result = train(config)
    speeds = [row["samples_per_second"] for row in result.rows]
    classes = tuple(map(str, range(200)))
    torch.compiler.reset()
    network = build_network(config.model, len(classes))
    task = Images(network, config, Dataset("random", classes, "images", (), ()), torch.device("cuda"))
    network.compile()
    resident = resident_speed(task, get_size(config.data), config.optim.batch_size)
    steady = statistics.median(speeds[1:])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {' '.join(sys.argv[1:])}")
    print("samples/s of each epoch:", ", ".join(f"{speed:,.0f}" for speed in speeds), "(the first one compiles)")
    print(f"from files {steady:,.0f} samples/s, resident batch {resident:,.0f}, ratio {steady / resident:.3f}")


if __name__ == "__main__":
    main()
