"""An ONNX file of ``cgnl export`` with the face of a trained network."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..extras import need
from .checkpoint import Trained
from .config import build


class OnnxNetwork(nn.Module):
    """A file that onnxruntime runs, as a module: on the CPU, and on a GPU where onnxruntime knows it."""

    def __init__(self, session: Any):
        super().__init__()
        self.session = session

    def forward(self, x: Tensor) -> Tensor:
        (logits,) = self.session.run(None, {self.session.get_inputs()[0].name: x.cpu().numpy()})
        return torch.from_numpy(logits)


def open_onnx(path: Path | str) -> Trained:
    """The network of an ONNX file that names pictures or clips."""
    onnxruntime = need("onnxruntime", "export")
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    content = Path(path).read_bytes()
    known = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in onnxruntime.get_available_providers()]
    try:
        session = onnxruntime.InferenceSession(content, providers=known)
        card = json.loads(session.get_modelmeta().custom_metadata_map.get("cgnl", "null"))
    except Exception:  # onnxruntime's errors have no common type
        raise ValueError(f"{path} is not a whole ONNX file") from None
    if not isinstance(card, dict):
        raise ValueError(f"{path} was not written by cgnl export: it does not say what its outputs mean")
    if card.get("kind") == "objects":
        raise ValueError(f"{path} is the backbone of a network that finds objects: to find them, give the checkpoint")
    try:
        return Trained(OnnxNetwork(session), tuple(card["classes"]), card["kind"], build(card["settings"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not describe its network: {error}") from None
