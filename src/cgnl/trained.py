"""A trained network as Python uses it: ``cgnl.load("runs/pets").predict("cat.jpg")``."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data.images import to_pixels
from .data.sources import FileSource, MemorySource, Source
from .engine import checkpoint
from .engine.network import build_network
from .engine.predict import FilePrediction, find_samples, predict_samples
from .engine.predict_objects import Finding, find_objects
from .engine.runs import find_checkpoint
from .engine.tasks import Task
from .engine.tasks.detection import SURE
from .explain import figure
from .explain.inputs import read_input, read_sample
from .explain.verdict import read_verdict
from .export.onnx import OnnxNetwork, open_onnx
from .extras import need
from .models.device import find_device
from .models.weights import check_size, read_state_dict, without_wrappers
from .ops.reference import check_whole

File = str | Path | Any
"""A file, a Pillow image (rotated by its EXIF orientation, as files are), or bytes: an array [H, W, 3] or tensor
[3, H, W], of clips [T, H, W, 3] or [T, 3, H, W]. Images may be grey, [H, W], or have 1 or 4 channels."""


@dataclass(frozen=True)
class Trained(checkpoint.Trained):
    """A network and all that is needed to use it."""

    path: Path = Path()
    """Where it was loaded from."""

    def predict(self, files: File | Sequence[File], top: int = 5, device: str | torch.device = "auto") -> Any:
        """Classify images or clips, or detect the objects in images.

        Args:
            files: a file or an array (see ``File``), or a list of them. A folder stands for all that is in it.
            top: classes to return, default 5; detectors return every object of a score of 0.5 or more.
            device: ``"cpu"``, ``"cuda"`` or ``"auto"`` (default).

        Returns:
            For one file or array what has ``label``, ``score``, ``classes`` and ``probabilities``, the likeliest first
            (for detectors a ``Finding``); for a list or a folder a list of these.
        """
        _check_count(top=top)
        many = isinstance(files, list | tuple) or (isinstance(files, str | Path) and self._holds_several(files))
        found: list[FilePrediction] | list[Finding]
        source = self._open(files if isinstance(files, list | tuple) else [files])
        if self.task.classifies:
            found = list(predict_samples(self, source, top, find_device(device)))
        else:
            found = list(find_objects(self, source, find_device(device), SURE))
        for one in found:
            if one.problem:
                raise ValueError(one.problem)
        return found if many else found[0]

    def explain(
        self,
        file: File,
        at: tuple[float, ...] | None = None,
        *,
        block: str | None = None,
        group: int | None = None,
        head: bool | None = None,
        columns: int = 5,
        grad_cam: bool = False,
        device: str | torch.device = "auto",
    ) -> figure.Row:
        """Show what a block relates a position to or, where there is no block, the pairs of channels of the head.

        Args:
            file: a file or an array (see ``File``).
            at: (x, y) or (x, y, frame) of the reference position, in pixels of the file; None takes the middle.
            block: dotted name of the block; None takes the only one.
            group: show the maps of this group alone; None (default) takes all.
            head: whether to show the second-order head; None (default) does so if there is no block.
            columns: maps to show, default 5.
            grad_cam: add Grad-CAM of the predicted class, default False.
            device: ``"cpu"``, ``"cuda"`` or ``"auto"`` (default).

        Returns:
            What has ``maps``, ``caption`` (with what the block is worth) and ``save("why.png")``.
        """
        if isinstance(self.network, OnnxNetwork):
            raise ValueError(f"{self.path} is an ONNX file, whose blocks cannot be looked into: load the checkpoint")
        _check_count(columns=columns)
        if head and (block is not None or group is not None):
            raise ValueError(
                "block and group choose maps of a block, and head=True shows the head: give one or the other"
            )
        network = self.network.to(find_device(device))
        options: Any = {"at": at, "block": block, "group": group, "head": head, "columns": columns}
        options |= {"with_grad_cam": grad_cam, "verdict": read_verdict(self.path, network)}
        in_file = isinstance(file, str | Path)
        seen = read_input(self, file) if in_file else read_sample(self, self._open([file]), 0)
        return figure.explain_input(self, seen, figure.name_run(str(self.path), [str(self.path)]), **options)

    def _holds_several(self, path: str | Path) -> bool:
        return Path(path).is_dir() and find_samples([path], self.task) != [Path(path)]

    def _open(self, files: Sequence[File]) -> Source:
        """The files, or arrays, as a source of samples."""
        if all(isinstance(file, str | Path) for file in files):
            return FileSource.of_files(find_samples(files, self.task), self.kind)
        return MemorySource([_read(file, self.task) for file in files])


def _check_count(**numbers: int) -> None:
    check_whole(**numbers)
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def _read(file: File, task: type[Task]) -> Tensor:
    if isinstance(file, str | Path):
        raise ValueError(f"{file}: give files or arrays, not both")
    try:
        pixels = to_pixels(file)
    except TypeError:  # NumPy and torch make no numbers of it
        raise ValueError(
            f"expected a file, a Pillow image, an array or a tensor, got a {type(file).__name__}"
        ) from None
    if pixels.ndim != (4 if task.has_frames else 3):
        shape = " x ".join(map(str, pixels.shape))
        raise ValueError(f"the network was trained on {task.file}s, and cannot take an array of {shape}")
    return pixels


def load(path: str | Path) -> Trained:
    """Load a trained network: a run's folder, a checkpoint, or what ``cgnl export`` wrote.

    Args:
        path: a run's folder (its ``last.ckpt`` is meant), a ``.ckpt``, or an exported ``.onnx`` or ``.safetensors``.
    """
    path = Path(path)
    if path.suffix == ".onnx":
        found = open_onnx(path)
    elif path.suffix == ".safetensors":
        found = _open_safetensors(path)
    else:
        path = find_checkpoint(path)
        found = checkpoint.open_trained(path)
    return Trained(**{f.name: getattr(found, f.name) for f in dataclasses.fields(found)}, path=path)


def _open_safetensors(path: Path) -> checkpoint.Trained:
    weights = read_state_dict(path)
    with need("safetensors", "vision").safe_open(path, "pt") as file:
        card = (file.metadata() or {}).get("cgnl")
    try:
        about = checkpoint.parse_card(json.loads(card or "null"), path, "settings")
    except (ValueError, RecursionError):
        raise ValueError(f"{path} was not written by cgnl export: it does not say what network it is of") from None
    outline = checkpoint.outline(about, path)
    weights = without_wrappers(weights, outline.state_dict())
    check_size(outline, weights, path)
    network = build_network(about.config.model, len(about.classes), load=False)
    checkpoint.load_network(network, {"state_dict": {f"{checkpoint.PREFIX}{n}": v for n, v in weights.items()}}, path)
    return dataclasses.replace(about, network=network.eval())
