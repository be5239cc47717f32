"""Frames of a video by their number: from a video file, or from a folder with one image for each frame."""

import importlib
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import dropwhile
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..extras import need
from .images import MAX_PIXELS, check_size, is_empty, is_image_file, read_image, reason, resized
from .index import UnreadableError

VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm", ".wmv"}
)

MAX_FRAMES = 10**6
"""Of a video; eleven hours."""
MAX_BYTES = 2 * 2**30
"""Of the frames that are wanted at once: 345 of full HD."""

Backend = Literal["auto", "pyav", "torchcodec"]
Pick = Callable[[int], Sequence[int]]
"""From how many frames a video has to the numbers of those that are wanted."""
Resize = Callable[[int, int], tuple[int, int]]
"""From the height and width of a video's frames to those that are wanted."""


@dataclass(frozen=True)
class VideoInfo:
    """How many frames a video has, and their size as stored: a rotation in the metadata is not applied."""

    frames: int
    height: int
    width: int


def is_video_file(path: Path | str) -> bool:
    """Whether the name is that of a video file. Hidden files are none."""
    name = PurePath(path)
    return name.suffix.lower() in VIDEO_SUFFIXES and not name.name.startswith(".")


def probe(path: Path | str) -> VideoInfo:
    """Count the frames of a video without decoding them, whatever its header says."""
    path = Path(path)
    if path.is_dir():
        files = _frame_files(path)
        _, height, width = read_image(files[0]).shape
        return VideoInfo(len(files), height, width)
    return _scan(path).info


def read_frames(path: Path | str, indices: Sequence[int] | Pick, backend: Backend = "auto") -> Tensor:
    """The frames with these numbers, counted from 0 in the order they are shown; repeats and any order are fine.

    A function is given how many frames there are and says which are wanted.
    ``"auto"`` is torchcodec where it can be imported, else PyAV. Each call opens the file for itself, so threads may
    call at once. A frame that is not there raises ``ValueError``, a file that cannot be decoded ``UnreadableError``.
    """
    path = Path(path)
    if backend not in ("auto", "pyav", "torchcodec"):
        raise ValueError(f"backend must be 'auto', 'pyav' or 'torchcodec', not {backend!r}")
    if path.is_dir():
        return _read_folder(path, indices)
    if backend == "pyav" or (backend == "auto" and _torchcodec() is None):
        return _read_pyav(path, indices)
    return _read_torchcodec(path, indices)


def read_resized(path: Path | str, pick: Pick, resize: Resize) -> Tensor:
    """The frames that ``pick`` wants, uint8 [T, 3, H, W], each resized as soon as it is decoded to save memory."""
    path = Path(path)
    return _read_folder(path, pick, resize) if path.is_dir() else _read_pyav(path, pick, resize)


def frame_rate(path: Path | str) -> Fraction | None:
    """Frames a second of a video file; None where it does not say."""
    with _opened(Path(path)) as (_, stream):
        return stream.average_rate or None


def clip_indices(
    frames: int,
    length: int = 32,
    stride: int = 2,
    start: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """Every ``stride``-th of ``length * stride`` consecutive frames.

    The first one is ``start``, or drawn from ``generator`` among those that leave room for the whole clip. A video
    that ends before the clip does starts again: it is played in a loop, and the clip of a short one begins at 0.
    """
    room = _room(frames, length, stride)
    if start is None:
        start = int(torch.randint(room + 1, (), generator=generator))
    if not 0 <= start < frames:
        raise ValueError(f"a clip cannot start at frame {start} of {frames}")
    return [(start + step * stride) % frames for step in range(length)]


def spread_clip_starts(frames: int, clips: int = 10, length: int = 32, stride: int = 2) -> list[int]:
    """Where the clips of a test begin: spread evenly from the first to the last that fits, one clip in the middle."""
    room = _room(frames, length, stride)
    if clips < 1:
        raise ValueError(f"a test needs at least one clip, not {clips}")
    return [room * clip // (clips - 1) for clip in range(clips)] if clips > 1 else [room // 2]


def _room(frames: int, length: int, stride: int) -> int:
    """The last frame at which a whole clip can start; 0 for a short video."""
    if min(frames, length, stride) < 1:
        raise ValueError(f"frames, length and stride must be at least 1, not {frames}, {length} and {stride}")
    return max(frames - length * stride, 0)


def _chosen(path: Path, indices: Sequence[int] | Pick, frames: int) -> Sequence[int]:
    """The frames that are wanted, if they are there."""
    indices = indices(frames) if callable(indices) else indices
    for index in indices:
        if not 0 <= index < frames:
            raise ValueError(f"{path} has {frames} frames and no frame {index}")
    return indices


# Folders of frames


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts ``frame2`` before ``frame10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _frame_files(folder: Path) -> list[Path]:
    """The images of a folder in the order of their numbers."""
    files = sorted(filter(is_image_file, folder.iterdir()), key=lambda file: (_natural(file), file.name))
    if not files:
        raise UnreadableError(folder, "the folder holds no images")
    return files


def _read_folder(folder: Path, indices: Sequence[int] | Pick, resize: Resize | None = None) -> Tensor:
    """Frames that are images."""
    files = _frame_files(folder)
    indices = _chosen(folder, indices, len(files))
    pictures: dict[int, Tensor] = {}
    height = width = 0
    size = 0, 0
    for index in sorted(set(indices)):
        picture = read_image(files[index])
        if not pictures:
            height, width = picture.shape[1:]
            size = resize(height, width) if resize else (height, width)
            _check_bytes(folder, len(indices), *size)
        if picture.shape[1:] != (height, width):
            raise UnreadableError(files[index], f"the other frames are {width} x {height} pixels")
        pictures[index] = resized(picture, *size) if resize else picture
    return _stack(pictures, indices, *size)


def _check_bytes(path: Path, count: int, height: int, width: int) -> None:
    """Refuse frames that would not fit into memory together."""
    if count * height * width * 3 > MAX_BYTES:
        raise UnreadableError(path, f"{count} frames of {width} x {height} pixels are too many at once")


def _stack(pictures: dict[int, Tensor], indices: Sequence[int], height: int, width: int) -> Tensor:
    """Pictures in the order asked for, as often as asked for."""
    frames = torch.empty(len(indices), 3, height, width, dtype=torch.uint8)
    for frame, index in zip(frames, indices, strict=True):
        frame.copy_(pictures[index])
    return frames  # [T, 3, H, W]


# PyAV


class _Packet(NamedTuple):
    """What a packet says before it is decoded."""

    time: int | None
    key: bool
    shown: bool


@dataclass(frozen=True)
class _Scan:
    """A video file by its packets, in the order they are decoded."""

    info: VideoInfo
    packets: list[_Packet]
    reorders: bool
    """Whether the decoder may show frames in another order."""
    interpolation: str | None = None
    """How frames are brought to the size in ``info``, if that is not theirs."""

    @property
    def timed(self) -> bool:
        """Whether each packet says when its frame is shown.

        AVI stores no times. Those FFmpeg makes up for H.264 only count packets: they rise while the frames reorder.
        """
        times = [packet.time for packet in self.packets]
        known = [time for time in times if time is not None]
        return len(set(known)) == len(times) and (not self.reorders or known != sorted(known))

    def shown(self) -> list[int]:
        """The time of each frame in the order they are shown."""
        return sorted(packet.time for packet in self.packets if packet.shown and packet.time is not None)

    def needed(self, times: Collection[int]) -> set[int]:
        """The packets to decode for the frames of these times: from the key frame before each up to its own."""
        place = {packet.time: number for number, packet in enumerate(self.packets)}
        keys = sorted((packet.time or 0, number) for number, packet in enumerate(self.packets) if packet.key)
        needed: set[int] = set()
        for time in times:
            before = bisect_right(keys, (time, len(self.packets)))
            first = keys[before - 1][1] if before else 0
            needed.update(range(first, place[time] + 1))
        return needed


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; whatever FFmpeg has against the file becomes an ``UnreadableError``."""
    av = need("av", "data")
    try:
        with av.open(str(path.absolute()), metadata_errors="ignore") as container:
            cover = av.stream.Disposition.attached_pic
            stream = next((s for s in container.streams.video if not s.disposition & cover), None)
            if stream is None:
                raise UnreadableError(path, "it has no video stream")
            if stream.codec_context is None or not stream.codec_context.width:
                raise UnreadableError(path, "its video stream cannot be decoded")
            check_size(path, stream.codec_context.width, stream.codec_context.height)
            stream.codec_context.thread_count = 1  # the loader's workers are the threads
            stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # later frames may say another size
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        empty = path.is_file() and is_empty(path)
        raise UnreadableError(path, "it is empty" if empty else reason(error)) from error


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream that hold anything, from the first key frame on: none before it can be decoded."""
    return dropwhile(lambda packet: not packet.is_keyframe, (p for p in container.demux(stream) if p.size))


def _is_shown(packet: Any, codec: str) -> bool:
    """Whether a packet becomes a frame: not when an edit list cuts it off, nor a hidden reference of VP8."""
    return not packet.is_discard and (codec != "vp8" or bool(bytes(packet)[0] & 0x10))


def _scan(path: Path) -> _Scan:
    """Read the packets of a file without decoding them."""
    packets = []
    with _opened(path) as (container, stream):
        context = stream.codec_context
        for packet in _packets(container, stream):
            if packet.is_corrupt:
                raise UnreadableError(path, f"it breaks off or is damaged after {len(packets)} frames")
            first = packets[0].time if packets else packet.pts
            if len(packets) == MAX_FRAMES:
                raise UnreadableError(path, f"it has more than {MAX_FRAMES:,} frames")
            shown = _is_shown(packet, context.name) and (first is None or packet.pts is None or packet.pts >= first)
            packets.append(_Packet(packet.pts, packet.is_keyframe, shown))
        frames = sum(packet.shown for packet in packets)
        if not frames:
            raise UnreadableError(path, "it has no whole frame")
        return _Scan(VideoInfo(frames, context.height, context.width), packets, bool(context.has_b_frames))


def _decode(path: Path, needed: Collection[int]) -> Generator[Any, None, None]:
    """Decode these packets; where some are left out, the decoder starts anew."""
    last = max(needed, default=-1)
    with _opened(path) as (container, stream):
        decoder, fed = stream.codec_context, False
        for number, packet in enumerate(_packets(container, stream)):
            if number in needed:
                yield from decoder.decode(packet)
            elif fed:
                yield from decoder.decode(None)
                decoder.flush_buffers()
            fed = number in needed
            if number >= last:
                break
        if fed:
            yield from decoder.decode(None)


def _picture(frame: Any, scan: _Scan) -> Tensor:
    """A decoded frame as RGB."""
    size = {"width": scan.info.width, "height": scan.info.height}
    pixels = frame.to_ndarray(format="rgb24", **size, interpolation=scan.interpolation)  # [H, W, 3]
    return torch.from_numpy(pixels).permute(2, 0, 1)  # [3, H, W]


def _by_time(path: Path, scan: _Scan, wanted: Collection[int]) -> dict[int, Tensor] | None:
    """Frames found by the times of their packets; ``None`` where the decoder does not keep to these times."""
    shown = scan.shown()
    numbers = {shown[index]: index for index in wanted}
    pictures: dict[int, Tensor] = {}
    latest = shown[0] - 1
    with closing(_decode(path, scan.needed(numbers))) as frames:
        for frame in frames:
            if frame.pts in numbers:
                if frame.is_corrupt or frame.pts <= latest:
                    return None
                pictures[numbers[frame.pts]] = _picture(frame, scan)
            latest = latest if frame.pts is None else frame.pts
    return pictures if len(pictures) == len(numbers) else None


def _by_count(path: Path, scan: _Scan, wanted: Collection[int]) -> dict[int, Tensor]:
    """Frames found by decoding and counting from the start."""
    pictures: dict[int, Tensor] = {}
    with closing(_decode(path, range(len(scan.packets)))) as frames:
        for number, frame in enumerate(frames):
            if number in wanted:
                pictures[number] = _picture(frame, scan)
            if len(pictures) == len(wanted):
                return pictures
    missing = min(set(wanted) - pictures.keys())
    raise UnreadableError(path, f"frame {missing} of {scan.info.frames} does not decode")


def _read_pyav(path: Path, indices: Sequence[int] | Pick, resize: Resize | None = None) -> Tensor:
    """Frames by PyAV, decoding from the key frames before them where the packets' times can be trusted."""
    scan = _scan(path)
    if resize:
        height, width = resize(scan.info.height, scan.info.width)
        scan = replace(scan, info=replace(scan.info, height=height, width=width), interpolation="AREA")
    indices = _chosen(path, indices, scan.info.frames)
    _check_bytes(path, len(indices), scan.info.height, scan.info.width)
    wanted = set(indices)
    pictures = _by_time(path, scan, wanted) if scan.timed else None
    if pictures is None:
        pictures = _by_count(path, scan, wanted)
    return _stack(pictures, indices, scan.info.height, scan.info.width)


# torchcodec


@cache
def _torchcodec() -> ModuleType | None:
    """torchcodec's decoders, or ``None`` where they, or the FFmpeg they load, are missing."""
    try:
        return importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        return None


def _read_torchcodec(path: Path, indices: Sequence[int] | Pick) -> Tensor:
    """Frames by torchcodec."""
    decoders = _torchcodec()
    if decoders is None:
        raise ModuleNotFoundError("this needs torchcodec: pip install torchcodec", name="torchcodec")
    if not path.is_file() or is_empty(path):
        raise UnreadableError(path, "it is empty" if path.is_file() else "No such file or directory")
    try:
        decoder = decoders.VideoDecoder(str(path.absolute()), dimension_order="NCHW", seek_mode="exact")
        frames = len(decoder)
    except (RuntimeError, ValueError) as error:
        raise UnreadableError(path, reason(error)) from error
    indices = _chosen(path, indices, frames)
    try:
        return decoder.get_frames_at(list(indices)).data  # [T, 3, H, W]
    except (RuntimeError, ValueError) as error:
        raise UnreadableError(path, reason(error)) from error
