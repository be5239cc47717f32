"""``cgnl export``."""

import json
from pathlib import Path

from ..engine.runs import find_checkpoint
from ..extras import need
from ..text import say

SUFFIXES = (".onnx", ".pt2", ".safetensors")
"""Those of ``cgnl.export.files``, which needs torch."""


def export(checkpoint: str, out: str) -> None:
    """Write a trained network as a file that runs elsewhere, after checking that it computes the same.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it.
        out: model.onnx, model.pt2 (torch.export), model.safetensors (weights, with model.json next to them), or a
            folder for the Hugging Face Hub, ending in a slash. For detectors, .onnx and .pt2 hold the backbone.
    """
    target, folder = Path(out), out.endswith(("/", "\\"))
    if not folder and target.suffix not in SUFFIXES:
        raise ValueError(f"{out} must end in {', '.join(SUFFIXES)}, or in / for a folder for the Hugging Face Hub")
    find_checkpoint(checkpoint)
    if folder:
        need("huggingface_hub", "hub")
    elif target.suffix == ".onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            need(module, "export")
    beside = target.with_suffix(".json") if target.suffix == ".safetensors" and not folder else None
    if beside is not None and not _is_card(beside):
        raise ValueError(f"{beside} is not the card of an export, and would be overwritten: choose another name")
    from ..atomic_io import make_folder, whole_file, write_text
    from ..engine.checkpoint import open_trained
    from ..export.card import get_input_size, make_card
    from ..export.files import format_shape, to_file, to_folder

    trained = open_trained(checkpoint)
    make_folder(target if folder else target.parent)
    card, written = make_card(trained), [out if folder else str(target)]
    if folder:
        content, agreement = to_folder(trained.network, target, card, get_input_size(trained))
    else:
        content, agreement = to_file(trained.network, target.suffix, card, get_input_size(trained))
        with whole_file(target) as file:
            file.write(content)
    if beside is not None:
        write_text(beside, json.dumps(card, indent=2))
        written.append(str(beside))
    is_backbone = not trained.task.classifies and target.suffix in (".onnx", ".pt2")
    part = ": the backbone, from normalised pixels to features" if is_backbone else ""
    size = f", for {format_shape(agreement.shapes[0][1:])} alone" if agreement.one_size else ""
    say(f"{' and '.join(written)} written, {len(content) / 2**20:.1f} MiB{part}{size}")
    say(
        f"the same as the network on {len(agreement.shapes)} shapes: "
        f"the largest difference is {agreement.largest:.1e} of the largest output"
    )
    for shape, difference in zip(agreement.shapes, agreement.differences, strict=True):
        say(f"  {format_shape(shape):24} {difference:.1e}")


def _is_card(path: Path) -> bool:
    """Whether this is a card of an earlier export, or nothing at all."""
    if not path.exists():
        return True
    try:
        return str(json.loads(path.read_bytes())["library"]).startswith("cgnl ")
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
