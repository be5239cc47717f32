"""``cgnl predict``."""

import csv as csv_module
import json as json_module
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..data.index import require_file, require_there
from ..engine.runs import find_checkpoint
from ..engine.values import PositiveInt
from ..text import escape, printable, say

if TYPE_CHECKING:
    from ..engine.predict import FilePrediction


def predict(
    checkpoint: str,
    *files: str,
    top: PositiveInt = 5,
    json: bool = False,
    csv: bool = False,
    draw: str | None = None,
    threshold: Annotated[float, ">= 0", "<= 1"] | None = None,
    device: str = "auto",
) -> None:
    """Classify images and videos, or detect the objects in images.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it, or a model.onnx that cgnl export wrote.
        files: images, videos, folders of frames, or folders of these.
        top: number of classes to print.
        json: print JSON; for detectors, in COCO's result format.
        csv: print CSV.
        draw: detectors: folder for images with boxes, masks and labels.
        threshold: detectors: lowest score to print and draw. If not given: 0.5, or 0 for JSON.
        device: cpu, cuda or auto; an ONNX file runs where onnxruntime can.
    """
    if json and csv:
        raise ValueError("give --json or --csv, not both")
    if not files:
        raise ValueError("name a file or a folder to look at")
    is_onnx = Path(checkpoint).suffix == ".onnx"
    (require_file if is_onnx else find_checkpoint)(checkpoint)
    for file in files:
        require_there(file)
    from ..data.sources import FileSource
    from ..engine.checkpoint import open_trained
    from ..engine.predict import find_samples, predict_samples
    from ..export.onnx import open_onnx
    from ..models.device import find_device

    trained = open_onnx(checkpoint) if is_onnx else open_trained(checkpoint)
    paths = find_samples(files, trained.task)
    source = FileSource.of_files(paths, trained.kind)
    if not trained.task.classifies:
        if csv:
            raise ValueError("objects are printed in words or as --json, not as --csv")
        from ..engine import predict_objects
        from ..engine.tasks.detection import SURE

        lowest = threshold if threshold is not None else (0.0 if json else SURE)
        results = predict_objects.find_objects(trained, source, find_device(device), lowest)
        if draw is not None:
            results = predict_objects.save_drawings(results, paths, Path(draw))
        write = predict_objects.print_json if json else predict_objects.print_table
    else:
        if draw is not None or threshold is not None:
            raise ValueError(f"--draw and --threshold are for detectors: {checkpoint} classifies {trained.kind}")
        results = predict_samples(trained, source, top, device)
        write = _print_json if json else _print_csv if csv else _print_table
    failed: list[str] = []
    write(_noting(results, failed))
    for sentence in failed:
        say(f"cgnl predict: {sentence}", error=True)
    if failed:
        raise ValueError(f"{len(failed)} of {len(paths)} have no prediction")


def _noting(results: Iterable[Any], failed: list[str]) -> Iterator[Any]:
    """The same results; the sentences on what could not be read are added to ``failed``."""
    for r in results:
        if r.problem:
            failed.append(r.problem)
        yield r


def _print_table(results: Iterable["FilePrediction"]) -> None:
    for r in results:
        if r.problem:
            continue
        say(r.path)
        for name, probability in zip(r.classes, r.probabilities, strict=True):
            say(f"  {probability:7.2%}  {printable(name)}")


def _print_json(results: Iterable["FilePrediction"]) -> None:
    rows: list[dict[str, Any]] = []
    for r in results:
        pairs = zip(r.classes, r.probabilities, strict=True)
        top = [{"class": name, "probability": probability} for name, probability in pairs]
        rows.append({"file": str(r.path)} | ({"problem": r.problem} if r.problem else {"top": top}))
    print(json_module.dumps(rows, indent=2))


def _print_csv(results: Iterable["FilePrediction"]) -> None:
    writer = csv_module.writer(sys.stdout)
    writer.writerow(("file", "rank", "class", "probability"))
    for r in results:
        for rank, (name, probability) in enumerate(zip(r.classes, r.probabilities, strict=True), start=1):
            writer.writerow((escape(r.path), rank, escape(name), f"{probability:.6f}"))
