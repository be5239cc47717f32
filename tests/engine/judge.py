"""pycocotools, which defines average precision."""

import contextlib
import copy
import importlib
import io
from typing import Any

from cgnl.engine.tasks.detection import COCO_NUMBERS

api: Any = importlib.import_module("pycocotools.mask")  # its types are narrower than what it takes
COCO: Any = importlib.import_module("pycocotools.coco").COCO
COCOeval: Any = importlib.import_module("pycocotools.cocoeval").COCOeval


def by_pycocotools(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, float]:
    """COCO's twelve numbers for boxes and for masks."""
    numbers = {}
    for name, kind, other in (("box", "bbox", "segmentation"), ("mask", "segm", "bbox")):
        with contextlib.redirect_stdout(io.StringIO()):
            wanted = COCO()
            wanted.dataset = copy.deepcopy(truth)
            wanted.createIndex()
            if results:
                found = wanted.loadRes([{k: v for k, v in row.items() if k != other} for row in results])
            else:  # it cannot load nothing
                found = COCO()
                found.dataset = copy.deepcopy(truth) | {"annotations": []}
                found.createIndex()
            evaluation = COCOeval(wanted, found, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        numbers |= {f"{name}_{n}": float(v) for n, v in zip(COCO_NUMBERS, evaluation.stats, strict=True)}
    return numbers
