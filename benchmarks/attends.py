"""Does a network trained on embedded pictures attend from one part to the other?

Networks are trained on the recipe of each dataset. In each test picture the reference is the middle of one part, and
then of the other. Counted is how often the related patches (scaled map at 0.7 and above) overlap the other part, and
how often they hold its middle: of the map of largest range, and of the union of the five that ``cgnl explain`` draws.
By chance: the overlap of the same patches with a part of that size anywhere in the picture; for the middle, their area.

python benchmarks/attends.py --datasets parts relation --seeds 0 1 --csv benchmarks/results/attends.csv
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cgnl
from cgnl.data.embedded import EMBEDDED
from cgnl.data.transforms import Box, network_input
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.config import load
from cgnl.engine.datasets import TEST_SEED
from cgnl.engine.train import train
from cgnl.explain.maps import COLUMNS, Map

NAMES = ("overlap", "overlap_by_chance", "middle", "area")
SETTINGS = {"parts": {}, "relation": {"test_every": 5}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["parts"], choices=list(SETTINGS))
    parser.add_argument("--blocks", nargs="+", default=["cgnl", "nl"])
    parser.add_argument("--after", default="layer2.1", help="module that the block is behind")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--csv", type=Path, default=Path("attends.csv"))
    parser.add_argument("--set", nargs="*", default=[], help="settings, such as data.samples=100")
    args = parser.parse_args()
    given = dict(word.split("=", 1) for word in args.set)
    with args.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("dataset", "block", "after", "seed", "test_top1", "pictures", "maps", *NAMES))
        for dataset, seed, block in [(d, s, b) for d in args.datasets for s in args.seeds for b in args.blocks]:
            name = f"attends_{dataset}_{block}_{args.after}_{seed}"
            options = {"model.block": block, "model.options": {"after": [args.after]}, "seed": seed, "name": name}
            result = train(load(dataset, SETTINGS[dataset] | options | given))
            network = open_trained(result.folder / "last.ckpt").network
            network.to("cuda" if torch.cuda.is_available() else "cpu")
            counts = torch.tensor([list(each) for each in measure(network, dataset, args.pictures)])  # [R, 2, 4]
            drawn = (1,) if block == "nl" else (1, COLUMNS)
            for maps, row in zip(drawn, counts.mean(0).tolist(), strict=False):
                about = (dataset, block, args.after, seed, result.test["test_top1"], args.pictures, maps)
                writer.writerow((*about, *(round(value, 4) for value in row)))
                print(*about, {name: round(value, 3) for name, value in zip(NAMES, row, strict=True)}, flush=True)
            file.flush()


def measure(network: nn.Module, dataset: str, pictures: int) -> Iterator[list[list[float]]]:
    """For each reference the four numbers of the first map and of the union of the maps that are drawn."""
    device = next(network.parameters()).device
    for index in range(pictures):
        drawing = EMBEDDED[dataset][1](TEST_SEED, index)
        x = network_input(drawing.pixels[None].to(device))
        for here, there in (drawing.parts, drawing.parts[::-1]):
            at = here.left + here.width / 2, here.top + here.height / 2
            masks = [patches(m, x.shape[-2:]) for m in cgnl.explain.attention(network, x, at).strongest()]
            yield [compare(masks[0], there), compare(torch.stack(masks).any(0), there)]


def patches(shown: Map, size: torch.Size) -> Tensor:
    """The related patches of a map as pixels [H, W]."""
    return F.interpolate(shown.related()[None, None].float(), size)[0, 0] > 0


def compare(mask: Tensor, part: Box) -> list[float]:
    """Whether patches overlap a part, how often by chance, whether they hold its middle, and their area."""
    inside = mask[part.top : part.top + part.height, part.left : part.left + part.width]
    anywhere = F.max_pool2d(mask[None].float(), (part.height, part.width), stride=1)
    middle = mask[part.top + part.height // 2, part.left + part.width // 2]
    return [float(inside.any()), float(anywhere.mean()), float(middle), float(mask.float().mean())]


if __name__ == "__main__":
    main()
