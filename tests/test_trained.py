"""A trained network as Python uses it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import cgnl
from cgnl.commands.export import export
from cgnl.engine.checkpoint import write
from cgnl.engine.config import load, to_dict
from cgnl.engine.network import build_network

CLASSES = ["finch", "gull", "owl"]


def make_checkpoint(path: Path, settings: dict[str, Any], kind: str = "images") -> Path:
    given = {"data.dataset": "folder", "data.root": "gone", "data.size": 32, "model.name": "resnet18"}
    config = load(None, given | settings)
    torch.manual_seed(0)
    network = build_network(config.model, len(CLASSES), load=False)
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write({"state_dict": weights, "cgnl": {"config": to_dict(config), "classes": CLASSES, "kind": kind}}, path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    options = {"groups": 4, "zero_init": False}
    return make_checkpoint(tmp_path_factory.mktemp("run") / "last.ckpt", {"model.options": options}).parent


@pytest.fixture(scope="module")
def photo(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("photos") / "a.png"
    pixels = torch.randint(0, 256, (40, 48, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(pixels.numpy()).save(file)
    return file


def test_three_lines(run, photo, tmp_path):
    net = cgnl.load(run)
    found = net.predict(photo)
    shown = net.explain(photo, at=(20, 30))
    shown.save(tmp_path / "why.png")
    assert net.classes == tuple(CLASSES)
    assert found.label in CLASSES
    assert found.score == max(found.probabilities)
    assert sum(found.probabilities) == pytest.approx(1)
    assert len(shown.maps) == 5
    assert "The block adds" in shown.caption
    assert Image.open(tmp_path / "why.png").width > 100


def test_predict_takes_whatever_holds_a_picture(run, photo):
    net = cgnl.load(run)
    image = Image.open(photo)
    array = np.asarray(image)
    expected = net.predict(photo).probabilities
    for one in (str(photo), image, array, torch.from_numpy(array.copy()).permute(2, 0, 1)):
        assert net.predict(one).probabilities == pytest.approx(expected)
    assert [found.probabilities for found in net.predict([image, array])] == [pytest.approx(expected)] * 2
    (only,) = net.predict(photo.parent)
    assert only.path == photo
    assert len(net.predict(photo, top=1).classes) == 1


def test_predict_is_the_network_on_the_centre_of_the_picture(run):
    net = cgnl.load(run)
    exact = net.predict(Image.new("RGB", (37, 37), "red")).probabilities
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = ((torch.tensor([1.0, 0, 0]) - mean) / std).view(3, 1, 1)
    with torch.no_grad():
        scores = net.network(x.expand(1, 3, 32, 32)).softmax(1)[0]
    assert exact == pytest.approx(sorted(scores.tolist(), reverse=True), rel=1e-4)


def test_own_mean_and_deviation_are_used(tmp_path):
    plain = make_checkpoint(tmp_path / "plain" / "last.ckpt", {})
    given = {"data.mean": [0.5, 0.5, 0.5], "data.std": [0.25, 0.25, 0.25]}
    other = cgnl.load(make_checkpoint(tmp_path / "other" / "last.ckpt", given))
    grey = Image.new("RGB", (37, 37), (128, 64, 255))
    x = (torch.tensor([128, 64, 255]) / 255 - 0.5).div(0.25).view(3, 1, 1).expand(1, 3, 32, 32)
    with torch.no_grad():
        scores = other.network(x).softmax(1)[0]
    assert other.predict(grey).probabilities == pytest.approx(sorted(scores.tolist(), reverse=True), rel=1e-4)
    assert other.predict(grey).probabilities != cgnl.load(plain).predict(grey).probabilities


def test_explain_shows_the_head_where_there_is_no_block(tmp_path, photo):
    settings = {"model.block": None, "model.head": "covariance", "model.reduced": 8}
    file = make_checkpoint(tmp_path / "head.ckpt", settings)
    shown = cgnl.load(file).explain(photo, columns=2)
    assert shown.block is None
    assert len(shown.maps) == 2


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors"])
def test_load_takes_exports(run, photo, tmp_path, suffix):
    target = tmp_path / f"model{suffix}"
    export(str(run / "last.ckpt"), str(target))
    net = cgnl.load(target)
    assert net.classes == tuple(CLASSES)
    assert net.predict(photo).probabilities == pytest.approx(cgnl.load(run).predict(photo).probabilities, rel=1e-3)
    if suffix == ".onnx":
        with pytest.raises(ValueError, match="ONNX"):
            net.explain(photo)
    else:
        assert net.explain(photo).maps


def test_clips_are_arrays_of_frames(tmp_path):
    settings = {"model.name": "c2d_resnet18", "data.frames": 8, "data.stride": 1, "model.block": None}
    net = cgnl.load(make_checkpoint(tmp_path / "clips.ckpt", settings, "videos"))
    clip = np.random.default_rng(0).integers(0, 256, (12, 40, 48, 3), np.uint8)
    assert net.predict(clip).label in CLASSES
    with pytest.raises(ValueError, match=r"videos.*3 x 40 x 48"):
        net.predict(clip[0])


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((8, 8, 3)), "float64"),
        (np.zeros((8, 8, 2), np.uint8), r"\[H, W, 3\].*\[8, 8, 2\]"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), r"\[3, H, W\]"),
        ("nowhere.png", "nowhere.png"),
        (None, "NoneType"),
        (b"GIF89a", "bytes"),
        ({"a.png"}, "set"),
        ([["a.png"]], "list"),
        (np.array(["a.png"]), "ndarray"),
    ],
)
def test_predict_refuses(run, image, words):
    with pytest.raises(ValueError, match=words):
        cgnl.load(run).predict(image)


@pytest.mark.parametrize("top", [0, -1, 2.0, True])
def test_predict_refuses_a_number_of_classes(run, photo, top):
    with pytest.raises(ValueError, match=f"top must be .*{top}"):
        cgnl.load(run).predict(photo, top=top)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": (1,)}, "has 1 numbers"),
        ({"at": 3}, "at must be numbers.*3"),
        ({"at": "3,4"}, "at must be numbers.*'3,4'"),
        ({"at": (None, 4)}, "at must be numbers"),
        ({"columns": 0}, "columns must be at least 1, got 0"),
        ({"head": True, "group": 99}, "head=True"),
    ],
)
def test_explain_refuses(run, photo, options, words):
    with pytest.raises(ValueError, match=words):
        cgnl.load(run).explain(photo, **options)


def test_explain_refuses_several_files(run, photo):
    with pytest.raises(ValueError, match="got a list"):
        cgnl.load(run).explain([photo, photo])


def test_devices_may_be_objects(run, photo):
    assert cgnl.load(run).predict(photo, device=torch.device("cpu")).label in CLASSES


def test_load_refuses(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "odd.safetensors", {"cgnl": json.dumps({"kind": "images"})})
    for name in ("foreign.safetensors", "odd.safetensors", "nowhere.ckpt", "nowhere.onnx", "."):
        with pytest.raises(ValueError, match=name if name != "." else str(tmp_path)):
            cgnl.load(tmp_path / name)
