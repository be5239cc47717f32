"""A network with a second-order head goes through every command that one without goes through."""

import csv
import json

import numpy as np
import pytest
import torch

from cgnl.engine.checkpoint import open_trained
from cgnl.engine.config import load
from cgnl.engine.datasets import with_defaults
from cgnl.engine.network import with_measured_head
from cgnl.engine.optimizer import parameter_groups
from cgnl.heads import KINDS, second_order_pools
from cgnl.models import create_model
from tests.engine.conftest import options, write_pictures

HEAD = {"model__name": "resnet18", "model__head": "covariance", "model__reduced": 8, "optim__lr": 0.1}


@pytest.fixture
def trained(run):
    return run(**HEAD).folder


def test_every_command_takes_a_head(cgnl, trained, tmp_path):
    last = trained / "last.ckpt"
    network = open_trained(last).network
    assert second_order_pools(network)["avgpool"].reduced == 8
    picture = write_pictures(tmp_path / "pictures", count=1, size=(64, 64))[0]
    assert cgnl("eval", last, "accelerator=cpu")[0] == 0
    status, out, _ = cgnl("predict", last, picture, "--json")
    assert (status, len(json.loads(out))) == (0, 1)
    drawn, saved = tmp_path / "pairs.png", tmp_path / "pairs.npz"
    status, out, err = cgnl(
        "explain", last, picture, "-o", drawn, "--save", saved, "--columns", "3", "--grad-cam", "true"
    )
    assert (status, err) == (0, "")
    assert drawn.stat().st_size > 1000
    assert np.load(saved)["maps"].shape == (3, 2, 2)
    status, out, err = cgnl("diagnose", last, "-o", tmp_path / "d", "accelerator=cpu")
    assert (status, err) == (0, "")
    with (tmp_path / "d.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 3
    assert cgnl("report", trained)[0] == 0
    page = (trained / "report.html").read_text()
    assert "pairs of channels" in page
    assert cgnl("explain", last, picture, "--at", "3,4")[0] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_new_layers_are_head_and_classifier(kind):
    from cgnl.engine.network import build_network

    settings = {"model.name": "resnet18", "model.head": kind, "model.reduced": 8, "model.block": None}
    config = load(None, settings | {"optim.new_layers": 5.0})
    network = build_network(config.model, 3)
    old, new = parameter_groups(network, config.optim, lr=0.1)
    names = {id(p): name.partition(".")[0] for name, p in network.named_parameters()}
    assert {names[id(p)] for p in new["params"]} == {"avgpool", "fc"}
    assert {names[id(p)] for p in old["params"]}.isdisjoint({"avgpool", "fc"})
    assert new["initial_lr"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("settings", "kind", "head", "lr", "new_layers"),
    [
        ({}, "images", "covariance", 0.08, 5.0),
        ({"model.name": "resnet50_caffe"}, "images", "covariance", 0.08, 5.0),
        ({"model.head": "covariance"}, "images", "covariance", 0.08, 5.0),
        ({"optim.lr": 0.01, "optim.new_layers": 2}, "images", "covariance", 0.01, 2.0),
        ({"optim.optimizer": "adamw"}, "images", "covariance", None, 5.0),
        ({"model.head": "average"}, "images", "average", None, 1.0),
        ({"model.weights": None}, "images", "average", None, 1.0),
        ({"model.name": "c2d_resnet18"}, "videos", "average", None, 1.0),
        ({"model.name": "timm/resnet18"}, "images", "average", None, 1.0),
        ({"data.size": 96}, "images", "average", None, 1.0),
    ],
)
def test_resnets_with_weights_get_the_measured_head(settings, kind, head, lr, new_layers):
    usual = {"data.root": ".", "model.name": "resnet18", "model.weights": "w.pth"}
    found = with_defaults(with_measured_head(load(None, usual | settings), kind))
    assert (found.model.head, found.optim.lr, found.optim.new_layers) == (head, lr, new_layers)


def test_train_says_which_head_it_takes(cgnl, tmp_path):
    write_pictures(tmp_path / "pictures", count=4)
    torch.save(create_model("resnet18").state_dict(), tmp_path / "w.pth")
    words = [
        f"data.root={tmp_path / 'pictures'}",
        f"model.weights={tmp_path / 'w.pth'}",
        f"runs={tmp_path}",
        "name=run",
    ]
    words += ["data.size=128", "optim.epochs=1", "optim.warmup_epochs=0", "accelerator=cpu", "data.workers=0"]
    status, out, err = cgnl("train", *words)
    assert (status, err) == (0, "")
    assert all(part in out for part in ("2.93", "1.16", "model.head=average"))
    trained = open_trained(tmp_path / "run" / "last.ckpt")
    assert second_order_pools(trained.network)["avgpool"].reduced == 256
    assert (trained.config.model.head, trained.config.optim.new_layers) == ("covariance", 5.0)


@pytest.mark.parametrize("settings", [{"model.weights": None}, {"data.size": 64}, {"model.name": "timm/resnet18"}])
def test_reduced_channels_want_a_head(settings):
    given = {"data.root": ".", "model.name": "resnet18", "model.weights": "w.pth", "model.reduced": 32}
    with pytest.raises(ValueError, match=r"model\.reduced = 32 has no effect .*model\.head=covariance"):
        with_measured_head(load(None, given | settings), "images")
    assert with_measured_head(load(None, given), "images").model.head == "covariance"


def test_recipes_without_a_head_keep_the_average(tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {name: resnet18, weights: w.pth}\n")
    for recipe in (tmp_path / "mine.yaml", "cub_r50", "base_pets"):
        assert with_measured_head(load(recipe), "images").model.head == "average"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.head=covarience", "model.head"),
        ("model.reduced=1", "reduced = 1"),
        ("model.reduced=0", "model.reduced = 0"),
        ("model.reduced=5000", "model.reduced = 5000"),
    ],
)
def test_train_refuses_heads(cgnl, setting, says, tmp_path):
    given = {"runs": str(tmp_path), **HEAD}
    status, _, err = cgnl("train", "parts", *options(**given), setting)
    assert status == 2
    assert says in err


def test_training_with_each_kind_lowers_the_loss(run):
    for kind in KINDS:
        rows = run(**HEAD | {"model__head": kind, "name": kind, "optim__epochs": 3}).rows
        assert rows[-1]["train_loss"] < rows[0]["train_loss"]
        assert torch.isfinite(torch.tensor(rows[-1]["test_loss"]))
