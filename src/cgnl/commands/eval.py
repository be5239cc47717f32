"""``cgnl eval``."""

import json as json_module

from ..engine.runs import find_checkpoint
from ..engine.settings import OfTest
from ..text import percent, say


def eval(checkpoint: str, *more: str, json: bool = False, **settings: OfTest) -> None:
    """Test checkpoints by the full protocol.

    Several checkpoints are tested one by one and their results averaged, as for the three splits of UCF101.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it.
        more: further checkpoints.
        json: print JSON.
        settings: Change settings of the training, as in: cgnl eval last.ckpt data.root=elsewhere data.test_clips=5
    """
    paths = [checkpoint, *more]
    for path in paths:
        find_checkpoint(path)
    from ..engine.distributed import is_rank_zero
    from ..engine.evaluate import evaluate
    from ..engine.messages import NAMES

    results = []
    for path in paths:
        result = evaluate(path, settings)
        results.append(result)
        if is_rank_zero() and not json:
            say(f"{path}{result['of']}", *result["words"])
    if not is_rank_zero():
        return
    metric = results[0]["metric"]
    mean = sum(result["test"][f"test_{metric}"] for result in results) / len(results)
    if json:
        tests = [{"checkpoint": p, **r["test"]} for p, r in zip(paths, results, strict=True)]
        print(json_module.dumps({"tests": tests, f"mean_{metric}": mean}, indent=2))
    elif more:
        splits = {result["of"] for result in results}
        what = "the three splits of UCF101" if len(splits) == len(paths) == 3 else f"{len(paths)} checkpoints"
        say(f"mean of {what}: {NAMES[metric]} {percent(mean)}")
