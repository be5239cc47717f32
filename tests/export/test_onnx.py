"""An ONNX file is a program of somebody else: it runs once, on its own numbers, in little memory, or not at all."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from cgnl.cli import main
from cgnl.engine.checkpoint import Trained, parse_card
from cgnl.export.onnx import MIN_ARENA, get_arena_limit

COLOURS = ["red", "green", "blue"]
CARD = {"kind": "images", "classes": COLOURS, "settings": {"data": {"dataset": "folder", "test_short_side": 256}}}
MEANS = helper.make_node("ReduceMean", ["pixels", "axes"], ["means"], keepdims=0)  # [B, 3, H, W] -> [B, 3]
LOGITS = helper.make_node("Mul", ["means", "nine"], ["logits"])
NINE = numpy_helper.from_array(np.array([9], np.float32), "nine")


@pytest.fixture
def predict(tmp_path, capfd):
    """Write a network that names the strongest colour, but for what is given, and let it look at a green picture."""

    def call(nodes=(MEANS, LOGITS), numbers=(NINE,), outputs=("logits",), card: Any = CARD, **more: Any):
        axes = numpy_helper.from_array(np.array([2, 3]), "axes")
        given = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, "height", "width"])
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(list(nodes), "graph", [given], made, [axes, *numbers])
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("elsewhere", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)
        helper.set_model_props(model, {"cgnl": json.dumps(card)})
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        Image.new("RGB", (40, 30), (20, 200, 20)).save(tmp_path / "green.png")
        capfd.readouterr()
        status = main(["predict", str(tmp_path / "model.onnx"), str(tmp_path / "green.png")])
        out, err = capfd.readouterr()
        assert (status, err.count("\n")) in ((0, 0), (2, 1))  # onnxruntime, too, is silent
        return out if status == 0 else err

    return call


def test_file_names_what_it_sees(predict):
    assert predict().splitlines()[1].split()[1] == "green"


def test_names_of_classes_are_printed_without_control_characters(predict):
    out = predict(card=CARD | {"classes": ["red", "\x1b[2Jgreen", "blue"]})
    assert out.splitlines()[1].split()[1] == r"\x1b[2Jgreen"


def loop() -> onnx.NodeProto:
    """Until the end of time."""
    goes_on, number = (helper.make_tensor_value_info(n, t, []) for n, t in (("on", 9), ("n", TensorProto.INT64)))
    same = helper.make_node("Identity", ["on"], ["still"])
    body = helper.make_graph([same], "body", [number, goes_on], [helper.make_tensor_value_info("still", 9, [])])
    return helper.make_node("Loop", ["", "yes"], [], body=body)


def elsewhere(path: str) -> onnx.TensorProto:
    """Numbers that are read from another file."""
    tensor = TensorProto(name="nine", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=path)
    return tensor


def test_file_that_repeats_itself_is_refused(predict):
    yes = numpy_helper.from_array(np.array(True), "yes")
    assert "model.onnx was not written by cgnl export: it repeats or chooses parts" in predict(
        [MEANS, LOGITS, loop()], [NINE, yes]
    )


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "beside"])
def test_numbers_in_other_files_are_not_read(predict, path):
    assert "it keeps numbers in other files" in predict(numbers=[elsewhere(path)])


def test_numbers_of_an_operator_in_other_files_are_not_read(predict):
    constant = helper.make_node("Constant", [], ["nine"], value=elsewhere("../secret"))
    assert "it keeps numbers in other files" in predict([constant, MEANS, LOGITS], [])


def test_operators_of_others_are_not_run(predict):
    other = helper.make_node("Mul", ["means", "nine"], ["logits"], domain="elsewhere")
    assert "it has operators that are not ONNX's own" in predict([MEANS, other])
    function = helper.make_function("elsewhere", "Mul", ["a", "b"], ["c"], [], [helper.make_opsetid("", 20)])
    assert "it has operators that are not ONNX's own" in predict(functions=[function])


@pytest.mark.parametrize("operator", ["Expand", "Tile", "ConstantOfShape"])
def test_file_that_wants_gigabytes_is_refused(predict, operator):
    size = numpy_helper.from_array(np.array([10**9]), "size")
    inputs = ["size"] if operator == "ConstantOfShape" else ["nine", "size"]
    large = [
        helper.make_node(operator, inputs, ["large"]),
        helper.make_node("ReduceMax", ["large"], ["ten"], keepdims=0),
    ]
    add = helper.make_node("Add", ["means", "ten"], ["logits"])
    said = predict([MEANS, *large, add], [NINE, size])
    assert "the ONNX file cannot take 1 x 3 x 224 x 224: " in said
    assert "smaller than requested bytes of 4000000000" in said


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ((helper.make_node("ReduceMean", ["pixels", "axes"], ["logits"]),), ("logits",)),  # [B, 3, 1, 1]
        ((MEANS, helper.make_node("Concat", ["means", "means"], ["logits"], axis=1)), ("logits",)),  # [B, 6]
        ((MEANS, LOGITS), ("logits", "means")),
        ((MEANS, helper.make_node("SequenceConstruct", ["means"], ["logits"])), ("logits",)),
    ],
    ids=["axes", "classes", "outputs", "list"],
)
def test_file_that_answers_something_else_is_refused(predict, nodes, outputs):
    said = predict(nodes, outputs=outputs)
    assert "the ONNX file does not give a number for each of its 3 classes" in said or "is not a whole ONNX" in said


@pytest.mark.parametrize("classes", [3, [1, 2, 3], None, "red"])
def test_file_that_does_not_name_its_classes_is_refused(predict, classes):
    assert "does not describe a network: " in predict(card=CARD | {"classes": classes})


def about(**data: Any) -> Trained:
    kind = "videos" if "frames" in data else "images"
    return parse_card({"kind": kind, "classes": ["a"], "config": {"data": {"dataset": "folder", **data}}}, "a file")


def test_most_memory_is_a_gibibyte_or_many_times_what_is_seen():
    assert get_arena_limit(about(size=224, test_short_side=256)) == MIN_ARENA == 2**30
    clips = {"frames": 32, "test_short_side": 256, "test_clips": 10, "test_crops": 3}
    assert get_arena_limit(about(**clips)) == 64 * 8 * 3 * 32 * 256 * 256 * 4
