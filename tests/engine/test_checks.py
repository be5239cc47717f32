"""Settings that do not go together, and names and files that there are not."""

import json
import sys
from pathlib import Path

import pytest
import timm
import torchvision

from cgnl import models
from cgnl.data.readers import READERS
from cgnl.engine.checks import IDLE, NEEDS, REGISTERED, WEIGHTS, check_files, find_names
from cgnl.engine.config import load, load_typed, nest
from cgnl.engine.settings import SYNTHETIC, dataset_name, setting_names
from tests.engine.conftest import refused


@pytest.mark.parametrize("name", ["", ".", "..", "../run", "a/../../run", "/run", "a\0b", "a\nb", "a" * 300, "é" * 150])
def test_load_refuses_a_name_that_is_no_folder_within_runs(name):
    sentence = f"name = {name!r} must name a folder within runs, such as birds or birds/first"
    assert refused(load, None, {"name": name}) == sentence


@pytest.mark.parametrize("name", ["run", "a/b", "lr=0.1", "CUB ünï run", "..run", "a" * 200])
def test_load_takes_any_other_name(name):
    assert load(None, {"name": name}).name == name


@pytest.mark.parametrize("area", [(0.0, 1.0), (-0.5, 1.0), (1.0, 0.5)], ids=str)
def test_load_refuses_an_area_that_is_none(area):
    assert refused(load, None, {"data.area": list(area)}) == f"data.area = {area} must be a small and a large share"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("jitter", -0.1, "at least 0"),
        ("jitter", 1.5, "at most 1"),
        ("erase", 1.01, "at most 1"),
        ("mixup", -1, "at least 0"),
        ("mixup", "nan", "a number"),
        ("cutmix", 101, "at most 100"),
        ("mixup", 1e-8, "0 or at least 0.001"),
        ("cutmix", 0.0009, "0 or at least 0.001"),
    ],
)
def test_load_refuses_augmentation_out_of_range(name, value, words):
    message = refused(load, None, {f"data.{name}": value})
    assert message == f"data.{name} = {float(value)} must be {words}"


@pytest.mark.parametrize("recipe", [None, "coco_maskrcnn_r50"])
@pytest.mark.parametrize(
    ("name", "value"), [("augment", "trivial"), ("jitter", 0.4), ("erase", 0.25), ("mixup", 0.2), ("cutmix", 1.0)]
)
def test_load_refuses_augmentation_of_detectors(recipe, name, value):
    settings = {f"data.{name}": value} | ({} if recipe else {"data.annotations": "boxes.json"})
    assert refused(load, recipe, settings).startswith(f"data.{name} = {value} is not possible for detectors")
    assert getattr(load(None, {f"data.{name}": value}).data, name) == value


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet50", "torchvision/vgg16", "registered"])
def test_load_takes_networks_that_others_make(monkeypatch, name):
    monkeypatch.setitem(models.NETWORKS, "registered", None)
    assert load(None, {"model.name": name}).model.name == name


@pytest.mark.parametrize("balance", ["weights", "sampling"])
@pytest.mark.parametrize("given", [{"data.dataset": "coco"}, {"data.annotations": "a.json"}])
def test_load_refuses_balance_for_detectors(balance, given):
    assert refused(load, None, {"data.balance": balance, **given}).startswith(
        f"data.balance = {balance} is not possible"
    )


def test_load_takes_labels_for_a_csv_file_alone():
    assert dataset_name(load(None, {"data.labels": "a.csv", "data.root": "x"}).data) == "csv"
    assert refused(load, None, {"data.labels": "a.csv", "data.dataset": "cub"}).startswith("data.labels = a.csv is for")


def test_load_names_the_library_of_a_network(monkeypatch):
    for library in ("timm", "torchvision"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    for name in ("convnext_tiny", "tim/convnext_tiny"):
        assert refused(load, None, {"model.name": name}).endswith("timm/convnext_tiny or torchvision/convnext_tiny?")


def test_find_names_knows_all_weights_of_torchvision():
    library = torchvision.models
    names = {name for model in library.list_models() for name in library.get_model_weights(model).__members__}
    assert set(find_names("torchvision", WEIGHTS, "**/*.py")) == names


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data.root": "pictures"}, None),
        ({"data.root": "nowhere"}, "nowhere is not a folder"),
        ({"data.root": "nowhere", "data.dataset": "shards"}, None),
        ({"data.root": "pipe:cat {shard}"}, "addresses are for data.dataset=shards"),
        ({"data.root": "pipe:cat {shard}", "data.dataset": "shards"}, "only if you type it"),
        ({"data.root": "pictures", "data.dataset": "csv"}, "there is no file pictures/labels.csv"),
        ({"data.root": "pictures", "data.labels": "mine.csv"}, "there is no file pictures/mine.csv"),
        ({"model.weights": "pictures"}, None),
        ({"model.weights": "DEFAULT"}, None),
        ({"model.weights": "runs/first"}, "there is no file runs/first"),
        ({"model.weights": "nowhere.pth"}, "there is no file nowhere.pth"),
        ({"model.weights": "imagenet"}, "did you mean IMAGENET1K_V"),
        ({"model.weights": "in12k", "model.name": "timm/convnext_tiny"}, None),
    ],
    ids=str,
)
def test_check_files_refuses_what_is_missing(settings, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    config = load(None, settings)
    if sentence is None:
        check_files(config)
    else:
        assert sentence in refused(check_files, config)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_find_names_knows_all_networks_of_a_library(library):
    if library == "timm":
        listed = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")]
    else:
        listed = torchvision.models.list_models(torchvision.models)
    assert sorted(find_names(library, REGISTERED)) == sorted(listed)


@pytest.mark.parametrize(
    ("name", "near"),
    [("timm/convnext_tinny", "convnext_tiny"), ("torchvision/swin_tt", "swin_t"), ("timm/nothing.a1_in1k", "")],
)
def test_load_refuses_networks_of_libraries_without_importing_them(name, near, monkeypatch):
    for library in ("timm", "torchvision"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    with pytest.raises(ValueError, match=f"has no network .*{f'; did you mean .*{near}' if near else ''}"):
        load(None, {"model.name": name})
    assert not {"timm", "torchvision"} & sys.modules.keys()
    assert load(None, {"model.name": "timm/resnet18.a1_in1k"}).model.name == "timm/resnet18.a1_in1k"


IDLE_SETTINGS = [
    ({"data.root": "plain", "data.dataset": "relation"}, "data.root has no effect with data.dataset = relation"),
    ({"data.frames": 8, "data.dataset": "cub"}, "data.frames has no effect with data.dataset = cub"),
    ({"data.split": 2, "data.dataset": "lsa64"}, "data.split has no effect with data.dataset = lsa64"),
    ({"optim.nesterov": True, "optim.optimizer": "adamw"}, "optim.nesterov has no effect with optim.optimizer = adamw"),
    ({"optim.betas": [0.5, 0.9], "optim.optimizer": "sgd"}, "optim.betas has no effect with optim.optimizer = sgd"),
    ({"model.options.groups": 4, "model.block": None}, "model.options has no effect with model.block = null"),
]


@pytest.mark.parametrize(("settings", "words"), IDLE_SETTINGS)
def test_load_typed_refuses_what_has_no_effect_with_what_was_typed(settings, words, tmp_path):
    assert refused(load_typed, None, settings) == f"{words}: leave one of them out"
    one, other = settings
    load_typed(None, {one: settings[one]})
    (tmp_path / "recipe.yaml").write_text(json.dumps(nest({one: settings[one]})))
    load_typed(tmp_path / "recipe.yaml", {other: settings[other]})
    load(None, settings)


def test_load_typed_takes_what_has_an_effect_with_what_was_typed():
    load_typed(None, {"optim.nesterov": True, "optim.optimizer": "sgd"})
    load_typed(None, {"optim.nesterov": False, "optim.optimizer": "adamw"})
    load_typed(None, {"data.frames": 8, "data.dataset": "ucf101", "data.split": 2, "data.root": "ucf"})
    load_typed(None, {"data.samples": 9, "data.dataset": "parts", "model.block": None, "model.options": {}})


def test_every_setting_that_may_have_no_effect_is_one():
    names = {name for entry in (NEEDS | IDLE).items() for name in (entry[0], entry[1][0])}
    assert names <= set(setting_names())
    assert not NEEDS.keys() & IDLE.keys()
    assert {value for other, values in (NEEDS | IDLE).values() if other == "data.dataset" for value in values} <= {
        *SYNTHETIC,
        *READERS,
    }
