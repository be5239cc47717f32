"""Frames of a video by number: from a video file, or from a folder with one image per frame."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..extras import need
from .images import MAX_PIXELS, check_size, is_empty, read_image, resize_by_area
from .index import File, StoredFile, UnreadableError, is_image_file, refuse_endless

MAX_FRAMES = 10**6
"""Most frames of a video: eleven hours of it."""
MAX_BYTES = 2 * 2**30
"""Most bytes decoded at once: 345 frames of full HD."""
X264 = {"crf": "18", "x264-params": "mbtree=0"}
"""Options of the encoder. With its macroblock tree (mbtree), it reads uninitialised memory, and files would differ."""

Pick = Callable[[int], Sequence[int]]
"""From the number of frames of a video to the numbers of the frames to read."""
Resize = Callable[[int, int], tuple[int, int]]
"""From the height and width of the frames to those wanted."""
ToRGB = Callable[[Any], Tensor]
"""From a frame of PyAV to RGB, uint8 [3, H, W]."""


class Packet(NamedTuple):
    """A packet of a video file before it is decoded."""

    time: int | None
    is_key: bool
    is_shown: bool


@dataclass(frozen=True)
class VideoInfo:
    """The number of frames, and their size as stored: a rotation in the metadata is not applied."""

    frames: int
    height: int
    width: int
    packets: Sequence[Packet] = field(default=(), repr=False, compare=False)
    """Of a video file, in decoding order."""
    reorders: bool = field(default=False, repr=False, compare=False)
    """Whether the decoder may show frames in another order."""
    rate: Fraction | None = field(default=None, repr=False, compare=False)
    """Frames per second, if the file says it."""


def probe(path: File) -> VideoInfo:
    """Count the frames of a video without decoding them, whatever its header says."""
    if isinstance(path, Path) and path.is_dir():
        files = _frame_files(path)
        _, height, width = read_image(files[0]).shape
        return VideoInfo(len(files), height, width)
    return _scan(path)


def decode_all(path: File) -> VideoInfo:
    """Decode every frame of a video as ``read_frames`` does, and keep none of them."""
    if isinstance(path, Path) and path.is_dir():
        shapes = [image.shape for image in _read_images(_frame_files(path))]
        _, height, width = shapes[0]
        return VideoInfo(len(shapes), height, width)
    info, nothing = _scan(path), torch.empty(0)
    _find(path, info, range(info.frames), lambda _: nothing)
    return info


def read_frames(path: File, indices: Sequence[int] | Pick, resize: Resize | None = None) -> Tensor:
    """Read the frames with these numbers, uint8 [T, 3, H, W], in any order and with repeats.

    Each call opens the file for itself, so threads may call at once. A frame number out of range raises
    ``ValueError``, a file that cannot be decoded ``UnreadableError``.

    Args:
        path: a video file or a folder of frames.
        indices: counted from 0 in display order, or a function from the number of frames to them.
        resize: the size to bring each frame to as soon as it is decoded.
    """
    if isinstance(path, Path) and path.is_dir():
        return _read_folder(path, indices, resize)
    return _read_file(path, indices, resize)


def clip_indices(
    frames: int, length: int = 32, stride: int = 2, start: int | None = None, generator: torch.Generator | None = None
) -> list[int]:
    """Every ``stride``-th of ``length * stride`` consecutive frames.

    The first one is ``start``, or drawn from ``generator`` among those that leave room for the whole clip. A video
    that ends before the clip does is looped, and the clip of a short one begins at 0.
    """
    last_start = _last_start(frames, length, stride)
    if start is None:
        start = int(torch.randint(last_start + 1, (), generator=generator))
    if not 0 <= start < frames:
        raise ValueError(f"a clip cannot start at frame {start} of {frames}")
    return [(start + step * stride) % frames for step in range(length)]


def spread_clip_starts(frames: int, clips: int = 10, length: int = 32, stride: int = 2) -> list[int]:
    """First frames of test clips: spread evenly from the first to the last that fits; a single clip is centred."""
    last_start = _last_start(frames, length, stride)
    if clips < 1:
        raise ValueError(f"a test needs at least one clip, not {clips}")
    return [last_start * clip // (clips - 1) for clip in range(clips)] if clips > 1 else [last_start // 2]


def _last_start(frames: int, length: int, stride: int) -> int:
    """The last frame at which a whole clip can start; 0 for a short video."""
    if min(frames, length, stride) < 1:
        raise ValueError(f"frames, length and stride must be at least 1, not {frames}, {length} and {stride}")
    return max(frames - length * stride, 0)


def _resolve(path: File, indices: Sequence[int] | Pick, frames: int) -> Sequence[int]:
    """The numbers of the frames to read, all in range."""
    indices = indices(frames) if callable(indices) else indices
    for index in indices:
        if not 0 <= index < frames:
            raise ValueError(f"{path} has {frames} frames and no frame {index}")
    return indices


def _check_bytes(path: File, count: int, height: int, width: int) -> None:
    """Refuse frames that would not fit into memory together."""
    if count * height * width * 3 > MAX_BYTES:
        frames = f"{count} frames of {width} x {height} pixels"
        raise UnreadableError(path, f"{frames} are too many at once: at most {MAX_BYTES:,} bytes are read")


def _stack(decoded: dict[int, Tensor], indices: Sequence[int], height: int, width: int) -> Tensor:
    """The frames in the order of ``indices``, with repeats. [T, 3, H, W]."""
    empty = torch.empty(0, 3, height, width, dtype=torch.uint8)
    return torch.stack([decoded[index] for index in indices]) if indices else empty


# Folders of frames


def _natural(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Sort key that puts ``frame2`` before ``frame10``."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], path.name


def _frame_files(folder: Path) -> list[Path]:
    """The images of a folder in natural order."""
    files = sorted(filter(is_image_file, folder.iterdir()), key=_natural)
    if not files:
        raise UnreadableError(folder, "the folder holds no images")
    return files


def _read_folder(folder: Path, indices: Sequence[int] | Pick, resize: Resize | None) -> Tensor:
    """Read frames that are images."""
    files = _frame_files(folder)
    indices = _resolve(folder, indices, len(files))
    wanted = sorted(set(indices))
    decoded: dict[int, Tensor] = {}
    size = 0, 0
    for index, image in zip(wanted, _read_images([files[index] for index in wanted]), strict=True):
        if not decoded:
            height, width = image.shape[1:]
            size = resize(height, width) if resize else (height, width)
            _check_bytes(folder, len(indices), *size)
        decoded[index] = resize_by_area(image, *size) if resize else image
    return _stack(decoded, indices, *size)


def _read_images(files: Sequence[Path]) -> Iterator[Tensor]:
    """Read frames that must all have the size of the first, each uint8 [3, H, W]."""
    shape = None
    for file in files:
        image = read_image(file)
        shape = shape or image.shape
        if image.shape != shape:
            raise UnreadableError(file, f"the other frames are {shape[2]} x {shape[1]} pixels")
        yield image


# Video files, by PyAV


@contextmanager
def _opened(path: File) -> Iterator[tuple[Any, Any]]:
    """Open the container and its video stream; FFmpeg's errors become ``UnreadableError``."""
    av = need("av", "data")
    refuse_endless(path)
    try:
        stored = isinstance(path, StoredFile)  # which may be a list of other files, but has none beside it
        source, limits = (path.open(), {"protocol_whitelist": "none"}) if stored else (str(path.absolute()), {})
        with av.open(source, metadata_errors="ignore", options=limits) as container:
            cover = av.stream.Disposition.attached_pic
            stream = next((s for s in container.streams.video if not s.disposition & cover), None)
            if stream is None:
                raise UnreadableError(path, "it has no video stream")
            if stream.codec_context is None or not stream.codec_context.width:
                raise UnreadableError(path, "its video stream cannot be decoded")
            check_size(path, stream.codec_context.width, stream.codec_context.height)
            stream.codec_context.thread_count = 1  # the loader's workers run in parallel already
            stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # later frames may have another size
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        raise UnreadableError(path, "it is empty" if path.is_file() and is_empty(path) else error) from error


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """The packets of a stream from the first key frame on; earlier ones cannot be decoded."""
    return dropwhile(lambda packet: not packet.is_keyframe, (p for p in container.demux(stream) if p.size))


def _scan(path: File) -> VideoInfo:
    """Read the packets of a file without decoding them."""
    packets: list[Packet] = []
    last = -1
    with _opened(path) as (container, stream):
        context = stream.codec_context
        for packet in _packets(container, stream):
            last = max(last, packet.pos or 0)
            if packet.is_corrupt:
                raise UnreadableError(path, f"it breaks off or is damaged after {len(packets)} frames")
            if len(packets) == MAX_FRAMES:
                raise UnreadableError(path, f"it has more than {MAX_FRAMES:,} frames")
            first = packets[0].time if packets else packet.pts
            is_cut = packet.is_discard or (first is not None and packet.pts is not None and packet.pts < first)
            is_hidden = context.name == "vp8" and not bytes(packet)[0] & 0x10  # a frame only to predict others from
            packets.append(Packet(packet.pts, packet.is_keyframe, not is_cut and not is_hidden))
        frames = sum(packet.is_shown for packet in packets)
        if not frames:
            raise UnreadableError(path, "it has no whole frame")
        if _last_in_index(container, stream) > last:
            raise UnreadableError(path, f"it breaks off after {len(packets)} frames")
        rate = stream.average_rate or None
        return VideoInfo(frames, context.height, context.width, packets, bool(context.has_b_frames), rate)


def _last_in_index(container: Any, stream: Any) -> int:
    """Where in an MP4 the last packet lies that its index names; -1 where that is not known.

    Not the count of frames in the header: an edit list leaves some of them out.
    """
    entries = getattr(stream, "index_entries", ()) if "mp4" in container.format.name.split(",") else ()  # PyAV 17 on
    return max((entry.pos for entry in entries if entry.size), default=-1)


def _decode(path: File, needed: Collection[int]) -> Generator[Any, None, None]:
    """Decode these packets, flushing the decoder at each gap."""
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


def _has_times(info: VideoInfo) -> bool:
    """Whether each packet says when its frame is shown.

    AVI stores no times. Those FFmpeg makes up for H.264 only count packets: they rise while the frames reorder.
    """
    known = [packet.time for packet in info.packets if packet.time is not None]
    return len(set(known)) == len(info.packets) and (not info.reorders or known != sorted(known))


def _needed(packets: Sequence[Packet], times: Collection[int]) -> set[int]:
    """The packets to decode for the frames of these times: from the key frame before each up to its own."""
    place = {packet.time: number for number, packet in enumerate(packets)}
    keys = sorted((packet.time or 0, number) for number, packet in enumerate(packets) if packet.is_key)
    needed: set[int] = set()
    for time in times:
        before = bisect_right(keys, (time, len(packets)))
        needed.update(range(keys[before - 1][1] if before else 0, place[time] + 1))
    return needed


def _find_by_time(path: File, info: VideoInfo, wanted: Collection[int], to_rgb: ToRGB) -> dict[int, Tensor] | None:
    """Decode from key frames, find frames by the times of their packets; None if the decoder departs from these."""
    shown = sorted(packet.time for packet in info.packets if packet.is_shown and packet.time is not None)
    numbers = {shown[index]: index for index in wanted}
    decoded: dict[int, Tensor] = {}
    latest = shown[0] - 1
    with closing(_decode(path, _needed(info.packets, numbers))) as frames:
        for frame in frames:
            if frame.pts in numbers:
                if frame.is_corrupt or frame.pts <= latest:
                    return None
                decoded[numbers[frame.pts]] = to_rgb(frame)
            latest = latest if frame.pts is None else frame.pts
    return decoded if len(decoded) == len(numbers) else None


def _find_by_count(path: File, info: VideoInfo, wanted: Collection[int], to_rgb: ToRGB) -> dict[int, Tensor]:
    """Decode from the start and count."""
    decoded: dict[int, Tensor] = {}
    with closing(_decode(path, range(len(info.packets)))) as frames:
        for number, frame in enumerate(frames):
            if number in wanted:
                decoded[number] = to_rgb(frame)
            if len(decoded) == len(wanted):
                return decoded
    missing = min(set(wanted) - decoded.keys())
    raise UnreadableError(path, f"frame {missing} of {info.frames} does not decode")


def _find(path: File, info: VideoInfo, wanted: Collection[int], to_rgb: ToRGB) -> dict[int, Tensor]:
    """Decode these frames, from key frames if the times of the packets can be trusted."""
    decoded = _find_by_time(path, info, wanted, to_rgb) if _has_times(info) else None
    return _find_by_count(path, info, wanted, to_rgb) if decoded is None else decoded


def _read_file(path: File, indices: Sequence[int] | Pick, resize: Resize | None) -> Tensor:
    """Read frames of a video file."""
    info = _scan(path)
    height, width = resize(info.height, info.width) if resize else (info.height, info.width)
    indices = _resolve(path, indices, info.frames)
    _check_bytes(path, len(indices), height, width)

    def to_rgb(frame: Any) -> Tensor:
        interpolation = "AREA" if resize else None
        pixels = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation=interpolation)
        return torch.from_numpy(pixels).permute(2, 0, 1)  # [3, H, W]

    return _stack(_find(path, info, set(indices), to_rgb), indices, height, width)


# Writing


def write_video(pixels: Tensor, rate: Fraction, path: Path) -> None:
    """Encode frames [T, 3, H, W] in uint8 as an MP4 file."""
    av, codec = need("av", "data"), encoder()
    pixels = F.pad(pixels, (0, pixels.shape[-1] % 2, 0, pixels.shape[-2] % 2))  # the codec needs even sizes
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=rate.limit_denominator(100))
        stream.height, stream.width = pixels.shape[2:]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = X264 if codec == "libx264" else {"qmin": "2", "qmax": "3"}
        for frame in pixels:
            image = frame.permute(1, 2, 0).contiguous().numpy()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def encoder() -> str:
    """The best encoder of this FFmpeg: not every build has one for H.264."""
    return "libx264" if "libx264" in need("av", "data").codecs_available else "mpeg4"
