"""Networks as ONNX files, for inputs of every batch size, height, width and clip length."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..extras import need
from ..surgery import in_eval_mode
from .agreement import Agreement, agree, cause_of, example_inputs
from .program import axes_of, part_that_exports, trace

INPUT, OUTPUT = "pixels", "logits"


def to_onnx(
    model: nn.Module, about: Mapping[str, str] | None = None, size: Sequence[int] = ()
) -> tuple[bytes, Agreement]:
    """The network as an ONNX file, checked against it by onnxruntime.

    Args:
        model: a float32 network of ours; of a detector, its backbone is exported.
        about: text to put into the file's metadata, or None.
        size: [frames,] height and width of a sample that the network was made for, to be checked too.
    """
    model = part_that_exports(model)
    content = convert(trace(model), axes_of(model), about)
    with in_eval_mode(model):
        return content, agree(model, session(content), example_inputs(model, size))


def convert(program: ExportedProgram, axes: Mapping[int, str], about: Mapping[str, str] | None = None) -> bytes:
    """A program of torch.export with one input as an ONNX file whose free axes have names."""
    need("onnxscript", "export")
    try:
        with _quiet():
            exported: Any = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:  # a network of somebody's own may do anything
        raise ValueError(f"ONNX cannot say what the network does: {cause_of(error)}") from error
    proto = exported.model_proto
    (given,) = proto.graph.input
    named = {given.type.tensor_type.shape.dim[axis].dim_param: name for axis, name in axes.items()}
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\bs\d+\b", lambda m: named.get(m[0], m[0]), dim.dim_param)
    outputs = [OUTPUT] if len(proto.graph.output) == 1 else [f"features{i}" for i in range(len(proto.graph.output))]
    _rename(proto.graph, {given.name: INPUT} | dict(zip((o.name for o in proto.graph.output), outputs, strict=True)))
    need("onnx", "export").helper.set_model_props(proto, dict(about or {}))
    return proto.SerializeToString()


def session(content: bytes):
    """A function that runs an ONNX file on the CPU."""
    onnxruntime = need("onnxruntime", "export")
    started = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> list[Tensor]:
        return [torch.from_numpy(y) for y in started.run(None, {started.get_inputs()[0].name: x.numpy()})]

    return run


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


@contextlib.contextmanager
def _quiet():
    """The exporter tells how it is getting on, in several ways."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
