"""Cityscapes' polygons as masks in COCO's format, against masks drawn and decoded by others."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from cgnl.commands.data import data
from cgnl.data.cityscapes import CLASSES, SMALLEST, Polygons, convert, read_polygons, regions
from cgnl.data.index import UnreadableError
from cgnl.data.readers import coco

coco_mask = pytest.importorskip("pycocotools.mask")
pytest.importorskip("faster_coco_eval")

HEIGHT, WIDTH = 64, 128


def rectangle(left: int, top: int, right: int, bottom: int) -> list[list[int]]:
    """A polygon whose pixels are those from left to right and from top to bottom, the last ones too."""
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def thing(label: str, *polygon: list[int], **more: object) -> dict[str, object]:
    return {"label": label, "polygon": list(polygon), **more}


def scene(root: Path, name: str, things: list, split: str = "train", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Path:
    """A picture and its annotation file; ``name`` is such as ``ulm_000001_000019``."""
    city = name.partition("_")[0]
    picture = root / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png"
    notes = root / "gtFine" / split / city / f"{name}_gtFine_polygons.json"
    for file in (picture, notes):
        file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "gray").save(picture)
    notes.write_text(json.dumps({"imgHeight": HEIGHT, "imgWidth": WIDTH, "objects": things}))
    return notes


def converted(tmp_path: Path, things: list, size: tuple[int, int] = (WIDTH, HEIGHT)) -> list[dict]:
    """The annotations of one picture with these objects."""
    scene(tmp_path / "in", "ulm_1", [*things, thing("car", *rectangle(90, 30, 120, 60))], size=size)
    convert(tmp_path / "in", tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "annotations" / "instances_train.json").read_text())["annotations"]
    return rows[:-1]


def mask(row: dict) -> np.ndarray:
    return coco_mask.decode(row["segmentation"]).astype(bool)


def drawn(polygon: list, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    image = Image.new("1", (width, height))
    ImageDraw.Draw(image).polygon([tuple(point) for point in polygon], fill=1)
    return np.array(image)


def test_object_has_its_mask_box_and_area(tmp_path):
    polygon = [[10, 8], [40, 12], [30, 50], [5, 33]]
    (row,) = converted(tmp_path, [thing("person", *polygon)])
    expected = drawn(polygon)
    assert (mask(row) == expected).all()
    rows, columns = (np.flatnonzero(np.any(expected, axis=axis)) for axis in (1, 0))
    box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
    assert row["bbox"] == box == list(coco_mask.toBbox(row["segmentation"]))
    assert row["area"] == expected.sum()
    assert (row["category_id"], row["iscrowd"]) == (24, 0)


def test_later_objects_hide_earlier_ones(tmp_path):
    things = [
        thing("road", *rectangle(0, 0, 127, 63)),
        thing("car", *rectangle(10, 10, 39, 39)),
        thing("rider", *rectangle(30, 10, 59, 39)),
        thing("pole", *rectangle(20, 0, 21, 63)),  # of no class of ours, and hides all the same
        thing("license plate", *rectangle(10, 30, 15, 35)),  # hides nothing
        thing("sky", *rectangle(0, 0, 127, 63), deleted=1),
    ]
    car, rider = converted(tmp_path, things)
    expected = drawn(rectangle(10, 10, 29, 39))
    expected[:, 20:22] = False
    assert (mask(car) == expected).all()
    assert (mask(rider) == drawn(rectangle(30, 10, 59, 39))).all()
    assert [row["category_id"] for row in (car, rider)] == [26, 25]


def test_groups_are_crowds(tmp_path):
    things = [
        thing("persongroup", *rectangle(0, 0, 19, 19)),
        thing("bicyclegroup", *rectangle(30, 0, 49, 19)),
        thing("polegroup", *rectangle(60, 0, 79, 19)),
        thing("train", *rectangle(10, 10, 29, 29)),
    ]
    rows = converted(tmp_path, things)
    assert [(row["category_id"], row["iscrowd"], row["area"]) for row in rows] == [
        (24, 1, 300),
        (33, 1, 400),
        (31, 0, 400),
    ]
    index = coco(tmp_path / "out")
    assert [item.crowd for item in index.splits["train"][0].objects] == [True, True, False, False]


@pytest.mark.parametrize("scale", [2, 4])
def test_pixel_belongs_to_what_covers_more_than_half_of_it(tmp_path, scale):
    polygon = [[10, 8], [80, 12], [60, 60], [5, 33]]
    hole = rectangle(24, 16, 39, 31)
    things = [thing("bus", *polygon), thing("building", *hole)]
    (row,) = converted(tmp_path, things, size=(WIDTH // scale, HEIGHT // scale))
    large = drawn(polygon) & ~drawn(hole)
    share = large.reshape(HEIGHT // scale, scale, WIDTH // scale, scale).mean((1, 3))
    assert (mask(row) == (share > 0.5)).all()
    assert abs(row["area"] * scale**2 - large.sum()) < 0.05 * large.sum()


@pytest.mark.parametrize("size", [(50, 30), (127, 63), (200, 100), (1, 1), (31, 64)])
def test_picture_of_any_size(size):
    polygon = rectangle(0, 0, 127, 63)
    (row,) = regions(Polygons(HEIGHT, WIDTH, [("truck", [(x, y) for x, y in polygon])]), size[1], size[0])
    assert row.mask.shape == (size[1], size[0])
    assert row.mask.all()


@pytest.mark.parametrize("scale", [(1, 1), (1, 2), (1, 4), (2, 1)])
def test_masks_are_drawn_first_and_then_resized(scale):
    random, (to, by) = np.random.default_rng(0), scale
    size = WIDTH * to // by, HEIGHT * to // by
    for _ in range(10):
        corner, side = random.uniform((-20, -20), (WIDTH, HEIGHT)), random.choice([2, 8, 40])
        points = [tuple(point) for point in (corner + random.uniform(0, side, (5, 2))).tolist()]
        (found,) = regions(Polygons(HEIGHT, WIDTH, [("car", points)]), size[1], size[0])
        whole = Image.fromarray(drawn(points).astype("float32")).resize(size, Image.Resampling.BOX)
        assert (found.mask == (np.array(whole) > 0.5)).all()


def test_objects_partly_outside_are_cut_and_others_empty():
    far = [("car", [(-20.0, -20.0), (20.0, -20.0), (20.0, 20.0), (-20.0, 20.0)])]
    outside = [("car", [(-20.0, -20.0), (-5.0, -20.0), (-5.0, -5.0)]), ("bus", [(1.0, 1.0), (2.0, 2.0)])]
    cut, none, line = regions(Polygons(HEIGHT, WIDTH, [*far, *outside]), HEIGHT, WIDTH)
    assert cut.mask.sum() == 21 * 21
    assert not none.mask.any()
    assert not line.mask.any()


def test_hidden_and_tiny_objects_are_counted(tmp_path):
    things = [
        thing("car", *rectangle(10, 10, 39, 39)),
        thing("truck", *rectangle(0, 0, 60, 60)),
        thing("person", *rectangle(70, 5, 70, 5 + SMALLEST - 2)),
        thing("rider", *rectangle(80, 5, 80, 5 + SMALLEST - 1)),
    ]
    scene(tmp_path / "in", "ulm_1", things)
    (done,) = convert(tmp_path / "in", tmp_path / "out").values()
    assert (done.images, done.objects, done.crowds, done.too_small, done.problems) == (1, 2, 0, 2, [])


def test_converted_dataset_is_read_and_checked(tmp_path, capsys):
    root, out = tmp_path / "in", tmp_path / "out"
    for split, names in {"train": ("ulm_1", "ulm_2", "bonn_1"), "val": ("jena_1",)}.items():
        for name in names:
            scene(root, name, [thing("car", *rectangle(4, 4, 44, 44)), thing("sky", *rectangle(60, 0, 70, 9))], split)
    data("convert", "cityscapes", str(root), str(out))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-2:]] == [["train", "3", "3", "0", "0"], ["val", "1", "1", "0", "0"]]
    index = coco(out)
    assert index.classes == tuple(CLASSES)
    assert index.ids == (24, 25, 26, 27, 28, 31, 32, 33)
    assert index.problems == ()
    assert [scene.path.name for scene in index.splits["train"]] == [
        f"{name}_leftImg8bit.png" for name in ("bonn_1", "ulm_1", "ulm_2")
    ]
    picture = root / "leftImg8bit" / "val" / "jena" / "jena_1_leftImg8bit.png"
    assert (out / "val" / picture.name).read_bytes() == picture.read_bytes()
    data("check", str(out), dataset="coco")
    assert "8 classes of objects" in capsys.readouterr().out


def test_pictures_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    scene(tmp_path / "in", "ulm_1", [thing("car", *rectangle(4, 4, 44, 44))])

    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    convert(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out" / "train" / "ulm_1_leftImg8bit.png").stat().st_nlink == 1


def test_bad_pictures_and_annotations_are_named_and_left_out(tmp_path, capsys):
    root = tmp_path / "in"
    for name in ("ulm_1", "ulm_2", "ulm_3"):
        scene(root, name, [thing("car", *rectangle(4, 4, 44, 44))])
    (root / "leftImg8bit" / "train" / "ulm" / "ulm_1_leftImg8bit.png").write_bytes(b"")
    (root / "gtFine" / "train" / "ulm" / "ulm_2_gtFine_polygons.json").unlink()
    with pytest.raises(ValueError, match="2 images left out"):
        data("convert", "cityscapes", str(root), str(tmp_path / "out"))
    said = capsys.readouterr().out
    assert "ulm_1_leftImg8bit.png" in said
    assert "ulm_2_gtFine_polygons.json" in said
    assert os.listdir(tmp_path / "out" / "train") == ["ulm_3_leftImg8bit.png"]


SQUARE = rectangle(1, 1, 9, 9)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        '{"imgHeight": 64, "imgWidth": 128}',
        {"imgHeight": 0},
        {"imgHeight": 64.5},
        {"imgHeight": 10**6, "imgWidth": 10**6},
        {"objects": 3},
        {"objects": ["car"]},
        {"objects": [{"label": "car"}]},
        {"objects": [{"polygon": SQUARE}]},
        {"objects": [{"label": 1, "polygon": SQUARE}]},
        {"objects": [{"label": "car", "polygon": [[1, 2], [3]]}]},
        {"objects": [{"label": "car", "polygon": [[1, 2], ["a", "b"]]}]},
        {"objects": [{"label": "car", "polygon": [*SQUARE, [1e9, 1]]}]},
        {"objects": [{"label": "car", "polygon": [*SQUARE, [float("nan"), 1]]}]},
        {"objects": [{"label": "car", "polygon": [*SQUARE, [10**400, 1]]}]},
    ],
    ids=str,
)
def test_bad_annotation_file_is_refused_in_one_sentence(tmp_path, content):
    source = tmp_path / "a.json"
    whole = {"imgHeight": HEIGHT, "imgWidth": WIDTH, "objects": []}
    source.write_text(content if isinstance(content, str) else json.dumps(whole | content))
    with pytest.raises(UnreadableError, match=r"a\.json") as raised:
        read_polygons(source)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("things", "says"),
    [
        ([thing("car", [1, 1], [9, 1], [9, 9])] * 2001, "2,001 objects"),
        ([thing("car", *[[1, 1]] * 50_001)] * 2, "100,002 corners"),
    ],
    ids=["objects", "corners"],
)
def test_more_than_a_picture_can_hold_is_refused(tmp_path, things, says):
    with pytest.raises(UnreadableError, match=f"{says} are too many"):
        read_polygons(scene(tmp_path, "ulm_1", things))


def test_convert_refuses_other_folders(tmp_path):
    with pytest.raises(ValueError, match="leftImg8bit/train"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "leftImg8bit" / "train" / "ulm").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no images"):
        convert(tmp_path, tmp_path / "out")
    scene(tmp_path / "in", "ulm_1", [])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ValueError, match="there already"):
        convert(tmp_path / "in", tmp_path / "full")
    with pytest.raises(ValueError, match="no dataset 'kitti' to convert"):
        data("convert", "kitti", str(tmp_path), str(tmp_path / "out"))
