"""The shipped recipes: rows of the paper's tables, and embedded datasets."""

import dataclasses
import functools
import re

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from cgnl.engine import config
from cgnl.engine.config import build, recipes, to_yaml
from cgnl.engine.datasets import with_defaults
from cgnl.engine.network import build_network
from cgnl.engine.settings import SYNTHETIC, Model

load = functools.cache(config.load)
HEADS = [f"{dataset}_r50_covariance{block}" for dataset in ("cub", "pets") for block in ("", "_cgnl1")]
ROWS = [name for name in recipes() if name not in (*SYNTHETIC, *HEADS)]

COCO = [name for name in ROWS if name.startswith("coco_")]

SEEN = {  # dataset: side in training, side in the test, short side, clips, crops
    "cub": ("cub", 448, None, 512, 10, 3),
    "imagenet": ("imagenet", 224, None, 256, 10, 3),
    "ucf101": ("ucf101", 224, None, 256, 10, 3),
    "mini_kinetics": ("mini_kinetics200", 224, None, 256, 10, 3),
}


def get_dataset(recipe: str) -> str:
    return recipe.partition("_maskrcnn" if recipe in COCO else "_r")[0]


def raw(recipe: str) -> dict:
    return yaml.safe_load((config._home() / f"{recipe}.yaml").read_text())


@pytest.mark.parametrize(
    "recipe", [*SYNTHETIC, "cub_r50_cgnl1_embedded_gaussian", "ucf101_r50", "imagenet_r152_cgnlx1"]
)
def test_recipe_is_read_back_as_it_was(recipe):
    assert build(yaml.safe_load(to_yaml(load(recipe)))) == load(recipe)


def test_recipes_hold_the_synthetic_datasets_and_the_heads():
    assert {*SYNTHETIC, *HEADS} <= set(recipes())
    assert len(ROWS) == 47


@pytest.mark.parametrize("recipe", recipes())
def test_recipe_says_in_a_comment_what_it_is(recipe):
    assert (config._home() / f"{recipe}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize("recipe", SYNTHETIC)
def test_recipe_of_an_embedded_dataset_stands_by_itself(recipe):
    loaded = load(recipe)
    assert loaded.data.dataset == recipe
    assert loaded.model.weights is None
    assert "extends" not in raw(recipe)


@pytest.mark.parametrize("recipe", ROWS)
def test_recipe_extends_base_in_the_end(recipe):
    chain = [recipe]
    while "extends" in raw(chain[-1]):
        chain.append(raw(chain[-1])["extends"])
    assert chain[-1] == ("base_objects" if recipe in COCO else "base")
    assert chain[1] == f"base_{get_dataset(recipe)}"


@pytest.mark.parametrize("recipe", ROWS)
def test_recipe_differs_from_its_dataset_in_the_network_alone(recipe):
    base = load(f"base_{get_dataset(recipe)}")
    loaded = load(recipe)
    assert dataclasses.replace(loaded, model=base.model) == base
    assert (loaded.model.weights, loaded.model.dropout) == ("IMAGENET1K_V1", 0.5)


@pytest.mark.parametrize("dataset", SEEN)
def test_recipe_sees_samples_as_the_paper_does(dataset):
    data = with_defaults(load(f"base_{dataset}")).data
    seen = (data.dataset, data.size, data.test_size, data.test_short_side, data.test_clips, data.test_crops)
    assert seen == SEEN[dataset]
    assert (data.area, data.flip, data.frames, data.stride) == ((0.08, 1.25), True, 32, 2)


@pytest.mark.parametrize(
    ("recipe", "size", "side"), [("cub_r50", 224, 256), ("ucf101_r50", 112, 128), ("coco_maskrcnn_r50", 400, 400)]
)
def test_recipe_of_another_size_is_tested_at_a_side_that_follows(recipe, size, side):
    loaded = config.load(recipe, {"data.size": size})
    assert with_defaults(loaded).data.test_short_side == side


@pytest.mark.parametrize("dataset", SEEN)
def test_recipe_learns_as_the_released_code_does(dataset):
    optim = load(f"base_{dataset}").optim
    assert (optim.lr, optim.epochs, optim.warmup_epochs, optim.drops) == (0.01, 100, 10, (31, 61, 81))
    assert (optim.schedule, optim.momentum, optim.weight_decay) == ("step", 0.9, 1e-4)
    assert optim.batch_size == (256 if dataset in ("cub", "imagenet") else 64)


@pytest.mark.parametrize("recipe", ROWS)
def test_recipe_is_named_by_its_network(recipe):
    parsed = re.fullmatch(
        r"(cub|imagenet|ucf101|mini_kinetics|coco_maskrcnn)_r(\d+)(?:_([a-z]+)(\d))?(?:_groups(\d+)|_(embedded_gaussian))?",
        recipe,
    )
    assert parsed is not None
    dataset, depth, block, blocks, groups, kernel = parsed.groups()
    model = load(recipe).model
    video = "c2d_" if dataset in ("ucf101", "mini_kinetics") else ""
    network = "maskrcnn_resnet50_c4" if recipe in COCO else f"{video}resnet{depth}"
    assert (model.name, model.block) == (network, block)
    assert block is None or model.blocks == int(blocks)
    options = {} if block in (None, "nl") else {"groups": int(groups or (1 if dataset == "ucf101" else 8))}
    assert model.options == options | ({"kernel": kernel} if kernel else {})


@pytest.mark.parametrize("recipe", HEADS)
def test_recipe_of_a_head_differs_from_its_dataset_in_the_network_alone(recipe):
    loaded, base = load(recipe), load("base_pets" if recipe.startswith("pets") else "base_cub_heads")
    assert dataclasses.replace(loaded, model=base.model) == base
    assert (loaded.model.head, loaded.model.reduced) == ("covariance", 256)
    assert loaded.model.block == ("cgnl" if recipe.endswith("cgnl1") else None)
    assert (loaded.optim.batch_size, loaded.optim.new_layers, with_defaults(loaded).data.test_short_side) == (
        64,
        5.0,
        512,
    )
    epochs = loaded.optim.warmup_epochs + loaded.optim.epochs
    assert epochs == (20 if recipe.startswith("pets") else 40)


def networks() -> dict[str, Model]:
    """The different networks of all recipes, each by the first that has it."""
    found: dict[str, tuple[str, Model]] = {}
    for recipe in [name for name in recipes() if name not in COCO]:
        model = Model(**config.read_recipe(recipe)["model"])
        key = (model.name, model.block, model.block and model.blocks, model.options, model.head)
        found.setdefault(repr(key), (recipe, model))
    return dict(found.values())


NETWORKS = networks()


def test_recipe_for_coco_learns_and_sees_as_is_usual():
    loaded = load("coco_maskrcnn_r50")
    optim, data = loaded.optim, with_defaults(loaded).data
    assert optim.lr is not None
    assert optim.lr * optim.batch_size / 256 == 0.02
    assert (optim.batch_size, optim.epochs, optim.drops, optim.warmup_steps) == (16, 12, (8, 11), 500)
    assert (data.dataset, data.size, data.test_short_side, data.long_side, data.flip) == ("coco", 800, 800, 1333, True)


@pytest.mark.parametrize("recipe", NETWORKS)
def test_recipe_network_takes_a_step(recipe, monkeypatch):
    monkeypatch.setattr(torch.nn.init, "kaiming_normal_", lambda weight, **_: weight)  # drawn once is enough
    model = NETWORKS[recipe]
    assert model.name is not None
    network = build_network(model, num_classes=5, load=False)
    side = 64 if model.name in ("resnet18", "resnet50") else 32
    shape = (2, 3, 8, side, side) if model.name.startswith("c2d") else (2, 3, side, side)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    before = network.get_submodule("fc").get_parameter("weight").detach().clone()
    loss = cross_entropy(network(torch.randn(shape)), torch.tensor([0, 4]))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert not torch.equal(before, network.get_submodule("fc").get_parameter("weight"))
