import json

import pytest

from cgnl.commands.models import models
from cgnl.engine import settings
from cgnl.models import NETWORKS
from cgnl.models.table import cost


@pytest.fixture(autouse=True)
def _networks(monkeypatch):
    """Only the networks that everybody has."""
    for name in set(NETWORKS) - set(settings.NETWORKS):
        monkeypatch.delitem(NETWORKS, name)


def rows(capsys, **options) -> list[dict]:
    models(json=True, **options)
    return json.loads(capsys.readouterr().out)


def test_models_lists_every_network(capsys):
    listed = rows(capsys, size=32, frames=8)
    assert [row["network"] for row in listed] == list(NETWORKS)
    assert all(row["parameters"] > 1e7 and row["gmacs"] > 0 for row in listed)
    assert {row["input"] for row in listed} == {"32 x 32", "8 x 32 x 32"}


def test_models_takes_every_option(capsys):
    options = {"block": "cgnl", "blocks": 5, "groups": 4, "size": 64, "num_classes": 10}
    (row,) = rows(capsys, name="c2d_resnet34", frames=16, **options)
    expected = cost("c2d_resnet34", frames=16, **options)
    assert (row["parameters"], row["gmacs"]) == (expected.parameters, expected.gmacs)
    assert (row["blocks"], row["input"]) == ("5 cgnl", "16 x 64 x 64")


def test_models_prints_a_table(capsys):
    models(name="resnet50", block="nl")
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["network", "blocks", "input", "parameters", "GMACs"]
    expected = cost("resnet50", block="nl")
    row = ["resnet50", "1", "nl", "224", "x", "224", f"{expected.parameters / 1e6:.2f}", "M", f"{expected.gmacs:.3f}"]
    assert lines[0].split() == row
    listed = ["resnet50", "resnet50_caffe", "c2d_resnet50", "c2d_resnet50_caffe", "i3d_resnet50"]
    listed += ["i3d_resnet50_caffe"]
    assert [line.split()[0] for line in lines[:6]] == listed
    assert [line.split()[0] for line in lines[6:10]] == [n for n in NETWORKS if n.startswith("maskrcnn")]
    assert "1 MAC = 2 FLOP" in lines[-2]
    assert lines[-1] == "Mask R-CNN: with 1000 proposals and 100 detections."


def test_models_says_which_networks_it_leaves_out(capsys):
    models(name="resnet1", block="cgnl", blocks=5, size=32)
    out = capsys.readouterr().out
    assert "left out, resnet18: no placement of blocks = 5" in out
    assert "\nresnet101 " in out


def test_models_with_a_head(capsys):
    models(name="resnet50", head="covariance", reduced=32, size=64, frames=8)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["network", "blocks", "head", "input", "parameters", "GMACs"]
    expected = cost("resnet50", size=64, head="covariance", reduced=32)
    assert lines[0].split()[:6] == ["resnet50", "-", "covariance", "32", "64", "x"]
    assert lines[0].split()[-1] == f"{expected.gmacs:.3f}"
    left_out = [line.split()[2].rstrip(":") for line in lines if line.startswith("left out")]
    assert left_out == [name for name in NETWORKS if name.startswith("maskrcnn")]
    (row,) = rows(capsys, name="c2d_resnet18", head="compact", size=32, frames=8, block="nl")
    assert (row["head"], row["blocks"]) == ("compact 256", "1 nl")


@pytest.mark.parametrize(
    "options", [{"reduced": 64}, {"head": "covariance", "reduced": 1}, {"head": "compact", "reduced": 10**7}], ids=str
)
def test_models_names_the_size_of_a_head_that_cannot_be(cgnl, options):
    status, _, err = cgnl("models", "resnet18", *(f"{name}={value}" for name, value in options.items()))
    assert (status, f"reduced = {options['reduced']}" in err) == (2, True)


def test_models_refuses_what_no_network_can_have():
    with pytest.raises(ValueError, match=r"resnet18: .*blocks = 3"):
        models(name="resnet18", block="cgnl", blocks=3)
