"""``cgnl predict``: name or find what is in files, with a checkpoint and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.index import has_suffix, require_there
from ..data.loading import EvalSet
from ..data.sources import Source
from ..models.device import find_device
from ..text import printable
from .checkpoint import Trained
from .datasets import to_input
from .predictions import ranked
from .tasks import TASKS, Task

VIEWS_PER_BATCH = 8
"""Views in a batch."""


@dataclass(frozen=True)
class FilePrediction:
    """Class names and probabilities of a file, the likeliest first; or why it could not be read."""

    path: Path
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    problem: str | None = None

    @property
    def label(self) -> str:
        """The likeliest class."""
        return self.classes[0]

    @property
    def score(self) -> float:
        """Its probability."""
        return self.probabilities[0]


def find_samples(files: Sequence[str | Path], task: type[Task]) -> list[Path]:
    """The images or videos that are meant; a folder stands for all that are in it."""
    found = []
    for path in map(require_there, files):
        other = next((t.file for t in TASKS.values() if has_suffix(path, t.suffixes)), task.file)
        if not path.is_dir() and other != task.file:
            raise ValueError(f"{path}: the network was trained on {task.file}s, not on {other}s")
        inside = task.find_files(path) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} holds no {task.file}s")
        found += inside
    return found


@torch.inference_mode()
def predict_samples(trained: Trained, source: Source, top: int = 5, device: str = "auto") -> Iterator[FilePrediction]:
    """What each sample shows; for a video the probabilities are averaged over its clips and crops."""
    device = find_device(device)
    network = trained.network.to(device).eval()
    samples = EvalSet(source, trained.task.view_in_test(trained.config.data))
    for index in range(len(source)):
        batch, path = samples.__getitems__([index]), Path(source.name(index))
        if batch.problems:
            yield FilePrediction(path, problem=batch.problems[0])
            continue
        parts = batch.pixels[0].to(device).split(VIEWS_PER_BATCH)
        logits = [network(to_input(trained.config.data, part)) for part in parts]
        scores = torch.cat(logits).float().softmax(1).mean(0)  # [K]
        if not scores.isfinite().all():
            yield FilePrediction(
                path, problem=printable(f"{path} has no prediction: the network's outputs are not finite")
            )
            continue
        best, classes = ranked(scores, top)
        yield FilePrediction(path, tuple(trained.classes[i] for i in classes.tolist()), tuple(best.tolist()))
