"""COCO's annotation format: what is read, what is refused, and in which words."""

import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pycocotools.mask as pycocotools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cgnl.data.check import check, count_labels, table
from cgnl.data.coco import _run_lengths, coco, ground_truth
from cgnl.data.index import Object, hold_out

SQUARE = [[2.0, 2.0, 8.0, 2.0, 8.0, 8.0, 2.0, 8.0]]
KEYS = (
    "id",
    "name",
    "file_name",
    "height",
    "width",
    "image_id",
    "category_id",
    "bbox",
    "segmentation",
    "counts",
    "size",
)
CROWD = {"size": [12, 16], "counts": [100, 20, 72]}


def annotation(number: int, image: int = 1, **other: Any) -> dict[str, Any]:
    plain = {"id": number, "image_id": image, "category_id": 7, "bbox": [2, 2, 6, 6], "area": 36.0, "iscrowd": 0}
    return plain | {"segmentation": SQUARE} | other


def content(annotations: list[dict[str, Any]], images: int = 3) -> dict[str, Any]:
    return {
        "images": [{"id": n, "file_name": f"{n:012}.jpg", "height": 12, "width": 16} for n in range(1, images + 1)],
        "annotations": annotations,
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
    }


def write(root: Path, split: str, annotations: list[dict[str, Any]], images: int = 3) -> Path:
    """A split in COCO's layout, each picture 16 wide and 12 high."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / split).mkdir()
    for number in range(1, images + 1):
        Image.new("RGB", (16, 12), (number, 0, 0)).save(root / split / f"{number:012}.jpg")
    file = root / "annotations" / f"instances_{split}.json"
    file.write_text(json.dumps(content(annotations, images)))
    return file


def test_coco_reads_its_own_layout(tmp_path):
    crowd = annotation(3, 2, category_id=3, iscrowd=1, segmentation=CROWD, area=20)
    write(tmp_path, "train2017", [annotation(1), annotation(2, 2), crowd])
    write(tmp_path, "val2017", [annotation(1, 2)], images=2)
    index = coco(tmp_path)
    assert (index.classes, index.ids, index.kind, index.problems) == (("dog", "cat"), (3, 7), "objects", ())
    first, second, third = index.splits["train"]
    assert first.path == tmp_path / "train2017" / "000000000001.jpg"
    assert (first.id, first.height, first.width) == (1, 12, 16)
    assert first.objects == (Object(1, 1, (2.0, 2.0, 6.0, 6.0), SQUARE, 36.0),)
    assert [(thing.id, thing.label, thing.crowd) for thing in second.objects] == [(2, 1, False), (3, 0, True)]
    assert third.objects == ()
    assert [len(scene.objects) for scene in index.splits["test"]] == [0, 1]


def test_coco_takes_any_file_and_folder(tmp_path):
    file = write(tmp_path, "photos", [annotation(1)])
    file.rename(tmp_path / "mine.json")
    index = coco(tmp_path, annotations="mine.json", images="photos")
    assert list(index.splits) == ["train"]
    assert index.splits["train"][0].path == tmp_path / "photos" / "000000000001.jpg"
    index = coco(tmp_path, "mine.json", "photos", test_annotations="mine.json")
    assert index.splits["test"] == index.splits["train"]


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [
        (annotation(5, image=99), "annotation 5 names image 99, which is not listed"),
        (annotation(5, image=4), "annotation 5 is of .*000000000004.jpg, which is missing"),
        (annotation(5, bbox=[3, 3, 0, 4]), r"annotation 5 has a box without area .* 16 x 12: \[3, 3, 0, 4\]"),
        (annotation(5, bbox=[3, 3, 1e-9, 4]), "annotation 5 has a box without area"),
        (annotation(5, bbox=[20, 3, 4, 4]), "annotation 5 has a box without area"),
        (annotation(5, bbox=[1, 2, 3]), r"annotation 5 has a box that is not four numbers: \[1, 2, 3\]"),
        (annotation(5, bbox=[1, 2, 3, float("nan")]), "annotation 5 has a box that is not four numbers"),
        (annotation(5, segmentation=[[1, 1, 4, 4]]), "annotation 5 has a polygon of 2 points"),
        (annotation(5, segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]), "annotation 5 has a polygon far outside its image"),
        (annotation(5, bbox=[1, 1, 10**400, 1]), "annotation 5 has a box that is not four numbers"),
        (annotation(5, segmentation={"size": [12, 16], "counts": "zz"}), "annotation 5 has neither polygons nor"),
        (annotation(5, segmentation={"size": [12, 16], "counts": "é"}), "annotation 5 has neither polygons nor"),
        (annotation(5, segmentation={"size": [12, 16], "counts": "o" * 99}), "annotation 5 has neither polygons nor"),
        (annotation(5, segmentation="none"), "annotation 5 has neither polygons nor a run-length encoding"),
        (annotation(5, segmentation={"size": [9, 9], "counts": [81]}), "annotation 5 has neither .* 16 x 12 pixels"),
        (annotation(5, segmentation={"size": [12, 16], "counts": [9]}), "annotation 5 has neither"),
        (annotation(5, category_id=8), "annotation 5 has the category 8, which is not listed"),
        (annotation(5, category_id=[7]), r"annotation 5 has the category \[7\], which is not listed"),
        (annotation(1), "annotation 1 is listed twice"),
        ({"image_id": 1}, "annotation number 2 of the file has no id"),
    ],
)
def test_coco_leaves_a_faulty_annotation_out_and_names_it(tmp_path, faulty, reason):
    write(tmp_path, "train2017", [annotation(1), faulty], images=4)
    (tmp_path / "train2017" / "000000000004.jpg").unlink()
    index = coco(tmp_path)
    assert [thing.id for scene in index.splits["train"] for thing in scene.objects] == [1]
    assert re.search(reason, index.problems[0])
    assert index.problems[0].startswith("instances_train2017.json: ")


def test_coco_keeps_the_whole_polygons_of_an_object(tmp_path):
    write(tmp_path, "train2017", [annotation(5, segmentation=[[1, 1, 2, 2], *SQUARE])])
    index = coco(tmp_path)
    assert index.splits["train"][0].objects[0].segmentation == SQUARE
    assert "annotation 5 has a polygon of 2 points" in index.problems[0]


@pytest.mark.parametrize("without", [{}, {"segmentation": []}, {"segmentation": None}])
def test_coco_takes_a_box_for_the_mask_of_an_object_that_has_none(tmp_path, without):
    plain = annotation(5, bbox=[-2, 2, 6, 6])
    del plain["segmentation"]
    write(tmp_path, "train2017", [plain | without])
    index = coco(tmp_path)
    assert index.problems == ()
    assert index.splits["train"][0].objects[0].segmentation == [[0, 2, 4, 2, 4, 8, 0, 8]]


def test_coco_matches_the_categories_of_the_test_file_by_name(tmp_path):
    write(tmp_path, "train2017", [annotation(1)])
    file = write(tmp_path, "val2017", [annotation(1), annotation(2, category_id=3)])
    rows = content([annotation(1), annotation(2, category_id=3)])
    rows["categories"] = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}, {"id": 8, "name": "never used"}]
    file.write_text(json.dumps(rows))
    index = coco(tmp_path)
    assert [index.classes[label] for label in index.splits["test"][0].labels] == ["dog", "cat"]
    rows["categories"][1]["name"] = "fox"
    file.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=r"instances_val2017.json .* fox"):
        coco(tmp_path)


def test_coco_tells_categories_of_one_name_apart(tmp_path):
    file = write(tmp_path, "train2017", [])
    rows = content([annotation(1), annotation(2, category_id=3)])
    rows["categories"] = [{"id": 7, "name": "cat"}, {"id": 3, "name": "cat"}, {"id": 1, "name": "dog"}]
    file.write_text(json.dumps(rows))
    index = coco(tmp_path)
    assert count_labels(index) == {"train": {"dog": 0, "cat (3)": 1, "cat (7)": 1}}
    rows["categories"][2]["name"] = "cat (3)"
    file.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=r"same name: .*cat \(3\)"):
        coco(tmp_path)


def test_coco_reads_a_file_with_a_byte_order_mark(tmp_path):
    file = write(tmp_path, "train2017", [annotation(1)])
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert coco(tmp_path).classes == ("dog", "cat")


def test_coco_names_every_faulty_annotation(tmp_path):
    write(tmp_path, "train2017", [annotation(1), *(annotation(n, category_id=8) for n in range(100, 130))])
    problems = coco(tmp_path).problems
    assert len(problems) == 11
    assert "20 more annotations are faulty: 110, 111, " in problems[-1]
    assert all(str(n) in " ".join(problems) for n in range(100, 130))


def test_coco_names_missing_pictures_without_objects(tmp_path):
    write(tmp_path, "train2017", [annotation(1)])
    for number in (2, 3):
        (tmp_path / "train2017" / f"{number:012}.jpg").unlink()
    index = coco(tmp_path)
    assert len(index.splits["train"]) == 1
    assert re.search("000000000002.jpg and 1 others without objects are listed but missing", index.problems[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.pop("images"), "is no COCO annotation file: it has no list of images"),
        (lambda c: c["categories"].clear(), "lists no categories"),
        (lambda c: c["categories"].append({"id": 7, "name": "x"}), "lists category 7 twice: cat and x"),
        (lambda c: c["images"].append({"id": 1, "file_name": "a.jpg"}), "lists image 1 twice"),
        (lambda c: c["images"].append({"id": "a", "file_name": "a.jpg"}), "has an image without an id"),
        (lambda c: c["images"].append({"id": 8, "file_name": "a.jpg"}), "does not say the height and width of image 8"),
        (lambda c: c["images"][0].update(file_name="../a.jpg"), "is outside the dataset"),
        (lambda c: c["images"][0].update(file_name="/etc/a.jpg"), "is outside the dataset"),
        (lambda c: c["images"][0].update(file_name="a/../../a.jpg"), "is outside the dataset"),
        (lambda c: c["annotations"].clear(), "has no object that can be trained on: none is listed"),
        (lambda c: c["annotations"][0].update(category_id=9), "has no object that can be trained on: .* annotation 1 "),
    ],
)
def test_coco_refuses_a_file_that_cannot_be_used(tmp_path, change, reason):
    file = write(tmp_path, "train2017", [annotation(1)])
    rows = content([annotation(1)])
    change(rows)
    file.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=reason):
        coco(tmp_path)


def test_coco_refuses_what_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        coco(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no annotations/instances_train\*.json: let annotations name"):
        coco(tmp_path)
    with pytest.raises(ValueError, match=r"^there is no file .*a.json$"):
        coco(tmp_path, annotations="a.json")
    for text in ("{", "[" * 100_000, "\x00", "1" * 5000):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ValueError, match=r"a.json is not JSON"):
            coco(tmp_path, annotations="a.json")


def test_ground_truth_is_the_annotation_file_again(tmp_path):
    crowd = annotation(3, 2, category_id=3, iscrowd=1, segmentation=CROWD, area=20.0)
    write(tmp_path, "train2017", [annotation(1, bbox=[2.0, 2.0, 60.0, 6.0]), crowd])
    index = coco(tmp_path)
    truth = ground_truth(index.splits["train"], index.ids)
    assert [row["id"] for row in truth["images"]] == [1, 2, 3]
    assert [row["id"] for row in truth["categories"]] == [3, 7]
    assert truth["annotations"] == content([annotation(1, bbox=[2.0, 2.0, 60.0, 6.0]), crowd])["annotations"]


@pytest.mark.parametrize("first", [0, -5])
def test_no_annotation_of_the_ground_truth_has_the_number_of_no_match(tmp_path, first):
    write(tmp_path, "train2017", [annotation(first), annotation(first + 3)])
    truth = ground_truth(coco(tmp_path).splits["train"], (3, 7))
    assert [row["id"] for row in truth["annotations"]] == [1, 4]


def test_check_of_objects_counts_them_and_needs_neither_every_class_nor_two(tmp_path):
    write(tmp_path, "train2017", [annotation(1), annotation(2), annotation(3, category_id=8)])
    Image.new("RGB", (9, 9)).save(tmp_path / "train2017" / "000000000002.jpg")
    (tmp_path / "train2017" / "000000000003.jpg").write_bytes(b"no")
    index = coco(tmp_path)
    report = check(index)
    assert report.faults == ()
    assert count_labels(index) == {"train": {"dog": 0, "cat": 2}}
    text = "\n".join(table(index, report, 1))
    assert "it is 9 x 9 pixels, and annotated as 16 x 12" in text
    assert "000000000003.jpg cannot be read: it is not an image" in text
    assert "annotation 3 has the category 8, which is not listed" in text


def test_check_names_images_whose_size_does_not_say_how_they_were_annotated(tmp_path):
    write(tmp_path, "train2017", [annotation(1)])
    for number, orientation in ((1, 6), (2, 3), (3, 1)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (16, 12)).save(tmp_path / "train2017" / f"{number:012}.jpg", exif=exif)
    index = coco(tmp_path)
    report = check(index)
    assert (report.unreadable, report.turned) == ({}, (tmp_path / "train2017" / "000000000002.jpg",))
    assert "000000000002.jpg" in list(table(index, report, 1))[-1]


def test_check_refuses_a_split_of_crowds_alone(tmp_path):
    write(tmp_path, "train2017", [annotation(1)])
    write(tmp_path, "val2017", [annotation(1, iscrowd=1, segmentation=CROWD)])
    assert check(coco(tmp_path)).faults == ("split test has no readable object",)


def test_hold_out_takes_a_share_of_the_pictures(tmp_path):
    write(tmp_path, "train2017", [annotation(n, n) for n in range(1, 11)], images=10)
    splits = hold_out(coco(tmp_path), 0.3).splits
    assert (len(splits["train"]), len(splits["test"])) == (7, 3)
    assert not {scene.id for scene in splits["train"]} & {scene.id for scene in splits["test"]}


def test_run_lengths_are_those_that_were_encoded():
    draw = np.random.default_rng(0)
    for _ in range(50):
        mask = np.kron(draw.random(draw.integers(1, 9, 2)) < 0.5, np.ones((7, 5))).astype(np.uint8)
        flat = mask.T.ravel()
        runs = [len(list(run)) for _, run in itertools.groupby(flat.tolist())]
        encoded: Any = pycocotools.encode(np.asfortranarray(mask))["counts"]
        assert _run_lengths(encoded.decode()) == [0] * int(flat[0]) + runs


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({name: st.lists(JSON, max_size=3) for name in ("images", "annotations", "categories")}))
def test_coco_reads_or_refuses_anything(tmp_path_factory, tree):
    root = tmp_path_factory.getbasetemp()
    (root / "any.json").write_text(json.dumps(tree))
    with contextlib.suppress(ValueError):
        coco(root, annotations="any.json")
