"""Maps as pictures: the paper's figure, a strip of frames, and a video."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..extras import need
from .maps import THRESHOLD, Attention, Map
from .pairs import Pairs

GREEN, COLOURS = "#00e000", "inferno"
DIMMED = 0.4
"""Brightness of what is not related."""
FRAMES = 8
"""Of a strip."""
MARGIN = 0.08
"""Inches above everything."""
PANEL, RATE = 192, 8
"""Least height in pixels of a panel of a video, and frames in a second."""


@dataclass(frozen=True, eq=False)
class Row:
    """What is drawn of one network."""

    title: str
    attention: Attention | Pairs
    pixels: Tensor
    """What the network saw, uint8 [3, H, W] or [T, 3, H, W]."""
    maps: Sequence[Map]
    """The columns: ``attention.strongest()``, ``attention.by_group()``, or of pairs of channels ``named``."""
    words: str = ""
    """For the caption, such as the predicted class."""
    grad_cam: Tensor | None = None
    """[*positions]."""
    frames: Sequence[int] = ()
    """What the frames of a clip are called, such as their numbers in the video; counted from 0 unless given."""

    @property
    def frame(self) -> int:
        """The frame of the reference position or, of pairs of channels, where the first one speaks most."""
        if isinstance(self.attention, Attention):
            return int(self.attention.at[-1])
        each = self.attention.maps[0].flatten(1).amax(1)  # [t]
        return int((int(each.argmax()) + 0.5) * self.pixels.shape[0] / len(each))

    @property
    def panels(self) -> list[tuple[Map, bool]]:
        """Maps, and whether their related patches are shown: those of Grad-CAM, which relates nothing, are not."""
        extra = [] if self.grad_cam is None else [(Map("Grad-CAM", self.grad_cam), False)]
        return [(m, True) for m in self.maps] + extra


def draw(
    rows: Sequence[Row],
    threshold: float = THRESHOLD,
    heat: bool = False,
    parts: Mapping[str, tuple[float, float]] | None = None,
) -> Any:
    """The matplotlib figure: of pictures, one row a network, and of clips, one row a map and one column a frame.

    Args:
        rows: the networks, which see the same sample.
        threshold: related patches reach it in maps that are scaled to [0, 1].
        heat: lay the scaled maps over pictures, too. Over frames they always are.
        parts: true places (x, y) in pixels of the picture, for the last column.
    """
    if rows[0].pixels.ndim == 4:
        return _strip(rows, threshold)
    width = 1 + max(len(row.panels) for row in rows) + bool(parts)
    figure, axes = _grid(len(rows), width, rows[0].pixels)
    for row, line in zip(rows, axes, strict=True):
        _show(line[0], row.pixels)
        _mark_reference(line[0], row)
        line[0].set_title("reference" if isinstance(row.attention, Attention) else "seen", fontsize=8)
        line[0].set_ylabel(row.title, fontsize=9)
        for axis, (shown, outlined) in zip(line[1:], row.panels, strict=False):
            _panel(axis, row, shown, row.pixels, None, threshold if outlined else None, heat or not outlined)
            axis.set_title(_label(shown), fontsize=8)
        if parts:
            _show(line[-1], row.pixels)
            _mark_parts(line[-1], parts, row.pixels)
            line[-1].set_title("true parts", fontsize=8)
    _caption(figure, rows, threshold)
    return figure


def frames(rows: Sequence[Row]) -> Tensor:
    """A video of heat maps over every frame, the networks below each other: uint8 [T, 3, H, W]."""
    count = rows[0].pixels.shape[0]
    panels = 1 + max(len(row.panels) for row in rows)
    pictures = []
    for t in range(count):
        lines = []
        for row in rows:
            frame = _enlarged(row.pixels[t])
            line = [_titled(with_reference(frame, row, t), row.title)]
            line += [_titled(heated(frame, at_frame(m, t, count)), _label(m)) for m, _ in row.panels]
            line += [torch.zeros_like(line[0])] * (panels - len(line))
            lines.append(torch.cat(line, 2))
        pictures.append(torch.cat(lines, 1))
    return torch.stack(pictures)


def write_video(pictures: Tensor, path: Path) -> None:
    """uint8 [T, 3, H, W] as an MP4 file."""
    av = need("av", "data")
    pictures = F.pad(pictures, (0, pictures.shape[-1] % 2, 0, pictures.shape[-2] % 2))  # the codec needs even sizes
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.height, stream.width, stream.pix_fmt = *pictures.shape[-2:], "yuv420p"
        stream.bit_rate = 4_000_000
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(picture.permute(1, 2, 0).contiguous().numpy(), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def outline(mask: Tensor, height: float, width: float) -> Tensor:
    """The edges [K, 2, 2], as pairs of (x, y), between what is in a mask [h, w] and what is not."""
    rows, columns = mask.shape
    inside = F.pad(mask.to(torch.int8), (1, 1, 1, 1))
    across = (inside[1:, 1:-1] != inside[:-1, 1:-1]).nonzero()  # edge above row r, at column c
    down = (inside[1:-1, 1:] != inside[1:-1, :-1]).nonzero()  # edge left of column c, in row r
    level = torch.stack([across.flip(1), across.flip(1) + torch.tensor([1, 0])], 1)
    upright = torch.stack([down.flip(1), down.flip(1) + torch.tensor([0, 1])], 1)
    return torch.cat([level, upright]) * torch.tensor([width / columns, height / rows])


def _strip(rows: Sequence[Row], threshold: float) -> Any:
    count = rows[0].pixels.shape[0]
    chosen = _spread(count, FRAMES, rows[0].frame)
    lines = [(row, panel) for row in rows for panel in [None, *row.panels]]
    figure, axes = _grid(len(lines), len(chosen), rows[0].pixels)
    for line, (row, panel) in zip(axes, lines, strict=True):
        for axis, t in zip(line, chosen, strict=True):
            if panel is None:
                _show(axis, row.pixels[t])
                axis.set_title(f"frame {row.frames[t] if row.frames else t}", fontsize=8)
                if t == chosen[_nearest(chosen, row.frame)]:
                    _mark_reference(axis, row)
            else:
                _panel(axis, row, panel[0], row.pixels[t], t, threshold if panel[1] else None, True)
        label = row.title if panel is None else _label(panel[0])
        line[0].set_ylabel(label, fontsize=8)
    _caption(figure, rows, threshold)
    return figure


def _spread(count: int, wanted: int, must: int) -> list[int]:
    """Frame numbers spread evenly over a clip, the one nearest to ``must`` replaced by it."""
    wanted = min(wanted, count)
    numbers = [round(i * (count - 1) / max(wanted - 1, 1)) for i in range(wanted)]
    numbers[_nearest(numbers, must)] = must
    return numbers


def _nearest(numbers: Sequence[int], wanted: float) -> int:
    return min(range(len(numbers)), key=lambda i: abs(numbers[i] - int(wanted)))


def _grid(lines: int, columns: int, pixels: Tensor) -> tuple[Any, Any]:
    """A figure and its axes [lines][columns], without ticks."""
    matplotlib = need("matplotlib.figure", "explain")
    height, width = pixels.shape[-2:]
    side = 1.55
    figure = matplotlib.Figure(
        figsize=(
            max(0.5 + side * columns * max(1.0, width / height), 5),
            0.9 + lines * (side * max(1.0, height / width) + 0.3),
        ),
        layout="constrained",
    )
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - MARGIN / figure.get_figheight()))
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_box_aspect(height / width)
    return figure, axes


def _show(axis: Any, pixels: Tensor) -> None:
    height, width = pixels.shape[-2:]
    axis.imshow(pixels.permute(1, 2, 0).numpy(), extent=(0, width, height, 0), interpolation="nearest")


def _panel(
    axis: Any, row: Row, shown: Map, pixels: Tensor, frame: int | None, threshold: float | None, heat: bool
) -> None:
    """One map over one picture: related patches outlined and the rest dimmed, or the map as a heat."""
    height, width = pixels.shape[-2:]
    scaled = shown.scaled if frame is None else at_frame(shown, frame, row.pixels.shape[0])  # [h, w]
    related = None if threshold is None else scaled >= threshold
    if heat:
        _show(axis, heated(pixels, scaled))
    elif related is not None:
        inside = F.interpolate(related.float()[None, None], (height, width))[0, 0]  # [H, W]
        _show(axis, (pixels * (DIMMED + (1 - DIMMED) * inside)).byte())
    if related is not None:
        lines = need("matplotlib.collections", "explain").LineCollection
        edges = outline(related, height, width).numpy()
        axis.add_collection(lines(edges, colors="black", linewidths=2.6, capstyle="round"))
        axis.add_collection(lines(edges, colors="white", linewidths=1.3, capstyle="round"))
    if frame is None or frame == row.frame:
        _mark_reference(axis, row)


def _reference_box(row: Row) -> tuple[float, float, float, float] | None:
    """Left, top, width and height of the reference patch, in pixels; pairs of channels have none."""
    if isinstance(row.attention, Pairs):
        return None
    rows, columns = row.attention.theta.shape[-2:]
    height, width = row.pixels.shape[-2] / rows, row.pixels.shape[-1] / columns
    return row.attention.position[-1] * width, row.attention.position[-2] * height, width, height


def _mark_reference(axis: Any, row: Row) -> None:
    if (box := _reference_box(row)) is None:
        return
    left, top, width, height = box
    patch = need("matplotlib.patches", "explain").Rectangle
    axis.add_patch(patch((left, top), width, height, fill=False, edgecolor=GREEN, linewidth=2, zorder=5))


def _mark_parts(axis: Any, parts: Mapping[str, tuple[float, float]], pixels: Tensor) -> None:
    height, width = pixels.shape[-2:]
    places = [(x, y) for x, y in parts.values() if 0 <= x < width and 0 <= y < height]
    if places:
        x, y = zip(*places, strict=True)
        axis.scatter(x, y, s=22, c="#ffd400", edgecolors="black", linewidths=0.8, zorder=5)


def _caption(figure: Any, rows: Sequence[Row], threshold: float) -> None:
    said = [f"{row.title}: {row.words}{row.attention.caption}" for row in rows]
    scale = "each map scaled to [0, 1] by its own range"
    green = "Green: reference position. " if any(isinstance(row.attention, Attention) for row in rows) else ""
    said.append(f"{green}White: positions at {threshold:g} or above, {scale}.")
    width = int(figure.get_figwidth() * 15.5)
    text = "\n".join(line for sentence in said for line in textwrap.wrap(sentence, width))
    figure.supxlabel(text, fontsize=8, x=0.01, ha="left")


def _label(shown: Map) -> str:
    constant = bool(shown.values.amin() == shown.values.amax())
    return shown.name.replace(", ", "\n") + (" (constant)" if constant else "")


def at_frame(shown: Map, frame: int, count: int) -> Tensor:
    """What a scaled map of a clip says about one of its frames, [h, w]."""
    return shown.scaled[frame * shown.values.shape[0] // count]


def heated(pixels: Tensor, scaled: Tensor) -> Tensor:
    """A scaled map [h, w] as colours over grey pixels [3, H, W]."""
    values = F.interpolate(scaled.float()[None, None], pixels.shape[-2:], mode="bilinear")[0, 0]  # [H, W]
    colours = need("matplotlib", "explain").colormaps[COLOURS](values.clamp(0, 1).numpy())[..., :3]
    grey = pixels.float().mean(0, keepdim=True)
    return (0.4 * grey + 0.6 * 255 * torch.from_numpy(colours).permute(2, 0, 1)).byte()


def _enlarged(pixels: Tensor) -> Tensor:
    times = -(-PANEL // pixels.shape[-2])
    return pixels.repeat_interleave(times, -2).repeat_interleave(times, -1)


def with_reference(pixels: Tensor, row: Row, frame: int) -> Tensor:
    """The frame with the reference patch in green, in its own frame alone."""
    box = _reference_box(row)
    if box is None or frame != row.frame:
        return pixels
    times = pixels.shape[-2] / row.pixels.shape[-2]
    left, top, width, height = (round(side * times) for side in box)
    inside = torch.zeros(pixels.shape[-2:], dtype=torch.bool)
    inside[top : top + height, left : left + width] = True
    inside[top + 3 : top + height - 3, left + 3 : left + width - 3] = False
    return torch.where(inside, torch.tensor([0, 224, 0], dtype=torch.uint8)[:, None, None], pixels)


def _titled(pixels: Tensor, title: str) -> Tensor:
    """Pixels below a line of text."""
    numpy = need("numpy", "data")
    image = need("PIL.Image", "data").new("RGB", (pixels.shape[-1], 18))
    need("PIL.ImageDraw", "data").Draw(image).text((4, 3), title.replace("\n", ", "), fill="white")
    return torch.cat([torch.from_numpy(numpy.array(image)).permute(2, 0, 1), pixels], 1)
