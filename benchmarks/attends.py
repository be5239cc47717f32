"""Does a network trained on embedded pictures attend from one part to the other?

In each test picture the reference is the middle of one part, and then of the other. Counted is how often the related
patches (scaled map at 0.7 and above) overlap the other part, and how often they hold its middle: of the map of largest
range, and of the union of the five that ``cgnl explain`` draws.
By chance: the overlap of the same patches with a part of that size anywhere in the picture; for the middle, their area.

cgnl train parts name=parts_cgnl model.block=cgnl model.after=[layer2.1]
cgnl train parts name=parts_nl model.block=nl model.after=[layer2.1]
python benchmarks/attends.py runs/parts_cgnl/last.ckpt runs/parts_nl/last.ckpt --csv benchmarks/results/attends.csv
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import cgnl
from cgnl.data.synthetic import SYNTHETIC
from cgnl.data.transforms import Box, network_input
from cgnl.engine.checkpoint import Trained, open_trained
from cgnl.engine.datasets import TEST_SEED, dataset_name
from cgnl.explain import Attention, Map

NAMES = ("overlap", "overlap_by_chance", "middle", "area")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", help="of networks trained on embedded pictures")
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--csv", type=Path, default=Path("attends.csv"))
    args = parser.parse_args()
    with args.csv.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "dataset", "block", "grid", "seed", "pictures", "maps", *NAMES))
        for path in args.checkpoints:
            trained = open_trained(path)
            results = list(attentions(trained, args.pictures))
            first = results[0][0]
            grid = "x".join(map(str, first.maps.shape[2:]))
            run = Path(path).resolve().parent.name
            about = (run, dataset_name(trained.config.data), first.block, grid, trained.config.seed, args.pictures)
            for maps in (1,) if first.non_local else (1, 5):
                numbers = [compare(union(result.strongest(maps), result), part) for result, part in results]
                row = [round(value, 3) for value in torch.tensor(numbers).mean(0).tolist()]
                writer.writerow((*about, maps, *row))
                print(*about, f"maps {maps}", dict(zip(NAMES, row, strict=True)), flush=True)


def attentions(trained: Trained, pictures: int) -> Iterator[tuple[Attention, Box]]:
    """From each part of each test picture, with the part that it should find."""
    draw = SYNTHETIC[dataset_name(trained.config.data)][1]
    for index in range(pictures):
        drawing = draw(TEST_SEED, index)
        x = network_input(drawing.pixels[None])
        for here, there in (drawing.parts, drawing.parts[::-1]):
            at = here.left + here.width / 2, here.top + here.height / 2
            yield cgnl.explain.attention(trained.network, x, at), there


def union(maps: list[Map], result: Attention) -> Tensor:
    """The related patches of all maps together, as pixels [H, W]."""
    related = torch.stack([m.related() for m in maps]).any(0)
    return F.interpolate(related[None, None].float(), result.input_size)[0, 0] > 0


def compare(mask: Tensor, part: Box) -> list[float]:
    """Whether patches overlap a part, how often by chance, whether they hold its middle, and their area."""
    inside = mask[part.top : part.top + part.height, part.left : part.left + part.width]
    anywhere = F.max_pool2d(mask[None].float(), (part.height, part.width), stride=1)
    middle = mask[part.top + part.height // 2, part.left + part.width // 2]
    return [float(inside.any()), float(anywhere.mean()), float(middle), float(mask.float().mean())]


if __name__ == "__main__":
    main()
