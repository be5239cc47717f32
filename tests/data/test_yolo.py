import pytest
from PIL import Image

from cgnl.data.coco import ground_truth
from cgnl.data.yolo import yolo


def write(
    root, label: str | None = "0 0.5 0.5 0.25 0.5\n1 0 0 1 0 1 1\n", split: str = "images/train", name: str = "a"
):
    folder = root / split
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (80, 40)).save(folder / f"{name}.png")
    labels = root / split.replace("images", "labels")
    labels.mkdir(parents=True, exist_ok=True)
    if label is not None:
        (labels / f"{name}.txt").write_text(label)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "data.yaml").write_text("names: [cat, dog]\ntrain: images/train\n")
    write(tmp_path)
    return tmp_path


def test_boxes_and_polygons_in_pixels(root):
    index = yolo(root)
    (scene,) = index.splits["train"]
    box, polygon = scene.objects
    assert (index.kind, index.classes, index.ids) == ("objects", ("cat", "dog"), (1, 2))
    assert (scene.height, scene.width) == (40, 80)
    assert (box.label, box.box, box.area) == (0, (30, 10, 20, 20), 400)
    assert box.segmentation == [[30, 10, 50, 10, 50, 30, 30, 30]]
    assert (polygon.label, polygon.box) == (1, (0, 0, 80, 40))
    assert polygon.segmentation == [[0, 0, 80, 0, 80, 40]]
    assert len({thing["id"] for thing in ground_truth(index.splits["train"], index.ids)["annotations"]}) == 2


@pytest.mark.parametrize("layout", ["images/{}", "{}/images"])
@pytest.mark.parametrize("test", ["val", "valid", "test"])
def test_splits_of_either_layout(tmp_path, layout, test):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    write(tmp_path, split=layout.format("train"))
    write(tmp_path, split=layout.format(test), name="b")
    index = yolo(tmp_path)
    assert {split: [s.path.stem for s in scenes] for split, scenes in index.splits.items()} == {
        "train": ["a"],
        "test": ["b"],
    }
    assert len({scene.id for scenes in index.splits.values() for scene in scenes}) == 2


def test_a_turned_image_has_its_shown_size(root):
    image = Image.new("RGB", (80, 40))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(root / "images" / "train" / "turned.jpg", exif=exif)
    turned = next(scene for scene in yolo(root).splits["train"] if scene.path.stem == "turned")
    assert (turned.height, turned.width, turned.objects) == (80, 40, ())


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("7 0.5 0.5 0.1 0.1", "class 7"),
        ("0 0.5 0.5 0.1", "3 numbers"),
        ("cat 0.5 0.5 0.1 0.1", "line 2"),
        ("0 nan 0.5 0.1 0.1", "box"),
        ("0 0.5 0.5 0 0.1", "without area"),
        ("0 0.1 0.1 50 0.2 0.3 0.3", "polygon"),
    ],
)
def test_faulty_lines_are_named(root, line, fault):
    write(root, f"0 0.5 0.5 0.25 0.5\n{line}\n", name="b")
    index = yolo(root)
    (problem,) = index.problems
    assert "b.txt: line 2" in problem
    assert fault in problem
    assert len(index.splits["train"][1].objects) == 1


def test_broken_images_are_named(root):
    (root / "images" / "train" / "broken.jpg").write_bytes(b"no")
    index = yolo(root)
    assert len(index.splits["train"]) == 1
    assert "broken.jpg" in index.problems[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "data.yaml"),
        ("names: 3", "classes"),
        ("names: [a, a]", "each once"),
        ("names: {1: cat, 2: dog}", "classes 1, 2"),
        ("names: {0: cat, 2: dog}", "classes 0, 2"),
        ("names: {cat: 0, dog: 1}", "classes cat, dog"),
        ("names: [7, yes]", "True .* quotes"),
        ("names: &a [*a]", "alias"),
        ("{", "YAML"),
    ],
)
def test_yolo_refuses(root, text, words):
    (root / "data.yaml").unlink()
    if text is not None:
        (root / "data.yaml").write_text(text)
    with pytest.raises(ValueError, match=words):
        yolo(root)


@pytest.mark.parametrize("file", ["data.yaml", "data.yml"])
def test_names_may_be_given_by_number(root, file):
    (root / "data.yaml").unlink()
    (root / file).write_text("names: {" + ", ".join(f"'{n}': n{n}" for n in reversed(range(12))) + "}")
    assert yolo(root).classes == tuple(f"n{n}" for n in range(12))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("train: ../train/images\nval: images/val\npath: .", []),
        ("path: ../elsewhere\ntrain: images/train", ["path = ../elsewhere"]),
        ("train: train.txt\nval: [a, b]", ["train = train.txt", "val = ['a', 'b']"]),
    ],
)
def test_paths_that_lead_elsewhere_are_named(root, line, named):
    (root / "data.yaml").write_text(f"names: [cat, dog]\n{line}\n")
    problems = yolo(root).problems
    assert len(problems) == len(named)
    assert all(f"data.yaml: {name} is not followed" in problem for name, problem in zip(named, problems, strict=True))


def test_byte_order_marks_are_no_part_of_the_text(root):
    for file, text in ((root / "classes.txt", "cat\ndog\n"), (root / "labels" / "train" / "a.txt", "1 0.5 0.5 1 1\n")):
        file.write_text(text, encoding="utf-8-sig")
    index = yolo(root)
    assert (index.classes, index.problems) == (("cat", "dog"), ())
    assert index.splits["train"][0].labels == (1,)


def test_yolo_without_a_sound_label_says_what_is_wrong(root):
    write(root, "7 0.5 0.5 0.25 0.5\n")
    with pytest.raises(ValueError, match=r"no object to train on: .*a\.txt: line 1 has the class 7"):
        yolo(root)


def test_yolo_without_labels_is_refused(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\n")
    write(tmp_path, label=None)
    with pytest.raises(ValueError, match="no object to train on"):
        yolo(tmp_path)
