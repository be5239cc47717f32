"""``cgnl models``."""

import json as json_
from dataclasses import asdict
from typing import Literal

from ..models import NETWORKS, is_detector
from ..models.table import MOST, cost
from ..spelling import first_line


def models(
    name: str | None = None,
    block: Literal["none", "cgnl", "cgnlx", "nl", "residual"] = "none",
    blocks: int = 1,
    groups: int | None = None,
    head: Literal["average", "covariance", "bilinear", "compact"] = "average",
    reduced: int | None = None,
    size: int = 224,
    frames: int = 32,
    num_classes: int | None = None,
    json: bool = False,
) -> None:
    """List the networks that can be built, with parameters and multiply-adds.

    Args:
        name: only networks with this in their name.
        block: put this block into them.
        blocks: how many: 1 (in res4) or 5 (2 in res3, 3 in res4).
        groups: channel groups of the block.
        head: what pools the last map; Mask R-CNN has an average alone.
        reduced: channels whose products a second-order head takes, 256 unless given.
        size: height and width of the input.
        frames: length of a clip, for video networks.
        num_classes: outputs of the classifier, 1000 unless given; of Mask R-CNN, with the background, 91.
        json: print JSON instead of a table.
    """
    if size < 1 or frames < 8:
        raise ValueError(f"size = {size} must be at least 1 and frames = {frames} at least 8")
    for option, value in {"size": size, "frames": frames, "num_classes": num_classes, "reduced": reduced}.items():
        if (value or 0) > MOST:
            raise ValueError(f"{option} = {value} must be at most {MOST:,}")
    chosen = [network for network in NETWORKS if (name or "") in network]
    if not chosen:
        raise ValueError(f"no network has {name!r} in its name: there is {', '.join(NETWORKS)}")
    options = {"block": block, "blocks": blocks} if block != "none" else {}
    options |= {} if groups is None else {"groups": groups}
    if groups is not None and block == "nl":
        raise ValueError(f"groups = {groups}: a non-local block has no channel groups")
    options |= {} if head == "average" else {"head": head}
    options |= {} if reduced is None else {"reduced": reduced}
    rows, problems = [], []
    for network in chosen:
        try:
            rows.append(cost(network, size, frames, num_classes, **options))
        except (RuntimeError, ValueError) as error:  # RuntimeError: an input that is too small for it
            problems.append(f"{network}: {first_line(error)}")
    if not rows:
        raise ValueError(problems[0])
    if json:
        print(json_.dumps([asdict(row) for row in rows], indent=2))
        return
    wide = max(18, *(len(row.network) for row in rows))
    with_head = head != "average"
    title = f"{'head':16} " if with_head else ""
    print(f"{'network':{wide}} {'blocks':10} {title}{'input':16} {'parameters':>12} {'GMACs':>9}")
    for row in rows:
        named = f"{row.network:{wide}} {row.blocks:10} {f'{row.head:16} ' if with_head else ''}{row.input:16}"
        print(f"{named} {row.parameters / 1e6:10.2f} M {row.gmacs:9.3f}")
    print("\nGMACs: multiply-adds of convolutions, matrix products and the block's sums for one input. 1 MAC = 2 FLOP.")
    if any(is_detector(row.network) for row in rows):
        from ..models.detection import DETECTIONS, PROPOSALS

        print(f"Mask R-CNN: with {PROPOSALS} proposals and {DETECTIONS} detections.")
    for problem in problems:
        print(f"left out, {problem}")
