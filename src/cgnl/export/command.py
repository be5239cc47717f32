"""``cgnl export``: a trained network as a file that runs elsewhere."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from .. import __version__
from ..data.transforms import MEAN, STD
from ..engine.checkpoint import Trained, open_trained
from ..engine.config import plain
from ..engine.datasets import dataset_name, short_side_in_test, view_in_test
from ..engine.writing import make_folder, whole_file, write_text
from ..extras import need
from .agreement import Agreement, words
from .files import SUFFIXES, to_file, to_folder

LARGEST_CHECK = 448, 32
"""Height and frames beyond which the check does not go to the network's own size: it would take minutes."""


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


def card_of(trained: Trained) -> dict[str, Any]:
    """All that is needed to use the network: what it is, what it wants to see, and what its answers mean."""
    data = dataclasses.replace(
        trained.config.data,
        dataset=dataset_name(trained.config.data),
        **dict.fromkeys(("root", "lists", "annotations", "images", "test_annotations", "test_images")),
    )
    model = dataclasses.replace(trained.config.model, weights=None)
    card = {
        "library": f"cgnl {__version__}",
        "kind": trained.kind,
        "classes": list(trained.classes),
        "ids": list(trained.ids),
        "preprocessing": preprocessing(trained),
        "settings": {"data": plain(data), "model": plain(model)},
    }
    return {name: value for name, value in card.items() if value != []}


def preprocessing(trained: Trained) -> dict[str, Any]:
    """How a file becomes the network's input."""
    if trained.kind == "objects":
        data = trained.config.data
        size = {"short_side": short_side_in_test(data), "long_side": data.long_side}
    else:
        view = view_in_test(trained.config.data, trained.kind)
        size = {"short_side": view.short_side, "crop": view.size} if view.size else {}
        if trained.kind == "videos":
            size |= {"frames": view.frames, "stride": view.stride, "clips": view.clips, "crops": view.crops}
    axes = "batch, 3, frames, height, width" if trained.kind == "videos" else "batch, 3, height, width"
    return {"input": f"RGB from 0 to 1, less mean, by std: [{axes}]", "mean": MEAN, "std": STD, **size}


def own_size(trained: Trained) -> tuple[int, ...]:
    """[frames,] height and width that the network was made for, where that is not too much for a check."""
    if trained.kind == "objects":
        return ()
    view = view_in_test(trained.config.data, trained.kind, full=False)
    height, frames = LARGEST_CHECK
    if view.size is None or view.size > height or (trained.kind == "videos" and view.frames > frames):
        return ()
    return (view.frames, view.size, view.size) if trained.kind == "videos" else (view.size, view.size)


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
