"""Draw maps: the paper's figure, a strip of frames, and a video."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.transforms import network_input
from ..engine.inputs import FileInput
from ..engine.predictions import ranked
from ..extras import need
from .maps import COLUMNS, THRESHOLD, Attention, Map, attention, grad_cam
from .second_order import Pairs, pairs

GREEN, COLOURS = "#00e000", "inferno"
DIMMED = 0.4  # brightness of unrelated patches
FRAMES = 8  # in a strip
MARGIN = 0.08  # inches above a figure
PANEL, RATE = 192, 8  # least height of a video panel in pixels, frames per second


@dataclass(frozen=True, eq=False)
class Row:
    """What is drawn for one network."""

    title: str
    attention: Attention | Pairs
    pixels: Tensor  # the network's input, uint8 [3, H, W] or [T, 3, H, W]
    maps: Sequence[Map]  # one column each
    words: str = ""  # prefix of the caption, such as the predicted class
    grad_cam: Tensor | None = None  # [*positions]
    frames: Sequence[int] = ()  # frame numbers of a clip in its video; counted from 0 if not given

    @property
    def frame(self) -> int:
        """Frame of the reference position; for pairs of channels, where the first pair's map is largest."""
        if isinstance(self.attention, Attention):
            return int(self.attention.at[-1])
        each = self.attention.maps[0].flatten(1).amax(1)  # [t]
        return int((int(each.argmax()) + 0.5) * self.pixels.shape[0] / len(each))

    @property
    def panels(self) -> list[tuple[Map, bool]]:
        """Each map, and whether its related patches are outlined: not for Grad-CAM, which relates nothing."""
        extra = [] if self.grad_cam is None else [(Map("Grad-CAM", self.grad_cam), False)]
        return [(m, True) for m in self.maps] + extra

    @property
    def reference(self) -> tuple[float, float, float, float] | None:
        """Left, top, width and height of the reference patch in pixels; None for pairs of channels."""
        if isinstance(self.attention, Pairs):
            return None
        rows, columns = self.attention.theta.shape[-2:]
        height, width = self.pixels.shape[-2] / rows, self.pixels.shape[-1] / columns
        return self.attention.position[-1] * width, self.attention.position[-2] * height, width, height


def explain_input(
    network: nn.Module,
    classes: Sequence[str],
    seen: FileInput,
    title: str = "",
    *,
    head: bool = False,
    at: Sequence[float] | None = None,
    block: str | None = None,
    group: int | None = None,
    by_group: bool = False,
    columns: int = COLUMNS,
    with_grad_cam: bool = False,
) -> Row:
    """Compute the maps of a block, or of the second-order head; ``at`` is in pixels of the file."""
    x = network_input(seen.pixels[None]).to(next(network.parameters()).device)
    if head:
        result, layer = pairs(network, x, count=columns), None
        maps, label = result.named, result.target
    else:
        result = attention(network, x, seen.place(at), block)
        maps, layer = result.by_group() if by_group else result.strongest(columns, group), result.block
        label = int(ranked(result.output.float().softmax(1)[0], 1)[1])
    probability = float(result.output.float().softmax(1)[0, label])
    heat = grad_cam(network, x, label, layer) if with_grad_cam else None
    return Row(title, result, seen.pixels, maps, f"{classes[label]} ({probability:.1%}). ", heat, seen.frames)


def name_run(checkpoint: str, others: Sequence[str]) -> str:
    """Name a checkpoint by its run, and by its file too if that is not enough to tell it from the others."""
    path, *rest = (Path(p, "last.ckpt") if Path(p).is_dir() else Path(p) for p in (checkpoint, *others))
    name = path.resolve().parent.name
    same = [other for other in rest if other.resolve().parent.name == name]
    return name if len(same) == 1 and path.name in ("best.ckpt", "last.ckpt") else f"{name}/{path.name}"


def draw(
    rows: Sequence[Row],
    threshold: float = THRESHOLD,
    heat: bool = False,
    parts: Mapping[str, tuple[float, float]] | None = None,
) -> Any:
    """Draw a matplotlib figure: for pictures one row per network, for clips one row per map and one column per frame.

    With ``heat``, maps are drawn as colours over pictures; over frames they always are. The last column of pictures
    shows the true positions (x, y) of ``parts``.
    """
    if rows[0].pixels.ndim == 4:
        return _strip(rows, threshold)
    width = 1 + max(len(row.panels) for row in rows) + bool(parts)
    figure, axes = _grid(len(rows), width, rows[0].pixels)
    for row, line in zip(rows, axes, strict=True):
        _show(line[0], row.pixels)
        _mark_reference(line[0], row)
        line[0].set_title("reference" if row.reference else "seen", fontsize=8)
        line[0].set_ylabel(row.title, fontsize=9)
        for axis, (shown, outlined) in zip(line[1:], row.panels, strict=False):
            _panel(axis, row, shown, row.pixels, None, threshold if outlined else None, heat or not outlined)
            axis.set_title(_label(shown), fontsize=8)
        if parts:
            height, width = row.pixels.shape[-2:]
            places = [(x, y) for x, y in parts.values() if 0 <= x < width and 0 <= y < height]
            _show(line[-1], row.pixels)
            for x, y in places:
                line[-1].scatter(x, y, s=22, c="#ffd400", edgecolors="black", linewidths=0.8, zorder=5)
            line[-1].set_title("true parts", fontsize=8)
    _caption(figure, rows, threshold)
    return figure


def _strip(rows: Sequence[Row], threshold: float) -> Any:
    """Up to eight frames, spread evenly over the clip, one of which is the reference's."""
    count, must = rows[0].pixels.shape[0], rows[0].frame
    wanted = min(FRAMES, count)
    chosen = [round(i * (count - 1) / max(wanted - 1, 1)) for i in range(wanted)]
    chosen[chosen.index(_nearest(chosen, must))] = must
    lines = [(row, panel) for row in rows for panel in [None, *row.panels]]
    figure, axes = _grid(len(lines), len(chosen), rows[0].pixels)
    for line, (row, panel) in zip(axes, lines, strict=True):
        for axis, t in zip(line, chosen, strict=True):
            if panel is None:
                _show(axis, row.pixels[t])
                axis.set_title(f"frame {row.frames[t] if row.frames else t}", fontsize=8)
                if t == _nearest(chosen, row.frame):
                    _mark_reference(axis, row)
            else:
                _panel(axis, row, panel[0], row.pixels[t], t, threshold if panel[1] else None, True)
        line[0].set_ylabel(row.title if panel is None else _label(panel[0]), fontsize=8)
    _caption(figure, rows, threshold)
    return figure


def _nearest(numbers: Sequence[int], wanted: int) -> int:
    return min(numbers, key=lambda number: abs(number - wanted))


def _grid(lines: int, columns: int, pixels: Tensor) -> tuple[Any, Any]:
    """A figure and its axes [lines][columns], without ticks."""
    height, width = pixels.shape[-2:]
    side = 1.55
    across = max(0.5 + side * columns * max(1.0, width / height), 5)
    down = 0.9 + lines * (side * max(1.0, height / width) + 0.3)
    figure = need("matplotlib.figure", "explain").Figure(figsize=(across, down), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - MARGIN / down))
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
    """One map over one picture: related patches outlined, and the rest dimmed or the map as colours."""
    height, width = pixels.shape[-2:]
    scaled = shown.scaled if frame is None else at_frame(shown, frame, row.pixels.shape[0])  # [h, w]
    related = None if threshold is None else scaled >= threshold
    if heat:
        _show(axis, heated(pixels, scaled))
    elif related is not None:
        _show(axis, dimmed(pixels, related))
    if related is not None:
        lines = need("matplotlib.collections", "explain").LineCollection
        edges = outline(related, height, width).numpy()
        axis.add_collection(lines(edges, colors="black", linewidths=2.6, capstyle="round"))
        axis.add_collection(lines(edges, colors="white", linewidths=1.3, capstyle="round"))
    if frame is None or frame == row.frame:
        _mark_reference(axis, row)


def _mark_reference(axis: Any, row: Row) -> None:
    if row.reference:
        left, top, *size = row.reference
        patch = need("matplotlib.patches", "explain").Rectangle
        axis.add_patch(patch((left, top), *size, fill=False, edgecolor=GREEN, linewidth=2, zorder=5))


def _caption(figure: Any, rows: Sequence[Row], threshold: float) -> None:
    sentences = [f"{row.title}: {row.words}{row.attention.caption}" for row in rows]
    green = "Green: reference position. " if any(row.reference for row in rows) else ""
    sentences.append(f"{green}White: positions at {threshold:g} or above, each map scaled to [0, 1] by its own range.")
    width = int(figure.get_figwidth() * 15.5)
    text = "\n".join(line for sentence in sentences for line in textwrap.wrap(sentence, width))
    figure.supxlabel(text, fontsize=8, x=0.01, ha="left")


def _label(shown: Map) -> str:
    constant = bool(shown.values.amin() == shown.values.amax())
    return shown.name.replace(", ", "\n") + (" (constant)" if constant else "")


def outline(mask: Tensor, height: float, width: float) -> Tensor:
    """The edges of a mask [h, w] that covers a picture, as pairs of points (x, y): [K, 2, 2]."""
    rows, columns = mask.shape
    inside = F.pad(mask.to(torch.int8), (1, 1, 1, 1))
    across = (inside[1:, 1:-1] != inside[:-1, 1:-1]).nonzero()  # edge above row r, at column c
    down = (inside[1:-1, 1:] != inside[1:-1, :-1]).nonzero()  # edge left of column c, in row r
    level = torch.stack([across.flip(1), across.flip(1) + torch.tensor([1, 0])], 1)
    upright = torch.stack([down.flip(1), down.flip(1) + torch.tensor([0, 1])], 1)
    return torch.cat([level, upright]) * torch.tensor([width / columns, height / rows])


def at_frame(shown: Map, frame: int, count: int) -> Tensor:
    """The part of a clip's scaled map that belongs to one of its ``count`` frames, [h, w]."""
    return shown.scaled[frame * shown.values.shape[0] // count]


def dimmed(pixels: Tensor, related: Tensor) -> Tensor:
    """Darken pixels [3, H, W] outside a mask [h, w]."""
    inside = F.interpolate(related.float()[None, None], pixels.shape[-2:])[0]  # [1, H, W]
    return (pixels * (DIMMED + (1 - DIMMED) * inside)).byte()


def heated(pixels: Tensor, scaled: Tensor) -> Tensor:
    """Blend a scaled map [h, w], as colours, with grey pixels [3, H, W]."""
    values = F.interpolate(scaled.float()[None, None], pixels.shape[-2:], mode="bilinear")[0, 0]  # [H, W]
    colours = need("matplotlib", "explain").colormaps[COLOURS](values.clamp(0, 1).numpy())[..., :3]
    grey = pixels.float().mean(0, keepdim=True)
    return (0.4 * grey + 0.6 * 255 * torch.from_numpy(colours).permute(2, 0, 1)).byte()


def with_reference(pixels: Tensor, row: Row, frame: int) -> Tensor:
    """Mark the reference patch in green, in its own frame only."""
    if row.reference is None or frame != row.frame:
        return pixels
    times = pixels.shape[-2] / row.pixels.shape[-2]
    left, top, width, height = (round(side * times) for side in row.reference)
    inside = torch.zeros(pixels.shape[-2:], dtype=torch.bool)
    inside[top : top + height, left : left + width] = True
    inside[top + 3 : top + height - 3, left + 3 : left + width - 3] = False
    return torch.where(inside, torch.tensor([0, 224, 0], dtype=torch.uint8)[:, None, None], pixels)


def enlarge(pixels: Tensor, times: int) -> Tensor:
    """Repeat each pixel of [.., H, W] in both directions."""
    return pixels.repeat_interleave(times, -2).repeat_interleave(times, -1)


def frames(rows: Sequence[Row]) -> Tensor:
    """Draw heat maps over every frame, the networks below each other: uint8 [T, 3, H, W]."""
    count, height = rows[0].pixels.shape[0], rows[0].pixels.shape[-2]
    panels = 1 + max(len(row.panels) for row in rows)
    pictures = []
    for t in range(count):
        lines = []
        for row in rows:
            frame = enlarge(row.pixels[t], -(-PANEL // height))
            line = [_titled(with_reference(frame, row, t), row.title)]
            line += [_titled(heated(frame, at_frame(m, t, count)), _label(m)) for m, _ in row.panels]
            line += [torch.zeros_like(line[0])] * (panels - len(line))
            lines.append(torch.cat(line, 2))
        pictures.append(torch.cat(lines, 1))
    return torch.stack(pictures)


def _titled(pixels: Tensor, title: str) -> Tensor:
    """Put a line of text above pixels."""
    image = need("PIL.Image", "data").new("RGB", (pixels.shape[-1], 18))
    need("PIL.ImageDraw", "data").Draw(image).text((4, 3), title.replace("\n", ", "), fill="white")
    text = torch.from_numpy(need("numpy", "data").array(image))
    return torch.cat([text.permute(2, 0, 1), pixels], 1)


def write_video(pictures: Tensor, path: Path) -> None:
    """Write uint8 [T, 3, H, W] to an MP4 file."""
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
