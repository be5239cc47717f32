"""Recipes for datasets of all kinds and sizes: what they say, and that they are read as they were meant."""

from pathlib import Path

import pytest
import yaml

from cgnl.data.index import DatasetIndex, Sample
from cgnl.data.survey import Survey
from cgnl.engine.config import load
from cgnl.engine.settings import Config
from cgnl.engine.suggest import suggest_recipe


def surveyed(
    classes: int = 5,
    each: int = 40,
    side: int = 256,
    kind: str = "images",
    layout: str = "folder",
    root: str = "pictures",
    names: list[str] | None = None,
    first: int | None = None,
    frames: int = 64,
) -> Survey:
    names = names or [f"class {i}" for i in range(classes)]
    counts = [first or each, *[each] * (len(names) - 1)]
    train = tuple(Sample(Path(f"{label}/{i}.jpg"), label) for label, n in enumerate(counts) for i in range(n))
    index = DatasetIndex(tuple(names), {"train": train}, kind)  # pyright: ignore[reportArgumentType]
    lengths = (frames,) * 3 if kind == "videos" else ()
    return Survey(Path(root), layout, index, {}, ((side, side + 50),) * 3, lengths)


def read(tmp_path: Path, found: Survey) -> Config:
    file = tmp_path / "recipe.yaml"
    file.write_text(suggest_recipe(found))
    return load(file)


def test_small_dataset(tmp_path):
    config = read(tmp_path, surveyed(classes=5, each=40))
    assert (config.data.dataset, config.data.root, config.name) == ("folder", "pictures", "pictures")
    assert (config.data.size, config.data.augment, config.data.balance) == (224, "trivial", "none")
    assert (config.model.name, config.model.weights) == ("resnet50", "IMAGENET1K_V1")
    assert (config.model.block, config.model.head) == ("cgnl", "covariance")
    assert (config.optim.batch_size, config.optim.epochs, config.optim.warmup_epochs) == (8, 60, 6)


def test_many_classes_with_few_samples_get_a_covariance_head(tmp_path):
    birds = surveyed(classes=200, each=30, side=500, layout="cub")
    config = read(tmp_path, birds)
    assert (config.model.head, config.model.block, config.data.size) == ("covariance", None, 448)
    assert (config.optim.batch_size, config.optim.epochs) == (64, 33)
    comments = " ".join(line.strip().removeprefix("# ") for line in suggest_recipe(birds).splitlines())
    assert "2.9 points" in comments
    assert "1.2 points" in comments
    assert read(tmp_path, surveyed(classes=19, each=30)).model.block == "cgnl"
    assert read(tmp_path, surveyed(classes=200, each=101)).model.block == "cgnl"


def test_head_wants_weights_and_positions(tmp_path):
    assert read(tmp_path, surveyed(classes=19, each=30)).model.head == "covariance"
    assert read(tmp_path, surveyed(classes=19, each=30, side=96)).model.head == "average"
    assert read(tmp_path, surveyed(classes=10, each=2000)).model.head == "average"


def test_large_dataset_starts_at_random(tmp_path):
    config = read(tmp_path, surveyed(classes=10, each=2000))
    assert (config.model.weights, config.data.augment, config.optim.label_smoothing) == (None, "none", 0)
    assert (config.optim.lr, config.optim.batch_size, config.optim.epochs) == (0.1, 64, 20)


@pytest.mark.parametrize(("side", "size"), [(16, 64), (64, 64), (100, 96), (224, 224), (4000, 224)])
def test_crops_follow_the_pictures(tmp_path, side, size):
    config = read(tmp_path, surveyed(side=side))
    assert config.data.size == size
    assert config.model.name == ("resnet18" if size < 128 else "resnet50")


@pytest.mark.parametrize(("first", "balance"), [(40, "none"), (119, "none"), (120, "weights"), (4000, "weights")])
def test_uneven_classes_are_weighted(tmp_path, first, balance):
    assert read(tmp_path, surveyed(first=first)).data.balance == balance


@pytest.mark.parametrize(
    ("frames", "expected"),
    [(3, (8, 1, 1)), (12, (8, 1, 1)), (30, (24, 1, 1)), (64, (32, 2, 1)), (300, (32, 2, 10))],
)
def test_clips_follow_the_videos(tmp_path, frames, expected):
    config = read(tmp_path, surveyed(kind="videos", frames=frames))
    assert (config.data.frames, config.data.stride, config.data.test_clips) == expected
    assert config.model.name == "c2d_resnet50"
    assert config.data.flip


def test_signs_are_not_mirrored(tmp_path):
    assert not read(tmp_path, surveyed(kind="videos", layout="lsa64")).data.flip


def test_objects_have_the_usual_schedule(tmp_path):
    few = read(tmp_path, surveyed(kind="objects", layout="coco", side=600))
    assert (few.data.size, few.data.long_side, few.model.name) == (576, 1333, "maskrcnn_resnet50_fpn")
    assert (few.optim.epochs, few.optim.drops, few.optim.batch_size) == (24, (16, 22), 8)
    assert few.optim.warmup_steps == 25  # an epoch
    many = read(tmp_path, surveyed(kind="objects", layout="coco", each=4000))
    assert (many.optim.epochs, many.optim.drops, many.optim.warmup_steps) == (12, (8, 11), 500)


@pytest.mark.parametrize("samples", [1, 3, 10, 79, 80, 10**4])
def test_batch_is_a_power_of_two_within_limits(tmp_path, samples):
    batch = read(tmp_path, surveyed(classes=2, each=samples)).optim.batch_size
    assert batch in (4, 8, 16, 32, 64)
    assert batch == 4 or samples * 2 / batch >= 20


@pytest.mark.parametrize(
    "root", ["a b: c # d", "'", '"\\', "- x", "null", "é\u2028ü", "line\nmodel: {block: nl}", "\udcff", "~", "{a", "*x"]
)
def test_names_of_folders_stay_names(tmp_path, root):
    text = suggest_recipe(surveyed(root=root))
    text.encode()
    config = read(tmp_path, surveyed(root=root))
    assert Path(config.data.root or "") == Path(root)
    assert config.model.block == "cgnl"


def test_names_of_classes_stay_in_their_comments():
    names = ["a\nseed: 7", "b\u2028seed: 8", "c\rseed: 9"]
    found = surveyed(names=names, first=400)
    assert yaml.safe_load(suggest_recipe(found)).keys() == {"name", "data", "model", "optim"}
