"""The layout of a folder, by the files in it."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .index import TEST_FOLDERS, walk

MARKERS = {
    "cub": ("CUB-200-2011", "image_class_labels.txt", "CUB_200_2011/image_class_labels.txt"),
    "pets": ("Oxford-IIIT Pets", "annotations/trainval.txt", "oxford-iiit-pet/annotations/trainval.txt"),
    "imagenet": ("ImageNet", "ILSVRC/Data/CLS-LOC"),
    "ucf101": ("UCF101", "classInd.txt", "ucfTrainTestlist/classInd.txt"),
    "mini_kinetics200": ("Mini-Kinetics-200", "train_ytid_list.txt", "mini-kinetics-200/train_ytid_list.txt"),
    "lsa64": ("LSA64", "001_001_001.*", "all/001_001_001.*", "dataset/001_001_001.*"),
    "coco": ("COCO", "annotations/instances_train*.json"),
    "yolo": ("YOLO's labels", "labels/train/*.txt", "train/labels/*.txt"),
}
"""Layout -> its name, and patterns of the files that identify it."""
NAMES = {
    "csv": "a table of labels",
    "hf": "a Hugging Face dataset",
    "kinetics400": "Kinetics-400",
    "shards": "tar shards",
} | {layout: name for layout, (name, *_) in MARKERS.items()}
"""Layout -> its name; all others are class folders."""


def recognise(root: Path) -> tuple[str, dict[str, str]]:
    """The layout of a folder, and further arguments of its reader."""
    if layout := find_layout(root):
        return layout, {}
    top = next(walk(root))
    names = {path.name for path in top.files}
    if "dataset_dict.json" in names or {"dataset_info.json", "state.json"} <= names:
        return "hf", {}
    if any(path.suffix == ".tar" for path in top.files) or any(root.glob("*/*.tar")):
        return "shards", {}
    for place in (root, root / "annotations"):
        if {"youtube_id", "label"} <= _columns(place / "train.csv"):
            return "kinetics400", {}
    for path in top.files:
        if path.suffix.lower() == ".csv" and {"file", "label"} <= _columns(path):
            return "csv", {"labels": path.name}
    return next(_annotations(root), ("folder", {}))


def find_layout(root: Path) -> str | None:
    """The layout whose files are in a folder, or None for class folders and all else."""
    found = (layout for layout, (_, *markers) in MARKERS.items() if any(any(root.glob(m)) for m in markers))
    return next(found, None)


def describe_layout(layout: str, given: Mapping[str, str]) -> str:
    """What a folder of a layout looks like, and how to say so."""
    words = [f"{name}={value}" for name, value in {"dataset": layout, **given}.items()]
    return f"looks like {NAMES[layout]}: say {' '.join(words)}, or in training data.{' data.'.join(words)}"


def _columns(path: Path) -> set[str]:
    """The columns of a CSV file, none if there is no such file."""
    if not path.is_file():
        return set()
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return set(next(csv.reader([file.readline(10_000)]), []))


def _annotations(root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """COCO's format under other names: one file in the folder, or one in each split beside its images."""
    for path in sorted(root.glob("*.json")):
        if _is_coco(path):
            yield "coco", {"annotations": path.name}
    for path in sorted((root / "train").glob("*.json")):
        if not _is_coco(path):
            continue
        given = {"annotations": f"train/{path.name}", "images": "train"}
        if test := next((name for name in TEST_FOLDERS if (root / name / path.name).is_file()), None):
            given |= {"test_annotations": f"{test}/{path.name}", "test_images": test}
        yield "coco", given


def _is_coco(path: Path) -> bool:
    try:
        content: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()
