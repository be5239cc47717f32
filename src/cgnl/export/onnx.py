"""An ONNX file of ``cgnl export`` with the interface of a trained network."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.index import require_file
from ..data.loading import MAX_UNCROPPED_SIDE
from ..engine.checkpoint import Trained, parse_card
from ..engine.predict import VIEWS_PER_BATCH
from ..extras import need
from ..text import counted, first_line

MIN_ARENA, ARENA_FACTOR = 2**30, 64
"""Arena limit: max(1 GiB, 64 x input bytes)."""


class OnnxNetwork(nn.Module):
    """A file that onnxruntime runs, as a module: on the CPU, and on a GPU where onnxruntime knows it."""

    def __init__(self, session: Any, classes: int):
        super().__init__()
        self.session, self.classes = session, classes

    def forward(self, x: Tensor) -> Tensor:
        try:
            found = self.session.run(None, {self.session.get_inputs()[0].name: x.cpu().numpy()})
        except Exception as error:  # onnxruntime's errors have no common type
            size = " x ".join(map(str, x.shape))
            raise ValueError(f"the ONNX file cannot take {size}: {first_line(error)}") from None
        logits = found[0] if len(found) == 1 else None
        if not isinstance(logits, np.ndarray) or logits.shape != (len(x), self.classes) or logits.dtype.kind != "f":
            raise ValueError(f"the ONNX file does not give a number for each of its {counted(self.classes, 'class')}")
        return torch.from_numpy(logits)


def open_onnx(path: Path | str) -> Trained:
    """The classifier in an ONNX file."""
    onnx = need("onnx", "export")
    content = require_file(path).read_bytes()
    try:
        model = onnx.load_model_from_string(content)
        card = json.loads({p.key: p.value for p in model.metadata_props}.get("cgnl", "null"))
        if not model.graph.node:
            raise ValueError("an empty file is a message too")
    except Exception:  # a broken file raises almost anything
        raise ValueError(f"{path} is not a whole ONNX file") from None
    if not isinstance(card, dict):
        raise ValueError(f"{path} was not written by cgnl export: it does not say what its outputs mean")
    if card.get("kind") == "objects":
        raise ValueError(f"{path} is the backbone of a detector: to find objects, give the checkpoint")
    about = parse_card(card, path, "settings")
    if danger := next(find_dangers(model, onnx), None):
        raise ValueError(f"{path} was not written by cgnl export: it {danger}")
    try:
        session = start_session(content, get_arena_limit(about))
    except Exception:  # onnxruntime's errors have no common type
        raise ValueError(f"{path} is not a whole ONNX file") from None
    return dataclasses.replace(about, network=OnnxNetwork(session, len(about.classes)))


def find_dangers(model: Any, onnx: Any) -> Iterator[str]:
    """Find what no export of ours contains: foreign operators, loops and branches, tensors in other files."""
    if model.functions or any(node.domain not in ("", "ai.onnx") for node in model.graph.node):
        yield "has operators that are not ONNX's own"
    parts = [part for node in model.graph.node for part in node.attribute]
    if any(part.HasField("g") or part.graphs for part in parts):
        yield "repeats or chooses parts of itself"
    sparse = [*model.graph.sparse_initializer, *(t for p in parts for t in (p.sparse_tensor, *p.sparse_tensors))]
    tensors = [*model.graph.initializer, *(t for p in parts for t in (p.t, *p.tensors))]
    tensors += [t for s in sparse for t in (s.values, s.indices)]
    if any(t.data_location == onnx.TensorProto.EXTERNAL or t.external_data for t in tensors):
        yield "keeps numbers in other files"


def get_arena_limit(about: Trained) -> int:
    """The arena limit in bytes."""
    view = about.task.view_in_test(about.config.data)
    images = min(VIEWS_PER_BATCH, view.clips * view.crops) * (view.frames if about.task.has_frames else 1)
    return max(MIN_ARENA, ARENA_FACTOR * images * 3 * (view.size or MAX_UNCROPPED_SIDE) ** 2 * 4)


def start_session(content: bytes, most: int) -> Any:
    """A silent session of onnxruntime that takes at most so much memory."""
    ort = need("onnxruntime", "export")
    known = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in ort.get_available_providers()]
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(place, ort.OrtArenaCfg({"max_mem": most, "arena_extend_strategy": 1}))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_env_allocators", "1")
    return ort.InferenceSession(content, options, providers=known)
