"""``cgnl export`` writes what it says, and ``cgnl predict`` reads it."""

import json

import onnx
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from cgnl.engine.checkpoint import open_trained
from cgnl.models.pretrained import Network
from tests.engine.conftest import write_frame_folders, write_pictures
from tests.export.conftest import CLASSES


def same_answers(one: str, other: str) -> None:
    """The same files and classes, and probabilities to the fifth digit."""
    ours, theirs = json.loads(one), json.loads(other)
    assert [row["file"] for row in ours] == [row["file"] for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert [found["class"] for found in a["top"]] == [found["class"] for found in b["top"]]
        chances = [found["probability"] for found in b["top"]]
        assert [found["probability"] for found in a["top"]] == pytest.approx(chances, abs=1e-5)


def test_export_onnx_predicts_as_the_checkpoint(cgnl, checkpoint, tmp_path):
    path, out = checkpoint(kernel="rbf"), tmp_path / "new" / "model.onnx"
    files = write_pictures(tmp_path / "data", "ab", 2)
    status, said, err = cgnl("export", path, out)
    assert (status, err) == (0, "")
    assert said.startswith(f"{out} written")
    assert "the same as the network on 5 shapes: the largest difference is " in said
    assert [p.name for p in out.parent.iterdir()] == ["model.onnx"]
    same_answers(cgnl("predict", out, *files, "--json")[1], cgnl("predict", path, *files, "--json")[1])
    assert cgnl("predict", out, files[0], "--csv")[1].splitlines()[0] == "file,rank,class,probability"
    assert cgnl("predict", out, files[0])[1] == cgnl("predict", path, files[0])[1]


def test_export_onnx_of_a_network_of_clips_predicts_as_the_checkpoint(cgnl, checkpoint, tmp_path):
    path, out = checkpoint("small_video", "nl"), tmp_path / "model.onnx"
    folders = write_frame_folders(tmp_path / "data", "ab", 1)
    assert cgnl("export", path, out)[0] == 0
    same_answers(cgnl("predict", out, *folders, "--json")[1], cgnl("predict", path, *folders, "--json")[1])
    status, _, err = cgnl("predict", out, *write_pictures(tmp_path / "pictures", "a", 1))
    assert status == 2
    assert "the network was trained on videos, not on images" in err


def test_export_program_holds_its_card(cgnl, checkpoint, tmp_path):
    path, out = checkpoint(), tmp_path / "model.pt2"
    status, said, err = cgnl("export", path, out)
    assert (status, err) == (0, "")
    assert "  3 x 3 x 65 x 97" in said
    beside = {"cgnl.json": ""}
    program = torch.export.load(out, extra_files=beside).module()
    card = json.loads(beside["cgnl.json"])
    assert card["classes"] == CLASSES
    assert card["preprocessing"]["crop"] == 32
    x = torch.randn(3, 3, 33, 50)
    with torch.no_grad():
        torch.testing.assert_close(program(x), open_trained(path).network(x))


def test_export_safetensors_has_weights_and_card(cgnl, checkpoint, tmp_path):
    path, out = checkpoint(), tmp_path / "model.safetensors"
    assert cgnl("export", path, out)[0] == 0
    expected = open_trained(path).network.state_dict()
    found = load_file(out)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    card = json.loads(out.with_suffix(".json").read_text())
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["cgnl"]) == card
    assert card["kind"] == "images"
    assert card["settings"]["model"]["options"] == {"after": ["conv1"], "groups": 2}
    assert "gone" not in json.dumps(card)  # where the data was is nobody's business


def test_export_folder_is_loaded_by_from_pretrained(cgnl, checkpoint, tmp_path):
    path, out = checkpoint(), tmp_path / "birds"
    status, said, err = cgnl("export", path, f"{out}/")
    assert (status, err) == (0, "")
    assert said.startswith(f"{out}/ written")
    network, x = Network.from_pretrained(out), torch.randn(2, 3, 32, 32)
    assert network.classes == tuple(CLASSES)
    assert torch.equal(network(x), open_trained(path).network(x))


@pytest.mark.parametrize(
    ("head", "out"),
    [
        ("covariance", "model.onnx"),
        ("compact", "model.pt2"),
        ("bilinear", "model.safetensors"),
        ("covariance", "birds/"),
    ],
)
def test_export_of_a_network_with_a_head(cgnl, checkpoint, tmp_path, head, out):
    path = checkpoint("short", None, head=head)
    status, said, err = cgnl("export", path, f"{tmp_path}/{out}")
    assert (status, err) == (0, "")
    assert " 5 shapes" in said
    trained, x = open_trained(path).network.eval(), torch.randn(2, 3, 64, 40)
    if out == "model.onnx":
        files = write_pictures(tmp_path / "data", "ab", 1)
        same_answers(*(cgnl("predict", file, *files, "--json")[1] for file in (tmp_path / out, path)))
    elif out == "model.pt2":
        with torch.no_grad():
            torch.testing.assert_close(torch.export.load(tmp_path / out).module()(x), trained(x))
    elif out == "birds/":
        config = json.loads((tmp_path / out / "config.json").read_text())
        assert (config["head"], config["reduced"]) == (head, 8)
        assert torch.equal(Network.from_pretrained(tmp_path / out)(x), trained(x))
    else:
        assert load_file(tmp_path / out)["avgpool.reduce.weight"].shape == (8, 512, 1, 1)
        settings = json.loads((tmp_path / "model.json").read_text())["settings"]["model"]
        assert (settings["head"], settings["reduced"]) == (head, 8)


@pytest.mark.parametrize("out", ["model", "model.tflite", "model.ONNX.txt"])
def test_export_refuses_another_suffix(cgnl, checkpoint, tmp_path, out):
    status, printed, err = cgnl("export", checkpoint(), tmp_path / out)
    assert (status, printed) == (2, "")
    assert err.startswith(f"cgnl export: {tmp_path / out} must end in .onnx, .pt2, .safetensors, or in / ")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_export_refuses_what_is_no_checkpoint(cgnl, tmp_path, content):
    path = tmp_path / "a.ckpt"
    if content is not None:
        path.write_bytes(content)
    status, said, err = cgnl("export", path, tmp_path / "model.onnx")
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert str(path) in err
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.safetensors", "folder/"])
def test_export_names_a_folder_it_cannot_write_to(cgnl, checkpoint, tmp_path, name):
    (tmp_path / "file").write_text("")
    status, said, err = cgnl("export", checkpoint(), f"{tmp_path}/file/{name}")
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert "cannot be written to: " in err


def test_export_leaves_nothing_where_the_target_is_a_folder(cgnl, checkpoint, tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    status, _, err = cgnl("export", checkpoint(), tmp_path / "model.safetensors")
    assert (status, err.count("\n")) == (2, 1)
    assert "cannot be written" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.ckpt", "model.safetensors"]


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_predict_names_a_corrupt_onnx_file(cgnl, tmp_path, content):
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    status, said, err = cgnl("predict", path, tmp_path)
    assert (status, said) == (2, "")
    sentence = f"there is no file {path}" if content is None else f"{path} is not a whole ONNX file"
    assert err == f"cgnl predict: {sentence}\n"


@pytest.mark.parametrize(
    ("card", "sentence"),
    [
        (None, "was not written by cgnl export: it does not say what its outputs mean"),
        ("[]", "was not written by cgnl export: it does not say what its outputs mean"),
        ('{"kind": "objects"}', "is the backbone of a detector: to find objects, give the checkpoint"),
        ('{"kind": "images"}', "does not describe a network: what was written about it is damaged"),
        (
            '{"kind": "images", "classes": ["a"], "settings": {"data": {"sise": 3}}}',
            "does not describe a network: there is no setting 'data.sise'",
        ),
    ],
    ids=str,
)
def test_predict_refuses_an_onnx_file_of_somebody_else(cgnl, tmp_path, card, sentence):
    kind = onnx.TensorProto.FLOAT
    given, made = (onnx.helper.make_tensor_value_info(n, kind, ["batch", 3]) for n in ("x", "y"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "graph", [given], [made])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    if card is not None:
        onnx.helper.set_model_props(model, {"cgnl": card})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    status, said, err = cgnl("predict", path, tmp_path)
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"cgnl predict: {path} {sentence}")


@pytest.mark.parametrize("content", ['{"mine": 1}', "[]", "no JSON", '{"library": "other 1.0"}'])
def test_export_keeps_a_json_file_that_is_not_its_own(cgnl, checkpoint, tmp_path, content):
    out, other = tmp_path / "model.safetensors", tmp_path / "model.json"
    other.write_text(content)
    status, _, err = cgnl("export", checkpoint(), out)
    assert status == 2
    assert f"{other} is not the card of an export" in err
    assert other.read_text() == content
    assert not out.exists()


def test_export_replaces_its_own_card(cgnl, checkpoint, tmp_path):
    out = tmp_path / "model.safetensors"
    path = checkpoint()
    assert [cgnl("export", path, out)[0] for _ in range(2)] == [0, 0]
