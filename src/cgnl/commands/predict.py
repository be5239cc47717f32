"""``cgnl predict``: name or find what is in files, with a checkpoint and nothing else."""

import csv as csv_module
import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..engine.checkpoint import Trained, open_trained
from ..engine.onnx import open_onnx
from ..engine.predict import FilePrediction, find, find_device, predictions
from ..spelling import printable


def predict(
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
    from ..engine import predict_objects

    lowest = threshold if threshold is not None else (0.0 if json else predict_objects.SURE)
    if not 0 <= lowest <= 1:
        raise ValueError(f"threshold = {lowest} must be from 0 to 1")
    results = predict_objects.findings(trained, paths, find_device(device), lowest)
    if draw is not None:
        results = predict_objects.drawn(results, Path(draw))
    return (predict_objects.json if json else predict_objects.table)(results)


def _table(results: Iterator[FilePrediction]) -> list[str]:
    failed = []
    for r in results:
        if r.problem:
            failed.append(r.problem)
            continue
        print(r.path)
        for name, probability in zip(r.classes, r.probabilities, strict=True):
            print(f"  {probability:7.2%}  {printable(name)}")
    return failed


def _json(results: Iterator[FilePrediction]) -> list[str]:
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


def _csv(results: Iterator[FilePrediction]) -> list[str]:
    failed = []
    writer = csv_module.writer(sys.stdout)
    writer.writerow(("file", "rank", "class", "probability"))
    for r in results:
        if r.problem:
            failed.append(r.problem)
        for rank, (name, probability) in enumerate(zip(r.classes, r.probabilities, strict=True), start=1):
            writer.writerow((r.path, rank, name, f"{probability:.6f}"))
    return failed
