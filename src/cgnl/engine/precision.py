"""Average precision of boxes and masks, as COCO defines it, by faster-coco-eval."""

import copy
from collections.abc import Iterable
from typing import Any

from ..extras import need
from . import distributed

NUMBERS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
NUMBERS += ("ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large")
"""COCO's twelve: average precision, and average recall with 1, 10 and 100 detections; by area of the object."""
NOT_OF = {"bbox": "segmentation", "segm": "bbox"}
"""Entries that must not be there: where there are both, an object's area would be that of its box."""


def average_precision(truth: dict[str, Any], results: Iterable[dict[str, Any]]) -> dict[str, float]:
    """COCO's twelve numbers for boxes and for masks, from 0 to 1; -1 where there is no object of that size.

    ``truth`` is the content of an annotation file, ``results`` are in COCO's result format.
    """
    api = need("faster_coco_eval", "detection")
    results, numbers = list(results), {}
    for name, kind in (("box", "bbox"), ("mask", "segm")):
        wanted = api.COCO(copy.deepcopy(truth))
        found = wanted.loadRes([{k: v for k, v in row.items() if k != NOT_OF[kind]} for row in results])
        evaluation = api.COCOeval_faster(wanted, found, iouType=kind, print_function=_say_nothing)
        evaluation.run()
        numbers |= {f"{name}_{n}": float(v) for n, v in zip(NUMBERS, evaluation.stats, strict=False)}
    return numbers


class Collected:
    """Results of the pictures that this process has tested."""

    def __init__(self):
        self.pictures: list[int] = []
        self.results: list[dict[str, Any]] = []

    def add(self, picture: int, results: list[dict[str, Any]]) -> None:
        self.pictures.append(picture)
        self.results += results

    def gather(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Pictures and results in one order, however many processes there are."""
        parts = distributed.all_gather((self.pictures, self.results))
        pictures = sorted(picture for part in parts for picture in part[0])
        return pictures, sorted((row for part in parts for row in part[1]), key=lambda row: row["image_id"])


def _say_nothing(*_: object) -> None:
    pass
