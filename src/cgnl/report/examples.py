"""Pictures in a report: thumbnails of samples, and what the network attends to in some of them."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..data.images import to_image
from ..data.index import UnreadableError
from ..data.loading import EvalSet
from ..data.sources import Source
from ..data.transforms import network_input, resize
from ..engine.checkpoint import open_trained
from ..engine.config import Config
from ..engine.datasets import open_dataset, view_in_test
from ..engine.predictions import Prediction
from ..explain import attention, blocks_of, figure, pairs
from ..explain.maps import Attention
from ..heads import second_order_pools
from .html import Markup, join, picture, tag

SIDE = 112
"""The longer side of a thumbnail, in pixels."""


class Samples:
    """The test samples of a run, or why they cannot be shown."""

    def __init__(self, config: Config):
        self.config, self.problem = config, ""
        self.source: Source | None = None
        try:
            self.source = open_dataset(config.data).test
        except (ValueError, OSError) as error:
            self.problem = str(error)

    def has(self, prediction: Prediction) -> bool:
        """Whether it is still the sample that the prediction is about: files may have come and gone."""
        source = self.source
        return (
            source is not None and prediction.sample < len(source) and source.name(prediction.sample) == prediction.name
        )

    def thumbnails(self, predictions: Iterable[Prediction]) -> Markup | None:
        """Small pictures of samples; of a video its middle frame. Those that cannot be read are left out."""
        if self.source is None:
            return None
        pictures = []
        for prediction in filter(self.has, predictions):
            try:
                pixels = self.source.read(prediction.sample, lambda count: [count // 2])
            except UnreadableError:
                continue
            text = f"{prediction.name}: {prediction.label}, taken for {prediction.predicted} ({prediction.score:.0%})"
            pictures.append(picture(thumbnail(pixels), text))
        return tag("div", pictures, class_="thumbs") if pictures else None

    def attention(self, predictions: Mapping[str, Prediction], checkpoint: Path) -> Markup | None:
        """What the network attends to in some samples."""
        if self.source is None or not checkpoint.exists():
            return None
        trained = open_trained(checkpoint)
        if not blocks_of(trained.network) and not second_order_pools(trained.network):
            return None
        seen = EvalSet(self.source, view_in_test(trained.config.data, trained.kind, full=False))
        figures = []
        for why, prediction in predictions.items():
            pixels = seen[prediction.sample].pixels if self.has(prediction) else None  # [1, 3, H, W] or [1, T, 3, H, W]
            if pixels is not None:
                drawn = draw_attention(trained.network, pixels[0], prediction)
                words = f"{why}: {prediction.name} is {prediction.label}, {said(prediction)}"
                figures.append(tag("figure", picture(webp(drawn), words), tag("figcaption", words)))
        return join(figures) if figures else None


def chosen(predictions: Sequence[Prediction]) -> dict[str, Prediction]:
    """Samples that are worth a look, and why."""
    right, wrong = ([a for a in predictions if a.right is is_right] for is_right in (True, False))
    found = {}
    if right:
        found["The surest right prediction"] = max(right, key=lambda a: a.score)
    if wrong:
        found["The surest wrong prediction"] = max(wrong, key=lambda a: a.score)
    if len(right) > 1:
        found["The least sure right prediction"] = min(right, key=lambda a: a.score)
    return found


def said(prediction: Prediction) -> str:
    """What the network said of a sample."""
    return f"{'named correctly' if prediction.right else f'taken for {prediction.predicted}'} ({prediction.score:.1%})"


def draw_attention(network: nn.Module, pixels: Tensor, prediction: Prediction) -> Any:
    """The attention of the strongest position, or what a second-order head sees, as a figure."""
    x = network_input(pixels[None])
    if not blocks_of(network):
        seen = pairs(network, x)
        return figure.draw([figure.Row(str(prediction.label), seen, pixels, seen.named, f"{said(prediction)}. ")])
    middle = attention(network, x, tuple(size / 2 for size in reversed(x.shape[2:])))
    result = attention(network, x, strongest_place(middle))
    return figure.draw([figure.Row(str(prediction.label), result, pixels, result.strongest(), f"{said(prediction)}. ")])


def strongest_place(result: Attention) -> tuple[float, ...]:
    """(x, y[, t]) in the input where theta has its largest element: the position with the largest maps."""
    size = result.theta.abs().amax(0)  # [*P]
    where, index = [], int(size.argmax())
    for n in reversed(size.shape):
        index, place = divmod(index, n)
        where.append(place)
    pairs = zip(where, reversed(size.shape), reversed(result.input_size), strict=True)
    return tuple((place + 0.5) * pixels / n for place, n, pixels in pairs)


def thumbnail(pixels: Tensor) -> bytes:
    """uint8 [3, H, W] or one frame [1, 3, H, W] as a small WebP file."""
    pixels = pixels.flatten(0, -4)[0] if pixels.ndim == 4 else pixels
    height, width = pixels.shape[-2:]
    scale = min(1.0, SIDE / max(height, width))
    pixels = resize(pixels, max(1, round(scale * height)), max(1, round(scale * width)))
    file = io.BytesIO()
    to_image(pixels).save(file, "webp", quality=75)
    return file.getvalue()


def webp(drawn: Any) -> bytes:
    """A matplotlib figure as a WebP file."""
    file = io.BytesIO()
    drawn.savefig(file, format="webp", dpi=110, facecolor="white", pil_kwargs={"quality": 75})
    return file.getvalue()
