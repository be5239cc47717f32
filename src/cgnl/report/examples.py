"""Images in a report: thumbnails of test samples, and what the network attends to in some of them."""

import base64
import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data.images import to_image
from ..data.index import UnreadableError
from ..data.sources import Source
from ..engine.checkpoint import Trained, open_trained
from ..engine.datasets import open_dataset
from ..engine.predictions import Prediction
from ..engine.settings import Config
from ..explain.figure import draw, explain_input, panel_size
from ..explain.inputs import FileInput, read_sample
from ..explain.maps import COLUMNS, attention, find_blocks, shows_head
from ..explain.verdict import Verdict, read_verdict
from ..heads import second_order_pools

SIDE = 112  # longer side of a thumbnail, in pixels
WIDTH = 9.5  # inches of a figure's panels: more would make its text too small to read


class Figure(NamedTuple):
    """A WebP file and its caption."""

    webp: bytes
    caption: str

    @property
    def url(self) -> str:
        """The whole file as a data URL."""
        return f"data:image/webp;base64,{base64.b64encode(self.webp).decode()}"


def open_samples(config: Config) -> tuple[Source | None, str]:
    """The test samples of a run, or why they cannot be opened."""
    try:
        return open_dataset(config.data).test, ""
    except (ValueError, OSError) as error:
        return None, str(error)


def make_thumbnails(source: Source, predictions: Iterable[Prediction]) -> list[Figure]:
    """Small images of samples, or the middle frames of videos; unreadable ones are skipped."""
    figures = []
    for p in predictions:
        if is_sample(p, source):
            with suppress(UnreadableError):
                pixels = source.read(p.sample, lambda count: [count // 2])
                caption = f"{p.name}: {p.label}, taken for {p.predicted} ({p.score:.0%})"
                figures.append(Figure(make_thumbnail(pixels), caption))
    return figures


def draw_examples(
    source: Source | None, predictions: Sequence[Prediction], checkpoint: Path
) -> tuple[list[Figure], Verdict | None]:
    """What the network attends to in some samples, and the verdict of ``cgnl diagnose`` if there is one.

    There are no images without samples, nor of a network that has neither blocks nor a second-order head.
    """
    trained = open_trained(checkpoint)
    verdict = read_verdict(checkpoint, trained.network)
    if source is None or not (find_blocks(trained.network) or second_order_pools(trained.network)):
        return [], verdict
    figures = []
    for title, p in choose_examples(predictions).items():
        if is_sample(p, source):
            with suppress(UnreadableError):
                drawn = draw_attention(trained, read_sample(trained, source, p.sample), p, verdict)
                figures.append(Figure(to_webp(drawn), f"{title}: {p.name} is {p.label}, {describe(p)}"))
    return figures, verdict


def is_sample(prediction: Prediction, source: Source) -> bool:
    """Whether the source still has the sample of a prediction: files may have come and gone."""
    return prediction.sample < len(source) and source.name(prediction.sample) == prediction.name


def choose_examples(predictions: Sequence[Prediction]) -> dict[str, Prediction]:
    """Samples worth looking at, by what makes them so."""
    right, wrong = ([p for p in predictions if p.right is is_right] for is_right in (True, False))
    chosen = {}
    if right:
        chosen["The most confident right prediction"] = max(right, key=lambda p: p.score)
    if wrong:
        chosen["The most confident wrong prediction"] = max(wrong, key=lambda p: p.score)
    if len(right) > 1:
        chosen["The least confident right prediction"] = min(right, key=lambda p: p.score)
    return chosen


def describe(prediction: Prediction) -> str:
    """Say whether a prediction was right."""
    what = "classified correctly" if prediction.right else f"taken for {prediction.predicted}"
    return f"{what} ({prediction.score:.1%})"


def draw_attention(trained: Trained, seen: FileInput, prediction: Prediction, verdict: Verdict | None) -> Any:
    """Draw the attention of the strongest position or, without blocks, what a second-order head sees."""
    columns = max(1, min(COLUMNS, int(WIDTH / panel_size(seen)[1]) - 1))
    at = None if shows_head(trained.network) else find_strongest(trained.network, seen)
    row = explain_input(trained, seen, str(prediction.label), at=at, columns=columns, verdict=verdict)
    return draw([replace(row, prediction=f"{describe(prediction)}. ")])


def find_strongest(network: nn.Module, seen: FileInput) -> tuple[float, ...]:
    """The position (x, y[, frame]) of the file where |theta| is largest, and so the maps."""
    found = attention(network, seen.network_input, seen.place(None))
    size = found.theta.abs().amax(0)  # [*P]
    index = torch.unravel_index(size.argmax(), size.shape)
    each = zip(index, size.shape, found.input_size, strict=True)
    x, y, *t = [(int(i) + 0.5) * pixels / n for i, n, pixels in each][::-1]
    return (*seen.in_file(x, y), *(seen.frames[int(i)] for i in t))


def make_thumbnail(pixels: Tensor) -> bytes:
    """Shrink uint8 [3, H, W], or one frame [1, 3, H, W], into a WebP file."""
    image, file = to_image(pixels.reshape(3, *pixels.shape[-2:])), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(file, "webp", quality=75)
    return file.getvalue()


def to_webp(figure: Any) -> bytes:
    """Save a matplotlib figure as a WebP file."""
    file = io.BytesIO()
    figure.savefig(file, format="webp", dpi=150, facecolor="white", pil_kwargs={"quality": 75})
    return file.getvalue()
