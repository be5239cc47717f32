import numpy as np
import pytest
import torch
from PIL import Image

from cgnl.commands.data import WORDS
from cgnl.data.sheet import GAP
from cgnl.engine.config import load
from cgnl.engine.preview import load_batch
from tests.engine.conftest import write_pictures
from tests.engine.tasks.test_detection import write_scenes


@pytest.mark.parametrize("action", WORDS)
def test_data_says_which_words_an_action_takes(cgnl, action):
    status, out, err = cgnl("data", action, "one", "two", "three", "four")
    assert (status, out) == (2, "")
    assert f"cgnl data {action} {WORDS[action]}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek", "folder"], "action = chek must be one of check, show, draw, shrink, pack, convert"),
        (["check", "folder", "dataset=cubb"], "'cubb' to check; did you mean cub?"),
        (["draw", "folder", "dataset=part"], "'part' to draw; did you mean parts?"),
        (["draw", "folder", "count=many"], "count = many must be a whole number"),
        (["check", "folder", "labels=a.csv", "dataset=cub"], "labels is for dataset=csv, not for cub"),
        (["pack", "folder", "out", "dataset=shard"], "'shard' to pack; did you mean shards?"),
        (["pack", "https://a/b", "out", "dataset=shards"], "needs data.shard_cache=FOLDER"),
        (["convert", "kitti", "root", "out"], "'kitti' to convert; there is cityscapes"),
        (["show", "nowhere"], "nowhere is not a folder"),
        (["show", "parts", "-o", "batch.txt"], "batch.txt must end in .png, .jpg, .jpeg, .webp"),
        (["show", "parts", "epoch=0"], "epoch = 0 must be at least 1"),
        (["show", "parts", "seed=-1"], "seed = -1 must be at least 0"),
        (["show", "parts", "recipe=prts"], "there is no recipe 'prts'"),
        (["show", "parts", "data.augmnt=rand"], "'data.augmnt'; did you mean data.augment?"),
        (["show", "parts", "data.cutmix=1", "optim.batch_size=1"], "data.cutmix = 1.0 needs at least two samples"),
        (["show", "folder", "dataset=coco", "data.jitter=0.4"], "data.jitter = 0.4 is not possible for detectors"),
        (["check", "folder", "data.augment=rand"], "data.augment is for cgnl data show, not for check"),
    ],
)
def test_data_refuses(cgnl, arguments, message):
    status, out, err = cgnl("data", *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_data_draws_and_checks(cgnl, tmp_path):
    status, out, _ = cgnl("data", "draw", tmp_path / "drawn", "count=32")
    assert (status, out.startswith("32 samples of ")) == (0, True)
    assert cgnl("data", "check", tmp_path / "drawn")[0] == 0


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp"])
def test_data_shows_the_batch_of_the_training(cgnl, tmp_path, suffix):
    write_pictures(tmp_path / "pictures", size=(200, 180))
    settings = {"data.size": 160, "data.augment": "trivial", "data.mixup": 0.4, "optim.batch_size": 4}
    words = [f"{name}={value}" for name, value in settings.items()]
    target = tmp_path / "new" / f"batch.{suffix}"
    status, out, err = cgnl("data", "show", tmp_path / "pictures", *words, "seed=3", "epoch=2", "-o", target)
    assert (status, err) == (0, "")
    assert out.startswith("4 of the 4 samples in the first batch of epoch 2: ")
    batch, _ = load_batch(load(None, settings | {"seed": 3, "data.root": str(tmp_path / "pictures")}), epoch=2)
    with Image.open(target) as picture:
        drawn = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    corner = drawn[:, GAP : GAP + 160, GAP : GAP + 160].float()
    error = (corner - batch.pixels[0].round()).abs()
    assert error.max() == 0 if suffix == "png" else error.mean() < 30


def test_data_shows_a_synthetic_dataset_and_names_what_it_skips(cgnl, tmp_path):
    status, _, err = cgnl("data", "show", "actions", "optim.batch_size=2", "-o", tmp_path / "clips.png")
    assert (status, err) == (0, "")
    write_pictures(tmp_path / "pictures", count=3)[0].write_bytes(b"")
    words = ["data.size=32", "data.test_on=train", "-o", tmp_path / "batch.png"]
    status, _, err = cgnl("data", "show", tmp_path / "pictures", *words)
    assert (status, err.count("skipped: "), "0.png cannot be read" in err) == (0, 1, True)


def test_data_shows_a_batch_by_the_seed_of_the_recipe(cgnl, tmp_path):
    (tmp_path / "mine.yaml").write_text("seed: 3\noptim: {batch_size: 2}\n")
    recipe = f"recipe={tmp_path / 'mine.yaml'}"
    for name, words in {"own": [recipe], "same": [recipe, "seed=3"], "other": [recipe, "seed=0"]}.items():
        assert cgnl("data", "show", "parts", *words, "-o", tmp_path / f"{name}.png")[0] == 0
    own, same, other = ((tmp_path / f"{name}.png").read_bytes() for name in ("own", "same", "other"))
    assert (own == same, own == other) == (True, False)


@pytest.mark.parametrize(
    "words", [["show", "-o", "a/0.png"], ["show", "-o", "new/batch.png"], ["pack", "sh"], ["shrink", "small"]], ids=str
)
def test_data_writes_nothing_into_a_dataset(cgnl, tmp_path, monkeypatch, words):
    write_pictures(tmp_path / "pictures", count=2)
    monkeypatch.chdir(tmp_path / "pictures")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    status, _, err = cgnl("data", words[0], tmp_path / "pictures", *words[1:])
    assert (status, f"is within {tmp_path / 'pictures'}" in err, err.count("\n")) == (2, True, 1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_data_shows_no_objects(cgnl, tmp_path):
    status, _, err = cgnl(
        "data", "show", write_scenes(tmp_path / "coco", {"train2017": 3, "val2017": 2}), "dataset=coco"
    )
    assert (status, "only images and clips are shown" in err) == (2, True)
