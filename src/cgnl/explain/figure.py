"""Draw maps on the file they are of: the paper's figure, a strip of frames, a video, and one panel for the web page."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..atomic_io import make_folder, save_figure, write_whole
from ..data.transforms import crop, resize
from ..data.video import write_video
from ..engine.checkpoint import Trained
from ..engine.predictions import ranked
from ..engine.tasks.detection import SURE, same_objects
from ..extras import need
from .inputs import DetectorInput, FileInput
from .maps import COLUMNS, THRESHOLD, Attention, Map, attention, grad_cam, shows_head
from .second_order import Pairs, pairs
from .verdict import Verdict, detect, quick_verdict

GREEN, RED, COLOURS = "#00e000", "#c0392b", "inferno"
DIMMED = 0.4  # brightness of unrelated patches
FADED = 0.35  # contrast of what the network does not see
SIDE, LONGEST = 1.55, 4.0  # inches of a panel's shorter side, and of its longer one at most
RESOLUTION = 110, 250  # least and most dots per inch
LARGEST = 1600  # larger images are drawn on a copy of so many pixels
FRAMES = 8  # in a strip
RATE = Fraction(8)  # frames per second of a video
NAMED = 5  # objects in a caption
MARGIN, LINE = 0.08, 0.14  # inches above a figure, and of a line of its caption
MOVED = " The view was moved to the reference position: a test sees the middle."


@dataclass(frozen=True, eq=False)
class Row:
    """What is drawn for one network."""

    title: str
    attention: Attention | Pairs
    seen: FileInput
    maps: Sequence[Map]  # one panel each
    prediction: str = ""  # the beginning of the caption
    grad_cam: Map | None = None
    verdict: Verdict | None = None  # whether the block is used

    @property
    def block(self) -> str | None:
        return self.attention.block if isinstance(self.attention, Attention) else None

    @property
    def frame(self) -> int:
        """Frame of the reference position; for pairs of channels, where the first pair's map is largest."""
        if isinstance(self.attention, Attention):
            return int(self.attention.at[-1])
        each = self.attention.maps[0].flatten(1).amax(1)  # [t]
        return int((int(each.argmax()) + 0.5) * len(self.seen.original) / len(each))

    @property
    def panels(self) -> list[Map | None]:
        """None, which stands for the file itself, and the maps."""
        return [None, *self.maps, *([self.grad_cam] if self.grad_cam else [])]

    @property
    def reference(self) -> tuple[float, float, float, float] | None:
        """Left, top, width and height of the reference patch in pixels of the file; None for pairs of channels."""
        if isinstance(self.attention, Pairs):
            return None
        box, (rows, columns) = self.seen.box, self.attention.theta.shape[-2:]
        height, width = box.height / rows, box.width / columns
        row, column = self.attention.position[-2:]
        return box.left + column * width, box.top + row * height, width, height

    @property
    def caption(self) -> str:
        """The prediction, whether the block is used, and what is shown."""
        verdict = f"{self.verdict.words(self.block)} " if self.verdict else ""
        return f"{self.prediction}{verdict}{self.attention.caption}{MOVED if self.seen.usual else ''}"

    def save(self, path: str | Path, threshold: float = THRESHOLD, heat: bool = False) -> None:
        """Draw the maps to an image or, for clips, to an .mp4."""
        write_figure([self], Path(path), threshold, heat)


def explain_input(
    trained: Trained,
    seen: FileInput,
    title: str = "",
    *,
    head: bool | None = None,
    at: Sequence[float] | None = None,
    block: str | None = None,
    group: int | None = None,
    by_group: bool = False,
    columns: int = COLUMNS,
    with_grad_cam: bool = False,
    verdict: Verdict | None = None,
) -> Row:
    """Compute the maps of a block, or of the second-order head if that is all there is.

    Args:
        trained, seen, title: the network, its input, and the name of its run.
        head: whether to explain the head; if there is no block, unless given.
        at: the reference position in pixels of the file; the middle unless given.
        block, group, by_group, columns: which maps.
        with_grad_cam: whether to compute Grad-CAM too.
        verdict: whether the blocks are used; found for this input unless given.
    """
    network, seen = trained.network, shrink(seen.containing(at))
    head = shows_head(network) if head is None else head
    x = seen.network_input.to(next(network.parameters()).device)
    if isinstance(seen, DetectorInput):
        if head or with_grad_cam:
            raise ValueError("a detector has no second-order head, and no one class for Grad-CAM")
        result = attention(network, x, seen.place(at), block, network.get_submodule("backbone"))
        find = partial(detect, ids=trained.ids)
        verdict = verdict or quick_verdict(network, [[seen.image]], find, same_objects)
        maps = result.choose(columns, group, by_group)
        return Row(title, result, seen, maps, name_objects(trained, seen.image), verdict=verdict)
    if head:
        result, verdict = pairs(network, x, count=columns), None
        maps = result.named
    else:
        result = attention(network, x, seen.place(at), block)
        verdict = verdict or quick_verdict(network, [x])
        maps = result.choose(columns, group, by_group)
    score, label = ranked(result.output.float().softmax(1)[0], 1)
    words = f"{trained.classes[int(label)]} ({float(score):.1%}). "
    row = Row(title, result, seen, maps, words, verdict=verdict)
    if not with_grad_cam:
        return row
    return replace(row, grad_cam=Map("Grad-CAM", grad_cam(network, x, int(label), row.block)))


@torch.no_grad()
def name_objects(trained: Trained, image: Tensor) -> str:
    """The surest objects that a detector finds, as the beginning of a caption."""
    names = dict(zip(trained.ids, trained.classes, strict=True))
    (found,) = detect(trained.network, [image], trained.ids)
    words = [f"{names[row['category_id']]} ({row['score']:.1%})" for row in found if row["score"] >= SURE]
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return f"{', '.join(words[:NAMED]) or 'Nothing found'}{more}. "


def shrink(seen: FileInput, most: int = LARGEST) -> FileInput:
    """Draw on a copy of a file whose longer side has so many pixels at most."""
    height, width = seen.original.shape[-2:]
    ratio = most / max(height, width)
    if ratio >= 1:
        return seen
    return replace(seen, original=resize(seen.original, max(1, round(height * ratio)), max(1, round(width * ratio))))


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
    """Draw a matplotlib figure: for images one row per network, for clips one row per map and one column per frame.

    With ``heat``, maps are drawn as colours over images; over frames they always are. The last column of images
    shows the true positions (x, y) of ``parts``.
    """
    with _plain_text():
        return _strip(rows, threshold) if rows[0].seen.frames else _columns(rows, threshold, heat, parts or {})[0]


def draw_frames(rows: Sequence[Row], threshold: float = THRESHOLD) -> Tensor:
    """Draw each frame of a clip with all maps, the networks below each other: uint8 [T, 3, H, W]."""
    images = []
    with _plain_text():
        figure, axes = _columns(rows, threshold, heat=True, frame=0)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # that of the first frame is kept
        for frame in range(len(rows[0].seen.original)):
            for row, line in zip(rows, axes, strict=True):
                for axis, shown in zip(line, row.panels, strict=False):
                    draw_panel(axis, row, shown, threshold, True, frame)
                line[0].set_title(f"frame {row.seen.frames[frame]}", fontsize=8)
            images.append(render(figure))
    height, width = images[0].shape[1:]
    return torch.stack(images)[:, :, : height // 2 * 2, : width // 2 * 2]  # videos have even sizes


def write_figure(
    rows: Sequence[Row],
    path: Path,
    threshold: float = THRESHOLD,
    heat: bool = False,
    parts: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Write what ``draw`` draws or, where the name ends in .mp4, every frame."""
    make_folder(path.parent)
    if path.suffix != ".mp4":
        save_figure(draw(rows, threshold, heat, parts), path)
    elif rows[0].seen.frames:
        write_whole(path, partial(write_video, draw_frames(rows, threshold), RATE))
    else:
        raise ValueError(f"{path} is a video, and the network was trained on images: give a .png")


def _plain_text() -> AbstractContextManager[Any]:
    return need("matplotlib", "explain").rc_context({"text.parse_math": False})  # names of classes may have dollars


def _columns(
    rows: Sequence[Row],
    threshold: float,
    heat: bool,
    parts: Mapping[str, tuple[float, float]] | None = None,
    frame: int | None = None,
) -> tuple[Any, Any]:
    """A figure with a line for each network, and its axes."""
    figure, axes = _grid(len(rows), max(len(row.panels) for row in rows) + bool(parts), rows[0].seen)
    for row, line in zip(rows, axes, strict=True):
        for axis, shown in zip(line, row.panels, strict=False):
            draw_panel(axis, row, shown, threshold, heat, frame)
            axis.set_title(_label(shown) if shown else "reference" if row.reference else "seen", fontsize=8)
        _name_row(line[0], row)
        if parts:
            _show(line[-1], row.seen.original, row.seen)
            inside = [(x, y) for x, y in parts.values() if 0 <= x < row.seen.width and 0 <= y < row.seen.height]
            for x, y in inside:
                line[-1].scatter(x, y, s=22, c="#ffd400", edgecolors="black", linewidths=0.8, zorder=5)
            line[-1].set_title("true parts", fontsize=8)
    _caption(figure, rows, threshold)
    return figure, axes


def _strip(rows: Sequence[Row], threshold: float) -> Any:
    """A line for each map, with up to eight frames: spread evenly, and that of the reference position among them."""
    seen, must = rows[0].seen, next((row.frame for row in rows if row.reference), rows[0].frame)
    count = min(FRAMES, len(seen.original))
    chosen = [round(i * (len(seen.original) - 1) / max(count - 1, 1)) for i in range(count)]
    chosen[min(range(count), key=lambda i: abs(chosen[i] - must))] = must
    lines = [(row, shown) for row in rows for shown in row.panels]
    figure, axes = _grid(len(lines), count, seen, gap=0.25)
    for (row, shown), line in zip(lines, axes, strict=True):
        for axis, frame in zip(line, chosen, strict=True):
            draw_panel(axis, row, shown, threshold, True, frame)
            if shown is None:
                axis.set_title(f"frame {row.seen.frames[frame]}", fontsize=8)
        if shown is None:
            _name_row(line[0], row)
        else:
            line[0].set_ylabel(_label(shown), fontsize=8)
    _caption(figure, rows, threshold)
    return figure


def panel_size(seen: FileInput) -> tuple[float, float]:
    """Height and width of a panel in inches."""
    inches = min(SIDE / min(seen.height, seen.width), LONGEST / max(seen.height, seen.width))  # of a pixel of the file
    return seen.height * inches, seen.width * inches


def _grid(lines: int, columns: int, seen: FileInput, gap: float = 0.5) -> tuple[Any, Any]:
    """A figure and its axes [lines][columns], without ticks, in which a panel has the file's resolution if it can."""
    height, width = panel_size(seen)
    across = max(0.5 + columns * width, 5)
    down = 0.3 + lines * (height + gap)
    dpi = min(max(seen.original.shape[-1] / width, RESOLUTION[0]), RESOLUTION[1])
    figure = need("matplotlib.figure", "explain").Figure(figsize=(across, down), dpi=dpi, layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - MARGIN / down), h_pad=0.08)
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_box_aspect(height / width)
    return figure, axes


def _show(axis: Any, image: Tensor, seen: FileInput) -> None:
    """Show an image in pixels of the file, and the border of what the network sees of it."""
    axis.imshow(image.permute(1, 2, 0).numpy(), extent=(0, seen.width, seen.height, 0), interpolation="antialiased")
    if not seen.whole:
        top, left, height, width = seen.box
        for colour, line in (("black", "-"), ("white", (0, (4, 4)))):
            _outline_box(axis, (left, top, width, height), colour, linewidth=0.7, linestyle=line, zorder=3)


def _outline_box(axis: Any, box: Sequence[float], colour: str, **style: Any) -> None:
    left, top, *size = box
    rectangle = need("matplotlib.patches", "explain").Rectangle
    axis.add_patch(rectangle((left, top), *size, fill=False, edgecolor=colour, **style))


def draw_panel(
    axis: Any,
    row: Row,
    shown: Map | None,
    threshold: float = THRESHOLD,
    heat: bool = False,
    frame: int | None = None,
) -> None:
    """Draw a map over the file, or over one of its frames, in place of what the axis has; None: the file alone.

    Related patches are outlined, and the rest is dimmed or the map is drawn as colours. Grad-CAM relates nothing.
    """
    for artist in (*axis.images, *axis.patches, *axis.collections):
        artist.remove()
    seen, image = row.seen, row.seen.original if frame is None else row.seen.original[frame]
    if shown is None:
        _show(axis, image, seen)
    else:
        scaled = shown.scaled if frame is None else shown.scaled[frame * len(shown.values) // len(seen.original)]
        related = scaled >= threshold  # [h, w]
        coloured = heat or shown is row.grad_cam
        _show(axis, paint(image, seen, lambda p: blend_heat(p, scaled) if coloured else darken(p, related)), seen)
        if shown is not row.grad_cam:
            lines = need("matplotlib.collections", "explain").LineCollection
            edges = (outline(related, seen.box.height, seen.box.width) + torch.tensor(seen.box[1::-1])).numpy()
            axis.add_collection(lines(edges, colors="black", linewidths=2.6, capstyle="round"))
            axis.add_collection(lines(edges, colors="white", linewidths=1.3, capstyle="round"))
    if row.reference and frame in (None, row.frame):
        _outline_box(axis, row.reference, GREEN, linewidth=2, zorder=5)


def draw_alone(
    row: Row, shown: Map | None, threshold: float, heat: bool, frame: int | None, height: int, width: int
) -> Tensor:
    """Draw a panel without anything around it: uint8 [3, height, width]."""
    dpi = 128  # a power of two, so that inches are exact
    figure = need("matplotlib.figure", "explain").Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    draw_panel(axis, row, shown, threshold, heat, frame)
    axis.set(xlim=(0, row.seen.width), ylim=(row.seen.height, 0), aspect="auto")
    return render(figure)


def render(figure: Any) -> Tensor:
    """The pixels of a matplotlib figure, uint8 [3, H, W]."""
    canvas = need("matplotlib.backends.backend_agg", "explain").FigureCanvasAgg(figure)
    canvas.draw()
    return torch.from_numpy(need("numpy", "explain").array(canvas.buffer_rgba())[..., :3]).permute(2, 0, 1)


def _name_row(axis: Any, row: Row) -> None:
    """Name the network at the left of its first panel, and say below if its block is not used."""
    axis.set_ylabel(row.title, fontsize=9)
    if row.verdict and row.verdict.unused(row.block):
        here = " here" if row.verdict.samples == 1 else ""
        axis.set_xlabel(f"this block is not used{here}", color=RED, fontsize=8, labelpad=2)


def _caption(figure: Any, rows: Sequence[Row], threshold: float) -> None:
    sentences = [f"{row.title}: {row.caption}" for row in rows]
    green = "Green: reference position. " if any(row.reference for row in rows) else ""
    dashed = " Dashed: what the network sees." if not all(row.seen.whole for row in rows) else ""
    white = f"White: positions at {threshold:g} or above, each map scaled to [0, 1] by its own range."
    sentences.append(f"{green}{white}{dashed}")
    width = int(figure.get_figwidth() * 15.5)
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, width)]
    figure.set_figheight(figure.get_figheight() + LINE * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=8, x=0.01, ha="left")


def _label(shown: Map) -> str:
    constant = bool(shown.values.amin() == shown.values.amax())
    return shown.name.replace(", ", "\n") + (" (constant)" if constant else "")


def outline(mask: Tensor, height: float, width: float) -> Tensor:
    """The edges of a mask [h, w] that covers an image, as pairs of points (x, y): [K, 2, 2]."""
    rows, columns = mask.shape
    inside = F.pad(mask.to(torch.int8), (1, 1, 1, 1))
    across = (inside[1:, 1:-1] != inside[:-1, 1:-1]).nonzero()  # edge above row r, at column c
    down = (inside[1:-1, 1:] != inside[1:-1, :-1]).nonzero()  # edge left of column c, in row r
    level = torch.stack([across.flip(1), across.flip(1) + torch.tensor([1, 0])], 1)
    upright = torch.stack([down.flip(1), down.flip(1) + torch.tensor([0, 1])], 1)
    return torch.cat([level, upright]) * torch.tensor([width / columns, height / rows])


def paint(image: Tensor, seen: FileInput, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change the part of an image [3, H, W] of a file that the network sees, and fade the rest."""
    box = seen.box_in(*image.shape[-2:])
    result = (255 - FADED * (255 - image.float())).byte()
    crop(result, box)[:] = change(crop(image, box))
    return result


def darken(pixels: Tensor, related: Tensor) -> Tensor:
    """Darken pixels [3, H, W] outside a mask [h, w]."""
    inside = F.interpolate(related.float()[None, None], pixels.shape[-2:])[0]  # [1, H, W]
    return (pixels * (DIMMED + (1 - DIMMED) * inside)).byte()


def blend_heat(pixels: Tensor, scaled: Tensor) -> Tensor:
    """Blend a scaled map [h, w], as colours, with grey pixels [3, H, W]."""
    values = F.interpolate(scaled.float()[None, None], pixels.shape[-2:], mode="bilinear")[0, 0]  # [H, W]
    colours = need("matplotlib", "explain").colormaps[COLOURS](values.clamp(0, 1).numpy())[..., :3]
    grey = pixels.float().mean(0, keepdim=True)
    return (0.4 * grey + 0.6 * 255 * torch.from_numpy(colours).permute(2, 0, 1)).byte()
