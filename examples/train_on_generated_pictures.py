"""A CGNL ResNet-18 learns generated pictures on a CPU: the class is which two colours stand far apart.

python examples/train_on_generated_pictures.py [--steps 120] [--block cgnl | nl | residual | none]
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor

import cgnl
from cgnl.data.embedded import PARTS, parts
from cgnl.data.transforms import normalize


def pictures(seed: int, indices: range) -> tuple[Tensor, Tensor]:
    """Samples of the embedded dataset ``parts``: [N, 3, 64, 64], [N]."""
    drawings = [parts(seed, index) for index in indices]
    return normalize(torch.stack([d.pixels for d in drawings])), torch.tensor([d.label for d in drawings])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--block", default="cgnl", choices=["cgnl", "cgnlx", "nl", "residual", "none"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    block = None if args.block == "none" else args.block
    model = cgnl.create_model("resnet18", block=block, num_classes=len(PARTS))
    print(f"ResNet-18, block: {args.block}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=args.steps, pct_start=0.2)

    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        x, labels = pictures(args.seed, range((step - 1) * args.batch, step * args.batch))
        logits = model(x)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == args.steps:
            accuracy = (logits.argmax(1) == labels).float().mean()
            speed = step * args.batch / (time.perf_counter() - start)
            print(f"step {step:4d}  loss {loss:.3f}  accuracy {accuracy:6.1%}  {speed:.0f} pictures/s", flush=True)

    model.eval()
    with torch.no_grad():
        x, labels = pictures(args.seed + 1, range(540))
        correct = sum((model(a).argmax(1) == b).sum() for a, b in zip(x.split(90), labels.split(90), strict=True))
    print(f"test: {correct / len(labels):.1%} of {len(labels)} new pictures right, chance {1 / len(PARTS):.1%}")


if __name__ == "__main__":
    main()
