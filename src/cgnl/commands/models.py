"""``cgnl models``."""

import json as json_module
from dataclasses import asdict
from typing import Annotated, Any, Literal

from ..engine.checks import network_names
from ..text import first_line

AtMostMillion = Annotated[int, "> 0", "<= 1e6"]  # products of larger numbers exceed the size of a tensor


def models(
    name: str | None = None,
    block: Literal["none", "cgnl", "cgnlx", "nl", "residual"] = "none",
    blocks: int = 1,
    groups: int | None = None,
    head: Literal["average", "covariance", "bilinear", "compact"] = "average",
    reduced: AtMostMillion | None = None,
    size: AtMostMillion = 224,
    frames: Annotated[int, ">= 8", "<= 1e6"] = 32,
    num_classes: AtMostMillion | None = None,
    json: bool = False,
) -> None:
    """List the networks, with parameters and multiply-adds.

    Args:
        name: list only networks with this in their name.
        block: insert this block.
        blocks: number of blocks: 1 (in res4) or 5 (2 in res3, 3 in res4).
        groups: channel groups of the block. If not given: 8.
        head: pooling before the classifier. Mask R-CNN has only the average.
        reduced: channels whose products a second-order head takes. If not given: 256.
        size: height and width of the input.
        frames: frames in a clip, for video networks.
        num_classes: outputs of the classifier. If not given: 1000; for Mask R-CNN 91, with the background.
        json: print JSON.
    """
    chosen = [network for network in network_names() if (name or "") in network]
    if not chosen:
        raise ValueError(f"no network has {name!r} in its name: there is {', '.join(network_names())}")
    if groups is not None and block == "nl":
        raise ValueError(f"groups = {groups}: a non-local block has no channel groups")
    options: dict[str, Any] = {"block": block, "blocks": blocks} if block != "none" else {}
    options |= {} if groups is None else {"groups": groups}
    options |= {} if head == "average" else {"head": head}
    options |= {} if reduced is None else {"reduced": reduced}
    from ..models import is_detector
    from ..models.table import cost

    rows, problems = [], []
    for network in chosen:
        try:
            rows.append(cost(network, size, frames, num_classes, **options))
        except (RuntimeError, ValueError) as error:  # RuntimeError: the input is too small
            problems.append(f"{network}: {first_line(error)}")
    if not rows:
        raise ValueError(problems[0])
    if json:
        print(json_module.dumps([asdict(row) for row in rows], indent=2))
        return
    width = max(18, *(len(row.network) for row in rows))
    with_head = head != "average"
    title = f"{'head':16} " if with_head else ""
    print(f"{'network':{width}} {'blocks':10} {title}{'input':16} {'parameters':>12} {'GMACs':>9}")
    for row in rows:
        named = f"{row.network:{width}} {row.blocks:10} {f'{row.head:16} ' if with_head else ''}{row.input:16}"
        print(f"{named} {row.parameters / 1e6:10.2f} M {row.gmacs:9.3f}")
    print("\nGMACs: multiply-adds of convolutions, matrix products and the block's sums for one input. 1 MAC = 2 FLOP.")
    if any(is_detector(row.network) for row in rows):
        from ..models.detection import DETECTIONS, PROPOSALS

        print(f"Mask R-CNN: with {PROPOSALS} proposals and {DETECTIONS} detections.")
    for problem in problems:
        print(f"left out, {problem}")
