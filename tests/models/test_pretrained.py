"""Networks go into a folder and come out of it, or of a repository, the same."""

import json
import os
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import cgnl
from cgnl.kernels import GaussianRBF, Taylor
from cgnl.models import pretrained
from cgnl.models.pretrained import Network
from tests.conftest import relative_error


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": "cgnl", "groups": 4, "norm": "group"},
        {"block": "cgnl", "kernel": GaussianRBF(order=2, gamma=0.5, beta="exact"), "normalize": True},
        {"block": "cgnl", "kernel": Taylor([1, 0.5]), "after": ["layer1.1", "layer2.0"], "norm": None},
        {"block": cgnl.NonLocal, "subsample": True},
        {"head": "covariance", "reduced": 24},
        {"head": "bilinear", "reduced": 24, "block": "cgnl"},
    ],
    ids=str,
)
def test_network_comes_back_from_a_folder(tmp_path, options):
    model = cgnl.create_model("resnet18", num_classes=3, dropout=0.1, **options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    Network(model, classes=["a", "b", "c"]).save_pretrained(tmp_path)
    back = Network.from_pretrained(tmp_path)
    assert same(back.network, model)
    assert not back.training
    assert str(back.network.eval()) == str(model.eval())  # with kernels, norms and dropout
    assert back.classes == ("a", "b", "c")
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert relative_error(back(x), model(x)) == 0


def test_config_names_the_head(tmp_path):
    Network("resnet18", head="covariance", reduced=24, num_classes=3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"network": "resnet18", "head": "covariance", "reduced": 24, "num_classes": 3, "dropout": 0.5}
    file = tmp_path / "model.safetensors"
    again = cgnl.create_model("resnet18", head="covariance", reduced=24, num_classes=3, weights=file)
    assert same(again, Network.from_pretrained(tmp_path).network)


def test_config_with_a_head_that_cannot_be_built_is_refused(tmp_path):
    Network("resnet18", head="compact", reduced=24, num_classes=3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for reduced in (24.5, "many", 10**9, None):
        (tmp_path / "config.json").write_text(json.dumps(config | {"reduced": reduced}))
        with pytest.raises(ValueError, match=r"reduced|smaller|resnet18"):
            Network.from_pretrained(tmp_path)


def test_folder_has_the_weights_by_their_own_names(tmp_path):
    network = Network("resnet18", block="cgnl", num_classes=3)
    network.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert load_file(tmp_path / "model.safetensors").keys() == network.network.state_dict().keys()
    again = cgnl.create_model("resnet18", block="cgnl", num_classes=3, weights=tmp_path / "model.safetensors")
    assert same(again, network.network)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"network": "resnet18", "block": "cgnl", "blocks": 1, "num_classes": 3, "dropout": 0.5}


def test_network_comes_back_from_a_repository(tmp_path, monkeypatch, saved):
    asked = []

    def download(repo_id, filename, **options):
        asked.append((repo_id, filename, options["revision"]))
        return shutil.copy(saved / filename, tmp_path / f"cached-{filename}")

    def download_weights(repo_id, filename, **options):
        return shutil.copy(download(repo_id, filename, **options), tmp_path / filename)

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    monkeypatch.setattr(pretrained.hub, "hf_hub_download", download_weights)
    back = Network.from_pretrained("somebody/birds", revision="v2")
    assert asked == [("somebody/birds", "config.json", "v2"), ("somebody/birds", "model.safetensors", "v2")]
    assert same(back.network, Network.from_pretrained(saved).network)


def test_network_is_pushed_with_config_and_weights(monkeypatch):
    sent = {}
    made = SimpleNamespace(repo_id="somebody/birds")
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: made)

    def upload(self, *, repo_id, folder_path, **_):  # noqa: ARG001
        sent[repo_id] = sorted(p.name for p in folder_path.iterdir())

    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    Network("resnet18", num_classes=3).push_to_hub("somebody/birds")
    assert sent == {"somebody/birds": ["README.md", "config.json", "model.safetensors"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a network."""
    folder = tmp_path_factory.mktemp("saved")
    Network("resnet18", num_classes=3).save_pretrained(folder)
    return folder


def rename(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"short")


def forget(folder):
    (folder / "config.json").unlink()


def write_config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def change(**values):
    def apply(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return apply


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (rename, "has no model.safetensors, and weights of other formats are not read"),
        (cut, "model.safetensors is not a file of weights: "),
        (forget, "has no config.json that names a network of cgnl"),
        (change(network="resnet99"), "unknown network 'resnet99'"),
        (change(num_classes=4), "are of another network: size mismatch for fc.bias"),
        (change(colour=4, block="cgnl"), "unexpected keyword argument 'colour'"),
        (change(num_classes=10**12), "is of another network: its weights are of a smaller one"),  # 2 PB
        (change(num_classes="3"), "num_classes must be a whole number, got '3'"),
        (change(num_classes=10**30), "resnet18 cannot be built: "),
        (change(weights="IMAGENET1K_V1"), "has a config.json that asks for other weights"),
        (change(model_id="elsewhere"), "has a config.json that does not describe a network: .* 'model_id'"),
        (change(block="cgnl", kernel={"kernel": "Taylor"}), "does not describe a network: 'arguments'"),
        (change(classes=3), "has a config.json that does not describe a network: "),
        (write_config("{"), "has a config.json that is not JSON"),
        (write_config("[" * 100_000), "has a config.json that is not JSON"),
        (write_config("[]"), "has a config.json that does not describe a network: "),
    ],
    ids=[
        "pickle",
        "cut",
        "no-config",
        "network",
        "classes",
        "option",
        "petabytes",
        "text",
        "overflow",
        "weights",
        "id",
        "kernel",
        "names",
        "json",
        "brackets",
        "list",
    ],
)
def test_from_pretrained_says_what_is_wrong(tmp_path, saved, damage, sentence):
    shutil.copy(saved / "config.json", tmp_path)
    os.link(saved / "model.safetensors", tmp_path / "model.safetensors")
    damage(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        Network.from_pretrained(tmp_path)


def test_network_refuses_what_it_could_not_build_again():
    with pytest.raises(ValueError, match=r"this Linear was not made by cgnl\.create_model"):
        Network(nn.Linear(2, 2))
    model = cgnl.create_model("resnet18", block=lambda channels: nn.Conv2d(channels, channels, 1))
    with pytest.raises(ValueError, match="has no name: a file can only name cgnl, cgnlx, nl, residual"):
        Network(model)
    with pytest.raises(ValueError, match="the network is made already, but options are given: num_classes"):
        Network(cgnl.create_model("resnet18"), num_classes=4)


def test_card_describes_the_network_and_its_classes(tmp_path):
    classes = ["house_sparrow", "a [link](http://x)", "two\nlines"]
    network = Network("resnet18", block="cgnl", num_classes=3, classes=classes, preprocessing={"crop": 32})
    network.save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "More Information Needed" not in text
    card = huggingface_hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.to_dict()["library_name"] == "cgnl"
    assert "non-local-networks" in card.data.to_dict()["tags"]
    lines = card.text.splitlines()
    assert [line for line in lines if line[:1].isdigit()] == [
        r"0. house\_sparrow", r"1. a \[link\](http://x)", "2. two lines"
    ]  # fmt: skip
    assert "* crop: 32" in lines
    assert "* block: cgnl" in lines
    assert "## Classes" not in str(Network("resnet18", num_classes=3).generate_model_card())
