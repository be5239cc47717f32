"""``cgnl predict``: name or find what is in files, with a checkpoint and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.images import is_image_file
from ..data.index import Kind, Sample
from ..data.loading import EvalSet
from ..data.sources import Files
from ..data.transforms import network_input
from ..data.video import is_video_file
from .checkpoint import Trained
from .datasets import view_in_test
from .onnx import AT_ONCE
from .predictions import ranked


@dataclass(frozen=True)
class FilePrediction:
    """What a file shows: class names and probabilities, the likeliest first; or why it could not be read."""

    path: Path
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    problem: str | None = None


def find(files: Sequence[str | Path], kind: Kind) -> list[Path]:
    """The pictures or videos that are meant; a folder stands for all that are in it."""
    wanted = is_video_file if kind == "videos" else is_image_file
    found: list[Path] = []
    for path in map(Path, files):
        if not path.exists():
            raise ValueError(f"there is no {path}")
        if not path.is_dir():
            if kind == "videos" and is_image_file(path):
                raise ValueError(f"{path} is a picture, and the network was trained on videos")
            if kind != "videos" and is_video_file(path):
                raise ValueError(f"{path} is a video, and the network was trained on pictures")
            found.append(path)
            continue
        folders = [path, *sorted(p for p in path.rglob("*") if p.is_dir())]
        inside = [p for p in sorted(path.rglob("*")) if p.is_file() and wanted(p)]
        if kind == "videos":
            inside += [f for f in folders if any(map(is_image_file, f.iterdir()))]
        if not inside:
            raise ValueError(f"{path} holds no {'videos' if kind == 'videos' else 'pictures'}")
        found += inside
    return found


def find_device(device: str) -> str:
    """cpu or cuda, for auto what there is."""
    gpu = torch.cuda.is_available()
    device = ("cuda" if gpu else "cpu") if device == "auto" else device
    if device != "cpu" and not (gpu and device.startswith("cuda")):
        raise ValueError(f"there is no device {device!r} here")
    return device


@torch.inference_mode()
def predictions(
    trained: Trained, paths: Sequence[Path | str], top: int = 5, device: str = "auto"
) -> Iterator[FilePrediction]:
    """What each file shows; for a video the probabilities are averaged over its clips and crops."""
    device = find_device(device)
    network = trained.network.to(device).eval()
    files = Files([Sample(Path(p), 0) for p in paths], trained.kind)
    samples = EvalSet(files, view_in_test(trained.config.data, trained.kind))
    for index, path in enumerate(map(Path, paths)):
        item = samples[index]
        if item.pixels is None:
            yield FilePrediction(path, problem=item.problems[0])
            continue
        logits = [network(network_input(part.to(device))) for part in item.pixels.split(AT_ONCE)]
        scores = torch.cat(logits).float().softmax(1).mean(0)  # [K]
        best, classes = ranked(scores, top)
        yield FilePrediction(path, tuple(trained.classes[i] for i in classes.tolist()), tuple(best.tolist()))
