"""What ``cgnl app`` shows: a file with one map of each network's attention drawn on it. No Gradio here."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.images import to_image
from ..data.loading import MAX_UNCROPPED_SIDE
from ..data.video import write_video
from ..engine.checkpoint import Trained, open_trained, require_classifier
from ..engine.datasets import dataset_name, open_dataset
from ..engine.predictions import ranked
from ..engine.settings import SYNTHETIC
from ..explain import figure
from ..explain.figure import Row
from ..explain.inputs import FileInput, read_input
from ..explain.maps import THRESHOLD, Attention, Map, find_blocks
from ..explain.verdict import Verdict, read_verdict
from ..models.device import find_device

SIDE = 512  # small images are enlarged to about this many pixels
LARGEST, LARGEST_FRAME = 1280, 640  # large ones are shrunk, because each visitor's are kept in memory
ALL, STRONGEST, SUM = "all", "strongest", "sum"  # all groups; the channel with the largest range; a group's sum
STYLES = ("patches", "heat", "image")  # related patches outlined, the map as colours, the image alone


@dataclass(frozen=True, eq=False)
class Network:
    """A network that visitors may try, one at a time because its blocks are hooked."""

    title: str
    trained: Trained
    verdict: Verdict | None = None  # of ``cgnl diagnose``
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def blocks(self) -> list[str]:
        return list(find_blocks(self.trained.network))


@dataclass(frozen=True, eq=False)
class Look:
    """One file in one network."""

    network: Network
    explained: Row

    @property
    def seen(self) -> FileInput:
        return self.explained.seen

    @property
    def attention(self) -> Attention:
        return self.explained.attention  # pyright: ignore[reportReturnType]  never that of a head

    @property
    def verdict(self) -> Verdict:
        return self.explained.verdict  # pyright: ignore[reportReturnType]  which blocks have

    @property
    def zoom(self) -> int:
        """Factor by which the file's pixels are enlarged."""
        return max(1, round(SIDE / max(self.seen.original.shape[-2:])))

    @property
    def frames(self) -> int:
        return len(self.seen.frames)

    @property
    def at(self) -> tuple[float, ...]:
        """The reference position in the file."""
        x, y, *t = self.attention.at
        at = self.seen.in_file(x, y)
        return (*at, self.seen.frames[int(t[0])]) if t else at

    def move(self, at: tuple[float, ...], block: str | None = None) -> "Look":
        """Look from another position, or into another block."""
        seen = self.seen.containing(at)
        return look(self.network, seen, at, block or self.attention.block, self.verdict if seen is self.seen else None)

    def top(self, count: int = 5) -> dict[str, float]:
        """The most probable classes, with their probabilities."""
        best, classes = ranked(self.attention.output.float().softmax(1)[0], count)
        names = self.network.trained.classes
        return {names[i]: p for i, p in zip(classes.tolist(), best.tolist(), strict=True)}

    @property
    def groups(self) -> list[str]:
        """Choices of a group."""
        return [ALL] if self.attention.non_local else [ALL, *map(str, range(self.attention.groups))]

    def channels(self, group: str) -> list[str]:
        """Choices of a channel in a group."""
        if self.attention.non_local:
            return [STRONGEST]
        inside = self.attention.maps.shape[1]
        if group == ALL:
            return [STRONGEST, *map(str, range(self.attention.groups * inside))]
        return [STRONGEST, SUM, *map(str, range(int(group) * inside, (int(group) + 1) * inside))]

    def map(self, group: str = ALL, channel: str = STRONGEST) -> Map:
        """The chosen map."""
        if group not in self.groups or channel not in self.channels(group):
            raise ValueError(f"there is no channel {channel!r} in group {group!r} of {self.attention.block}")
        if channel == STRONGEST:
            return self.attention.strongest(1, None if group == ALL else int(group))[0]
        if channel == SUM:
            return self.attention.by_group()[int(group)]
        return self.attention.of_channel(int(channel))

    def row(self, group: str = ALL, channel: str = STRONGEST) -> Row:
        """A row of the figure that can be downloaded."""
        return replace(self.explained, maps=[self.map(group, channel)])

    def describe(self, group: str, channel: str) -> str:
        """Say whether the block is used, where the reference is and what is shown, in Markdown."""
        names, block = ("x", "y", "frame"), self.attention.block
        place = ", ".join(f"{name} {value:.0f}" for name, value in zip(names, self.at, strict=False))
        mark = "**" if self.verdict.unused(block) else ""
        verdict = f"{mark}{self.verdict.sentence(block)}{mark} {self.verdict.advice(block)}"
        shown = f"Reference at {place}. Shown: {self.map(group, channel).name}. {self.attention.caption}"
        return f"{verdict}\n\n{shown}{figure.MOVED if self.seen.usual else ''}"

    def place(self, x: float, y: float, frame: int = 0) -> tuple[float, ...]:
        """Convert a pixel of the shown image to a position in the file."""
        seen, (rows, columns) = self.seen, self.seen.original.shape[-2:]
        sides = ((x, columns, seen.width), (y, rows, seen.height))
        at = tuple(min(max(p / (self.zoom * drawn), 0) * n, n - 1) for p, drawn, n in sides)
        return (*at, seen.frames[frame]) if self.frames else at


def open_networks(paths: Sequence[str], device: str = "auto") -> list[Network]:
    """Open checkpoints of classifiers with blocks, all for images or all for videos."""
    device, networks = find_device(device), []
    for path in paths:
        trained = open_trained(path)
        require_classifier(trained, path)
        trained = replace(trained, network=trained.network.to(device).eval())
        if not find_blocks(trained.network):
            raise ValueError(f"{path} has no NL or CGNL block, so there is no attention to show")
        networks.append(Network(figure.name_run(path, paths), trained, read_verdict(path, trained.network)))
    if len({network.trained.kind for network in networks}) > 1:
        raise ValueError(f"{paths[0]} is for {networks[0].trained.kind} and {paths[1]} for {networks[1].trained.kind}")
    return networks


def look(
    network: Network,
    seen: FileInput,
    at: tuple[float, ...] | None = None,
    block: str | None = None,
    verdict: Verdict | None = None,
) -> Look:
    """Run a network on an input; ``at`` is in pixels of the file."""
    height, width = seen.pixels.shape[-2:]
    if height * width > MAX_UNCROPPED_SIDE**2:
        raise ValueError(
            f"{width} x {height} pixels are more than the page takes, {MAX_UNCROPPED_SIDE} x {MAX_UNCROPPED_SIDE}"
        )
    options: Any = {"head": False, "at": at, "block": block, "verdict": verdict or network.verdict}
    with network.lock:
        return Look(network, figure.explain_input(network.trained, seen, network.title, **options))


def look_at(networks: Sequence[Network], file: str | Path) -> list[Look]:
    """Run each network on a file, with the reference in the middle."""
    looks = []
    try:
        for network in networks:
            seen = read_input(network.trained, file)
            looks.append(look(network, figure.shrink(seen, LARGEST_FRAME if seen.frames else LARGEST)))
    except ValueError as error:  # a visitor knows the file by its name only
        raise ValueError(str(error).replace(str(file), Path(file).name)) from None
    return looks


def draw_look(
    look: Look,
    group: str = ALL,
    channel: str = STRONGEST,
    threshold: float = THRESHOLD,
    style: str = STYLES[0],
    frame: int = 0,
) -> Tensor:
    """Draw one map over the file, with the reference patch in green: uint8 [3, H, W]."""
    row, (height, width) = look.row(group, channel), look.seen.original.shape[-2:]
    return figure.draw_alone(
        row,
        None if style == "image" else row.maps[0],
        threshold,
        style == "heat",
        frame if look.frames else None,
        height * look.zoom,
        width * look.zoom,
    )


def write_examples(network: Network, folder: Path, count: int = 6) -> list[Path]:
    """Write some test samples of the synthetic dataset that a network was trained on; none for other datasets."""
    data = network.trained.config.data
    if dataset_name(data) not in SYNTHETIC:
        return []
    dataset = open_dataset(data)  # which names the files: a checkpoint may have any names for its classes
    test, paths = dataset.test, []
    for index in range(min(count, len(test))):
        pixels = test.read(index, range)
        name = dataset.classes[test.label(index)].replace(" ", "-")
        path = folder / f"{index}-{name}{'.png' if pixels.ndim == 3 else '.mp4'}"
        if pixels.ndim == 3:
            to_image(pixels).save(path)
        else:
            write_video(pixels, figure.RATE, path)
        paths.append(path)
    return paths
