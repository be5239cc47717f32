"""Draw maps on the file they are of: the paper's figure, a strip of frames, and a video."""

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..atomic_io import make_folder, whole_file
from ..data.transforms import Box, crop, resize
from ..data.video import write_video
from ..engine.checkpoint import Trained
from ..engine.predictions import ranked
from ..engine.tasks.detection import SURE, coco_results, same_objects
from ..explain.inputs import DetectorInput, FileInput
from ..extras import need
from .maps import COLUMNS, THRESHOLD, Attention, Map, attention, grad_cam
from .second_order import Pairs, pairs
from .verdict import Verdict, quick_verdict

GREEN, RED, COLOURS = "#00e000", "#c0392b", "inferno"
DIMMED = 0.4  # brightness of unrelated patches
FADED = 0.35  # contrast of what the network does not see
SIDE, LONGEST = 1.55, 4.0  # inches of a panel's shorter side, and of its longer one at most
RESOLUTION = 110, 250  # least and most dots per inch
LARGEST = 1600  # larger images are drawn on a copy of so many pixels
FRAMES = 8  # in a strip
NAMED = 5  # objects in a caption
MARGIN, LINE = 0.08, 0.14  # inches above a figure, and of a line of its caption
PANEL, RATE = (192, 384), Fraction(8)  # least and most height of a video panel in pixels, frames per second


@dataclass(frozen=True, eq=False)
class Row:
    """What is drawn for one network."""

    title: str
    attention: Attention | Pairs
    seen: FileInput
    maps: Sequence[Map]  # one column each
    words: str = ""  # prefix of the caption, such as the predicted class
    grad_cam: Tensor | None = None  # [*positions]
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
    def panels(self) -> list[tuple[Map, bool]]:
        """Each map, and whether its related patches are outlined: not for Grad-CAM, which relates nothing."""
        extra = [] if self.grad_cam is None else [(Map("Grad-CAM", self.grad_cam), False)]
        return [(m, True) for m in self.maps] + extra

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
    def unused(self) -> bool:
        return self.verdict is not None and self.verdict.unused(self.block)

    @property
    def caption(self) -> str:
        """The prediction, whether the block is used, and what is shown."""
        verdict = f"{self.verdict.words(self.block)} " if self.verdict else ""
        return f"{self.words}{verdict}{self.attention.caption}{MOVED if self.seen.usual else ''}"

    def save(self, path: str | Path, threshold: float = THRESHOLD, heat: bool = False) -> None:
        """Draw the maps to an image or, for clips, to an .mp4."""
        write_figure([self], Path(path), threshold, heat)


MOVED = " The view was moved to the reference position: a test sees the middle."


def explain_input(
    trained: Trained,
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
    verdict: Verdict | None = None,
) -> Row:
    """Compute the maps of a block, or of the second-order head; ``at`` is in pixels of the file.

    ``verdict`` says whether the blocks are used; unless given, it is found for this input.
    """
    network, seen = trained.network, shrink(seen.containing(at))
    if isinstance(seen, DetectorInput):
        if head or with_grad_cam:
            raise ValueError("a detector has no second-order head, and no one class for Grad-CAM")
        return _explain_objects(trained, seen, title, at, block, (group, by_group, columns), verdict)
    x = seen.network_input.to(next(network.parameters()).device)
    if head:
        result, layer, verdict = pairs(network, x, count=columns), None, None
        maps, label = result.named, result.target
    else:
        result = attention(network, x, seen.place(at), block)
        maps, layer = _choose(result, group, by_group, columns), result.block
        label = int(ranked(result.output.float().softmax(1)[0], 1)[1])
        verdict = verdict or quick_verdict(network, [x])
    probability = float(result.output.float().softmax(1)[0, label])
    heat = grad_cam(network, x, label, layer) if with_grad_cam else None
    return Row(title, result, seen, maps, f"{trained.classes[label]} ({probability:.1%}). ", heat, verdict)


def _choose(result: Attention, group: int | None, by_group: bool, columns: int) -> list[Map]:
    return result.by_group() if by_group else result.strongest(columns, group)


def _explain_objects(
    trained: Trained,
    seen: DetectorInput,
    title: str,
    at: Sequence[float] | None,
    block: str | None,
    chosen: tuple[int | None, bool, int],
    verdict: Verdict | None,
) -> Row:
    """The same for a detector, whose blocks are in its backbone."""
    network = trained.network

    def find(_network: nn.Module, images: list[Tensor]) -> list[list[dict[str, Any]]]:
        return [coco_results(found, 0, trained.ids) for found in network(images)]

    with torch.no_grad():
        found = [row for row in find(network, [seen.image])[0] if row["score"] >= SURE]
    names = dict(zip(trained.ids, trained.classes, strict=True))
    words = ", ".join(f"{names[row['category_id']]} ({row['score']:.1%})" for row in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    result = attention(network, seen.network_input, seen.place(at), block, network.get_submodule("backbone"))
    verdict = verdict or quick_verdict(network, [[seen.image]], find, same_objects)
    return Row(title, result, seen, _choose(result, *chosen), f"{words or 'Nothing found'}{more}. ", verdict=verdict)


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
    with need("matplotlib", "explain").rc_context({"text.parse_math": False}):  # names of classes may have dollars
        return _strip(rows, threshold) if rows[0].seen.frames else _columns(rows, threshold, heat, parts or {})


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
        save(draw(rows, threshold, heat, parts), path)
    elif rows[0].seen.frames:
        write_video(frames(rows), RATE, path)
    else:
        raise ValueError(f"{path} is a video, and the network was trained on images: give a .png")


def _columns(rows: Sequence[Row], threshold: float, heat: bool, parts: Mapping[str, tuple[float, float]]) -> Any:
    """A row for each network."""
    count = 1 + max(len(row.panels) for row in rows) + bool(parts)
    figure, axes = _grid(len(rows), count, rows[0].seen)
    for row, line in zip(rows, axes, strict=True):
        image = row.seen.original
        _show(line[0], image, row.seen)
        _mark_reference(line[0], row)
        _mark_unused(line[0], row)
        line[0].set_title("reference" if row.reference else "seen", fontsize=8)
        line[0].set_ylabel(row.title, fontsize=9)
        for axis, (shown, outlined) in zip(line[1:], row.panels, strict=False):
            _panel(axis, row, shown, image, None, threshold if outlined else None, heat or not outlined)
            axis.set_title(_label(shown), fontsize=8)
        if parts:
            _show(line[-1], image, row.seen)
            for x, y in parts.values():
                if not (0 <= x < row.seen.width and 0 <= y < row.seen.height):
                    continue
                line[-1].scatter(x, y, s=22, c="#ffd400", edgecolors="black", linewidths=0.8, zorder=5)
            line[-1].set_title("true parts", fontsize=8)
    _caption(figure, rows, threshold)
    return figure


def _strip(rows: Sequence[Row], threshold: float) -> Any:
    """Up to eight frames, spread evenly over the clip, one of which is the reference's."""
    count, must = len(rows[0].seen.original), rows[0].frame
    wanted = min(FRAMES, count)
    chosen = [round(i * (count - 1) / max(wanted - 1, 1)) for i in range(wanted)]
    chosen[chosen.index(_nearest(chosen, must))] = must
    lines = [(row, panel) for row in rows for panel in [None, *row.panels]]
    figure, axes = _grid(len(lines), len(chosen), rows[0].seen, gap=0.25)
    for line, (row, panel) in zip(axes, lines, strict=True):
        for axis, t in zip(line, chosen, strict=True):
            if panel is None:
                _show(axis, row.seen.original[t], row.seen)
                axis.set_title(f"frame {row.seen.frames[t]}", fontsize=8)
                if t == _nearest(chosen, row.frame):
                    _mark_reference(axis, row)
            else:
                _panel(axis, row, panel[0], row.seen.original[t], t, threshold if panel[1] else None, True)
        line[0].set_ylabel(row.title if panel is None else _label(panel[0]), fontsize=8)
        if panel is None:
            _mark_unused(line[0], row)
    _caption(figure, rows, threshold)
    return figure


def _nearest(numbers: Sequence[int], wanted: int) -> int:
    return min(numbers, key=lambda number: abs(number - wanted))


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
        top, left, *size = seen.box
        for colour, line in (("black", "-"), ("white", (0, (4, 4)))):
            options = {"fill": False, "edgecolor": colour, "linewidth": 0.7, "linestyle": line, "zorder": 3}
            axis.add_patch(need("matplotlib.patches", "explain").Rectangle((left, top), *reversed(size), **options))


def _panel(
    axis: Any, row: Row, shown: Map, image: Tensor, frame: int | None, threshold: float | None, heat: bool
) -> None:
    """One map over one image: related patches outlined, and the rest dimmed or the map as colours."""
    box = row.seen.box
    scaled = shown.scaled if frame is None else at_frame(shown, frame, len(row.seen.original))  # [h, w]
    related = None if threshold is None else scaled >= threshold
    if heat:
        _show(axis, paint(image, row.seen, lambda part: blend_heat(part, scaled)), row.seen)
    elif related is not None:
        _show(axis, paint(image, row.seen, lambda part: darken(part, related)), row.seen)
    if related is not None:
        lines = need("matplotlib.collections", "explain").LineCollection
        edges = (outline(related, box.height, box.width) + torch.tensor([box.left, box.top])).numpy()
        axis.add_collection(lines(edges, colors="black", linewidths=2.6, capstyle="round"))
        axis.add_collection(lines(edges, colors="white", linewidths=1.3, capstyle="round"))
    if frame is None or frame == row.frame:
        _mark_reference(axis, row)


def _mark_reference(axis: Any, row: Row) -> None:
    if row.reference:
        left, top, *size = row.reference
        patch = need("matplotlib.patches", "explain").Rectangle
        axis.add_patch(patch((left, top), *size, fill=False, edgecolor=GREEN, linewidth=2, zorder=5))


def _mark_unused(axis: Any, row: Row) -> None:
    if row.unused:
        here = " here" if row.verdict and row.verdict.samples == 1 else ""
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


def at_frame(shown: Map, frame: int, count: int) -> Tensor:
    """The part of a clip's scaled map that belongs to one of its ``count`` frames, [h, w]."""
    return shown.scaled[frame * shown.values.shape[0] // count]


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


def mark_patch(image: Tensor, row: Row, frame: int) -> Tensor:
    """Mark the reference patch of an image [3, H, W] of the file in green, in its own frame only."""
    if row.reference is None or frame != row.frame:
        return image
    down, across = image.shape[-2] / row.seen.height, image.shape[-1] / row.seen.width
    sides = zip(row.reference, (across, down, across, down), strict=True)
    left, top, width, height = (round(side * times) for side, times in sides)
    inside = torch.zeros(image.shape[-2:], dtype=torch.bool)
    inside[top : top + height, left : left + width] = True
    inside[top + 3 : top + height - 3, left + 3 : left + width - 3] = False
    return torch.where(inside, torch.tensor([0, 224, 0], dtype=torch.uint8)[:, None, None], image)


def mark_border(image: Tensor, seen: FileInput) -> Tensor:
    """Draw a thin dashed line around what the network sees of an image [3, H, W] of the file."""
    if seen.whole:
        return image
    height, width = image.shape[-2:]
    box = seen.box_in(height, width)
    inside = torch.zeros(height, width, dtype=torch.bool)
    crop(inside, box)[:] = True
    crop(inside, Box(box.top + 1, box.left + 1, box.height - 2, box.width - 2))[:] = False
    dashes = (torch.arange(height)[:, None] + torch.arange(width)) // 6 % 2 * 255
    return torch.where(inside, dashes.byte(), image)


def fit(images: Tensor, least: int, most: int) -> Tensor:
    """Repeat the pixels of small images [.., H, W], or shrink large ones, to about so many pixels in height."""
    height, width = images.shape[-2:]
    if height > most:
        return resize(images, most, max(1, round(width * most / height)))
    return enlarge(images, max(1, -(-least // height)))


def enlarge(pixels: Tensor, times: int) -> Tensor:
    """Repeat each pixel of [.., H, W] in both directions."""
    return pixels.repeat_interleave(times, -2).repeat_interleave(times, -1)


def frames(rows: Sequence[Row]) -> Tensor:
    """Draw heat maps over every frame, the networks below each other: uint8 [T, 3, H, W]."""
    count, panels = len(rows[0].seen.original), 1 + max(len(row.panels) for row in rows)
    images = []
    for t in range(count):
        lines = []
        for row in rows:
            frame = fit(row.seen.original[t], *PANEL)
            line = [_add_title(mark_border(mark_patch(frame, row, t), row.seen), row.title)]
            for shown, _ in row.panels:
                heat = at_frame(shown, t, count)
                line.append(
                    _add_title(paint(frame, row.seen, lambda part, heat=heat: blend_heat(part, heat)), _label(shown))
                )
            line += [torch.zeros_like(line[0])] * (panels - len(line))
            lines.append(torch.cat(line, 2))
        images.append(torch.cat(lines, 1))
    return torch.stack(images)


def _add_title(pixels: Tensor, title: str) -> Tensor:
    """Put a line of text above pixels."""
    image = need("PIL.Image", "data").new("RGB", (pixels.shape[-1], 18))
    need("PIL.ImageDraw", "data").Draw(image).text((4, 3), title.replace("\n", ", "), fill="white")
    text = torch.from_numpy(need("numpy", "data").array(image))
    return torch.cat([text.permute(2, 0, 1), pixels], 1)


def save(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure whole, or not at all; it is drawn in memory, because matplotlib fails oddly on a full disk."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:] or "png", **options)
    with whole_file(path, content.tell()) as file:
        file.write(content.getbuffer())
