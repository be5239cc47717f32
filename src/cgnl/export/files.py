"""A trained network as files: what kind each suffix stands for, and the card that says what is in them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..extras import need
from ..models.made_with import config_of, network_of
from ..surgery import in_eval_mode
from .agreement import Agreement, agree, example_inputs, outputs_of
from .onnx import to_onnx
from .program import part_that_exports, to_program

CARD = "cgnl"
"""The name of the card in a file's metadata."""
SUFFIXES = (".onnx", ".pt2", ".safetensors")


def to_file(network: nn.Module, suffix: str, card: Mapping[str, Any], size: Sequence[int]) -> tuple[bytes, Agreement]:
    """The network as the bytes of a file of this kind, checked against it, with the card inside."""
    text = json.dumps(card)
    if suffix == ".onnx":
        return to_onnx(network, {CARD: text}, size)
    if suffix == ".pt2":
        return to_program(network, {f"{CARD}.json": text}, size)
    return to_safetensors(network, {CARD: text}, size)


def to_safetensors(network: nn.Module, about: Mapping[str, str], size: Sequence[int]) -> tuple[bytes, Agreement]:
    """The weights, checked by building the network of ``create_model`` again."""
    safetensors = need("safetensors.torch", "vision")
    weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    content = safetensors.save(weights, {"format": "pt", **about})
    again = network_of(**config_of(network))
    again.load_state_dict(safetensors.load(content))
    return content, _compare(network, again, size)


def to_folder(
    network: nn.Module, folder: Path, card: Mapping[str, Any], size: Sequence[int]
) -> tuple[bytes, Agreement]:
    """The network in Hugging Face's convention, checked by loading it again; returns the bytes of its weights."""
    from ..models.pretrained import WEIGHTS, Network

    Network(network, classes=card["classes"], preprocessing=card["preprocessing"]).save_pretrained(folder)
    return (folder / WEIGHTS).read_bytes(), _compare(network, Network.from_pretrained(folder).network, size)


def _compare(network: nn.Module, again: nn.Module, size: Sequence[int]) -> Agreement:
    network, again = part_that_exports(network), part_that_exports(again)
    with in_eval_mode(network), in_eval_mode(again):
        return agree(network, lambda x: outputs_of(again, x), example_inputs(network, size))
