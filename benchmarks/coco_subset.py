"""One small dataset in COCO's layout out of several that overlap: 128 pictures to train on, the rest held out.

    python benchmarks/coco_subset.py OUT SOURCE ... [--train 128] [--short-side 480] [--quality 82]

Each SOURCE is a folder in COCO's layout (annotations/instances_{train,val}2017.json beside train2017 and val2017).
A picture that is in several, by its id or by its pixels, is taken once. Which are trained on follows from their ids.
Pictures without objects are held out. Pictures are made smaller and written as JPEG, and annotations with them.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from faster_coco_eval.core import mask as api
from PIL import Image, ImageOps

SPLITS = ("train", "val")


def gather(sources: Iterable[Path]) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Pictures by id, each with its path and annotations, and the categories."""
    pictures: dict[int, dict[str, Any]] = {}
    categories: list[dict[str, Any]] = []
    seen: set[bytes] = set()
    for source in sources:
        for split in SPLITS:
            content = json.loads((source / "annotations" / f"instances_{split}2017.json").read_text())
            categories = categories or content["categories"]
            if content["categories"] != categories:
                raise SystemExit(f"{source} has other categories than the sources before it")
            annotations: dict[int, list[dict[str, Any]]] = {}
            for row in content["annotations"]:
                annotations.setdefault(row["image_id"], []).append(row)
            for row in content["images"]:
                path = source / f"{split}2017" / row["file_name"]
                if row["id"] in pictures or not path.is_file():
                    continue
                with Image.open(path) as image:
                    digest = hashlib.blake2b(image.convert("RGB").tobytes()).digest()
                if digest not in seen:
                    seen.add(digest)
                    pictures[row["id"]] = row | {"path": path, "objects": annotations.get(row["id"], [])}
    return pictures, categories


def chosen(pictures: dict[int, dict[str, Any]], count: int) -> set[int]:
    """The pictures to train on: those with objects whose ids have the smallest digests."""
    filled = [n for n, picture in pictures.items() if any(not row["iscrowd"] for row in picture["objects"])]
    return set(sorted(filled, key=lambda n: hashlib.blake2b(str(n).encode()).digest())[:count])


def write(picture: dict[str, Any], folder: Path, short_side: int, quality: int) -> tuple[dict, list[dict]]:
    """Write a picture no larger than asked for; returns its entry and its annotations, in its new size."""
    with Image.open(picture["path"]) as image:
        image = ImageOps.exif_transpose(image).convert("RGB")
        ratio = min(1.0, short_side / min(image.size))
        size = round(image.width * ratio), round(image.height * ratio)
        image.resize(size, Image.Resampling.LANCZOS).save(folder / f"{picture['id']:012}.jpg", quality=quality)
        across, down = size[0] / image.width, size[1] / image.height
    entry = {"id": picture["id"], "file_name": f"{picture['id']:012}.jpg", "width": size[0], "height": size[1]}
    return entry, [smaller(row, across, down, size) for row in picture["objects"]]


def smaller(row: dict[str, Any], across: float, down: float, size: tuple[int, int]) -> dict[str, Any]:
    """An annotation for a picture of another size."""
    x, y, w, h = row["bbox"]
    shape = row["segmentation"]
    if isinstance(shape, list):
        shape = [[v * (down if i % 2 else across) for i, v in enumerate(polygon)] for polygon in shape]
    else:
        shape = smaller_runs(shape, size)
    box = [x * across, y * down, w * across, h * down]
    return {
        "id": row["id"],
        "image_id": row["image_id"],
        "category_id": row["category_id"],
        "iscrowd": row["iscrowd"],
        "bbox": [round(v, 2) for v in box],
        "area": row["area"] * across * down,
        "segmentation": shape if isinstance(shape, dict) else [[round(v, 2) for v in p] for p in shape],
    }


def smaller_runs(shape: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """A run-length encoding for a picture of another size."""
    whole = api.frPyObjects(shape, *shape["size"]) if isinstance(shape["counts"], list) else shape
    mask = Image.fromarray(api.decode(whole)).resize(size, Image.Resampling.NEAREST)
    encoded = api.encode(np.asfortranarray(np.asarray(mask)))
    counts = encoded["counts"]
    return {"size": [size[1], size[0]], "counts": counts if isinstance(counts, str) else counts.decode()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--train", type=int, default=128)
    parser.add_argument("--short-side", type=int, default=480)
    parser.add_argument("--quality", type=int, default=82)
    options = parser.parse_args()
    pictures, categories = gather(options.sources)
    train = chosen(pictures, options.train)
    (options.out / "annotations").mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        folder = options.out / f"{split}2017"
        folder.mkdir(exist_ok=True)
        mine = [pictures[n] for n in sorted(pictures) if (n in train) == (split == "train")]
        rows = [write(picture, folder, options.short_side, options.quality) for picture in mine]
        content = {
            "images": [entry for entry, _ in rows],
            "annotations": [row for _, annotations in rows for row in annotations],
            "categories": categories,
        }
        (options.out / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
        print(f"{split}2017: {len(rows)} pictures, {len(content['annotations'])} objects")


if __name__ == "__main__":
    main()
