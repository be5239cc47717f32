"""``cgnl export``: a trained network as a file that runs elsewhere."""

import json
from pathlib import Path

from ..engine.atomic_io import make_folder, whole_file, write_text
from ..engine.checkpoint import Trained, open_trained
from ..export.agreement import Agreement, words
from ..export.card import card_of, own_size
from ..export.files import SUFFIXES, to_file, to_folder
from ..extras import need


def export(checkpoint: str, out: str) -> None:
    """Write a trained network as a file that runs elsewhere, after checking that it computes the same.

    Args:
        checkpoint: last.ckpt or best.ckpt of a run.
        out: model.onnx, model.pt2 (torch.export), model.safetensors (weights, and model.json beside them), or a folder
            in Hugging Face's convention, with a slash at its end. Of a network that finds objects, .onnx and .pt2 hold
            the backbone.
    """
    target, folder = Path(out), out.endswith(("/", "\\"))
    if not folder and target.suffix not in SUFFIXES:
        raise ValueError(f"{out} must end in {', '.join(SUFFIXES)}, or in / for a folder in Hugging Face's convention")
    if folder:
        need("huggingface_hub", "hub")
    elif target.suffix == ".onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            need(module, "export")
    trained = open_trained(checkpoint)
    make_folder(target if folder else target.parent)
    card = card_of(trained)
    if folder:
        content, agreement = to_folder(trained.network, target, card, own_size(trained))
    else:
        content, agreement = to_file(trained.network, target.suffix, card, own_size(trained))
        with whole_file(target) as file:
            file.write(content)
    written = [out if folder else str(target)]
    if not folder and target.suffix == ".safetensors":
        beside = target.with_suffix(".json")
        write_text(beside, json.dumps(card, indent=2))
        written.append(str(beside))
    print(f"{' and '.join(written)} written, {len(content) / 2**20:.1f} MiB{_part(trained, target)}")
    print(report(agreement))


def report(agreement: Agreement) -> str:
    """The largest difference, and that of each shape."""
    lines = [
        f"the same as the network on {len(agreement.shapes)} shapes: the largest difference is {agreement.largest:.1e} "
        "of the largest output"
    ]
    pairs = zip(agreement.shapes, agreement.differences, strict=True)
    return "\n".join([*lines, *(f"  {words(shape):24} {difference:.1e}" for shape, difference in pairs)])


def _part(trained: Trained, target: Path) -> str:
    backbone = trained.kind == "objects" and target.suffix in (".onnx", ".pt2")
    return ": the backbone, from normalised pixels to features" if backbone else ""
