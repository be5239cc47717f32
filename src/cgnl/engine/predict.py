"""``cgnl predict``: name or find what is in files, with a checkpoint and nothing else."""

import csv as csv_module
import json as json_module
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.images import is_image_file
from ..data.index import Kind, Sample
from ..data.loading import EvalSet
from ..data.sources import Files
from ..data.transforms import network_input
from ..data.video import is_video_file
from ..spelling import printable
from .answers import ranked
from .checkpoint import Trained, open_trained
from .datasets import view_in_test
from .onnx import AT_ONCE, open_onnx


@dataclass(frozen=True)
class Prediction:
    """What a file shows: class names and probabilities, the likeliest first; or why it could not be read."""

    path: Path
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    problem: str | None = None


def command(
    checkpoint: str,
    *files: str,
    top: int = 5,
    json: bool = False,
    csv: bool = False,
    draw: str | None = None,
    threshold: float | None = None,
    device: str = "auto",
) -> None:
    """Name what is in files, or find the objects in pictures.

    Args:
        checkpoint: last.ckpt or best.ckpt of a run, or what cgnl export made of it: model.onnx.
        files: pictures, videos, folders of frames, or folders of these.
        top: how many classes to name.
        json: print JSON; for objects, COCO's result format.
        csv: print CSV.
        draw: objects: a folder for the pictures with boxes, masks and labels.
        threshold: objects: the lowest score. If not given: 0.5, and everything that was found for JSON.
        device: cpu, cuda, or auto; an ONNX file runs where onnxruntime can.
    """
    if top < 1:
        raise ValueError(f"top = {top} must be at least 1")
    if json and csv:
        raise ValueError("give --json or --csv, not both")
    if not files:
        raise ValueError("name a file or a folder to look at")
    trained = open_onnx(checkpoint) if Path(checkpoint).suffix == ".onnx" else open_trained(checkpoint)
    paths = find(files, trained.kind)
    if trained.kind == "objects":
        if csv:
            raise ValueError("objects are printed in words or as --json, not as --csv")
        failed = _find_objects(trained, paths, json, draw, threshold, device)
    else:
        if draw is not None or threshold is not None:
            raise ValueError(
                f"--draw and --threshold are for networks that find objects: {checkpoint} names {trained.kind}"
            )
        results = predictions(trained, paths, top, device)
        failed = (_json if json else _csv if csv else _table)(results)
    for sentence in failed:
        print(f"cgnl predict: {sentence}", file=sys.stderr)
    if failed:
        raise ValueError(f"{len(failed)} of {len(paths)} could not be read")


def _find_objects(
    trained: Trained, paths: list[Path], json: bool, draw: str | None, threshold: float | None, device: str
) -> list[str]:
    """Find objects in pictures, and say, print or draw them; returns the sentences on what could not be read."""
    from . import finding

    lowest = threshold if threshold is not None else (0.0 if json else finding.SURE)
    if not 0 <= lowest <= 1:
        raise ValueError(f"threshold = {lowest} must be from 0 to 1")
    results = finding.findings(trained, paths, find_device(device), lowest)
    if draw is not None:
        results = finding.drawn(results, Path(draw))
    return (finding.json if json else finding.table)(results)


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
) -> Iterator[Prediction]:
    """What each file shows; for a video the probabilities are averaged over its clips and crops."""
    device = find_device(device)
    network = trained.network.to(device).eval()
    files = Files([Sample(Path(p), 0) for p in paths], trained.kind)
    samples = EvalSet(files, view_in_test(trained.config.data, trained.kind))
    for index, path in enumerate(map(Path, paths)):
        item = samples[index]
        if item.pixels is None:
            yield Prediction(path, problem=item.problems[0])
            continue
        logits = [network(network_input(part.to(device))) for part in item.pixels.split(AT_ONCE)]
        scores = torch.cat(logits).float().softmax(1).mean(0)  # [K]
        best, classes = ranked(scores, top)
        yield Prediction(path, tuple(trained.classes[i] for i in classes.tolist()), tuple(best.tolist()))


def _table(results: Iterator[Prediction]) -> list[str]:
    failed = []
    for r in results:
        if r.problem:
            failed.append(r.problem)
            continue
        print(r.path)
        for name, probability in zip(r.classes, r.probabilities, strict=True):
            print(f"  {probability:7.2%}  {printable(name)}")
    return failed


def _json(results: Iterator[Prediction]) -> list[str]:
    failed, rows = [], []
    for r in results:
        row: dict[str, Any] = {"file": str(r.path)}
        if r.problem:
            failed.append(r.problem)
            row["problem"] = r.problem
        else:
            pairs = zip(r.classes, r.probabilities, strict=True)
            row["top"] = [{"class": name, "probability": probability} for name, probability in pairs]
        rows.append(row)
    print(json_module.dumps(rows, indent=2))
    return failed


def _csv(results: Iterator[Prediction]) -> list[str]:
    failed = []
    writer = csv_module.writer(sys.stdout)
    writer.writerow(("file", "rank", "class", "probability"))
    for r in results:
        if r.problem:
            failed.append(r.problem)
        for rank, (name, probability) in enumerate(zip(r.classes, r.probabilities, strict=True), start=1):
            writer.writerow((r.path, rank, name, f"{probability:.6f}"))
    return failed
