"""Average precision against pycocotools, which defines it."""

import copy
from typing import Any

import numpy as np
import pytest

from cgnl.engine.tasks import detection
from cgnl.engine.tasks.detection import average_precision
from tests.engine.judge import api, by_pycocotools

HEIGHT, WIDTH = 120, 160


def runs(mask: np.ndarray) -> dict[str, Any]:
    encoded: Any = api.encode(np.asfortranarray(mask))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


def rectangle(x: float, y: float, w: float, h: float) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[round(y) : round(y + h), round(x) : round(x + w)] = 1
    return mask


def scene(seed: int, pictures: int = 8, per_picture: int = 6, ties: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """Objects at random, a fifth of them crowds, and detections that are moved objects or nothing at all.

    The first picture is empty, and something is found in it all the same.
    """
    draw = np.random.default_rng(seed)
    truth: dict[str, Any] = {
        "images": [{"id": 10 * n + 3, "height": HEIGHT, "width": WIDTH} for n in range(pictures)],
        "categories": [{"id": n, "name": str(n)} for n in (1, 7, 90)],
        "annotations": [],
    }
    results = []
    box = [5.0, 5.0, 50.0, 40.0]
    nothing = {"image_id": 3, "category_id": 1, "bbox": box, "segmentation": runs(rectangle(*box)), "score": 0.6}
    results.append(nothing)
    for picture in truth["images"][1:]:
        for _ in range(draw.integers(0, per_picture)):
            x, y = draw.uniform(0, WIDTH - 20), draw.uniform(0, HEIGHT - 20)
            w, h = draw.uniform(4, WIDTH - x), draw.uniform(4, HEIGHT - y)
            crowd = bool(draw.random() < 0.2)
            polygon = [[x, y, x + w, y, x + w, y + h, x + w / 3, y + h]]
            annotation = {
                "id": len(truth["annotations"]) + 1,
                "image_id": picture["id"],
                "category_id": int(draw.choice([1, 7])),  # nothing is of category 90
                "bbox": [x, y, w, h],
                "segmentation": runs(rectangle(x, y, w, h)) if crowd else polygon,
                "area": w * h * draw.uniform(0.05, 1.2),  # its own, which neither box nor mask has
                "iscrowd": int(crowd),
            }
            truth["annotations"].append(annotation)
            for _ in range(draw.integers(0, 4)):
                moved = np.array([x, y, w, h]) + draw.normal(0, 3, 4)
                moved[2:] = moved[2:].clip(2)
                score = float(draw.choice([0.25, 0.5, 0.75])) if ties else float(draw.random())
                results.append(
                    {
                        "image_id": picture["id"],
                        "category_id": int(draw.choice([annotation["category_id"], 90])),
                        "bbox": moved.tolist(),
                        "score": score,
                        "segmentation": runs(rectangle(*moved.clip(0))),
                    }
                )
    return truth, results


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_average_precision_is_that_of_pycocotools(seed, ties):
    truth, results = scene(seed, ties=ties)
    assert any(row["iscrowd"] for row in truth["annotations"])
    assert 3 not in {row["image_id"] for row in truth["annotations"]}
    assert 3 in {row["image_id"] for row in results}
    expected = by_pycocotools(truth, results)
    assert average_precision(truth, results) == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["box_ap"] < 1
    assert expected["box_ap"] != expected["mask_ap"]


def test_average_precision_counts_a_hundred_detections_of_a_picture():
    truth, results = scene(0, pictures=2)
    many = [row | {"score": row["score"] - n / 1000} for n in range(60) for row in results]
    assert max(np.bincount([row["image_id"] for row in many])) > 100
    assert average_precision(truth, many) == pytest.approx(by_pycocotools(truth, many), abs=1e-6)


def test_average_precision_of_nothing_found_is_zero():
    truth, _ = scene(1)
    numbers = average_precision(truth, [])
    assert numbers == pytest.approx(by_pycocotools(truth, []), abs=1e-6)
    assert numbers["box_ap"] == numbers["mask_ap"] == 0


def test_average_precision_where_nothing_is_to_be_found_is_not_a_number_of_it():
    truth, results = scene(1)
    truth["annotations"] = []
    numbers = average_precision(truth, results)
    assert numbers == pytest.approx(by_pycocotools(truth, results), abs=1e-6)
    assert set(numbers.values()) == {-1.0}


def test_average_precision_of_everything_found_is_one():
    truth, _ = scene(2)
    results = [
        {
            "image_id": row["image_id"],
            "category_id": row["category_id"],
            "bbox": row["bbox"],
            "segmentation": row["segmentation"] if row["iscrowd"] else runs(polygon_mask(row["segmentation"])),
            "score": 0.9,
        }
        for row in truth["annotations"]
    ]
    numbers = average_precision(truth, results)
    assert (numbers["box_ap"], numbers["mask_ap"]) == pytest.approx((1, 1))


def polygon_mask(polygons: list[list[float]]) -> np.ndarray:
    return api.decode(api.merge(api.frPyObjects(polygons, HEIGHT, WIDTH)))


def test_average_precision_leaves_its_arguments_alone():
    truth, results = scene(3)
    before = copy.deepcopy((truth, results))
    average_precision(truth, results)
    assert (truth, results) == before


def test_average_precision_names_the_extra(monkeypatch):
    def missing(module: str, extra: str):
        raise ModuleNotFoundError(f'this needs {module}: pip install "cgnl[{extra}]"')

    monkeypatch.setattr(detection, "need", missing)
    with pytest.raises(ModuleNotFoundError, match=r"cgnl\[detection\]"):
        average_precision({}, [])
