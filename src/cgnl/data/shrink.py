"""``cgnl data shrink``: a small copy of a dataset of clips."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor

from ..extras import need
from .images import is_image_file, to_image
from .index import UnreadableError
from .video import frame_rate, is_video_file, probe, read_resized

SETTINGS = ".cgnl-shrink.json"
"""File in the copy that says how it was made, so that no other is mixed into it."""
SECONDS = 10.0
"""Between two lines on the progress."""
CRF, JPEG_QUALITY = 18, 95


@dataclass(frozen=True)
class Size:
    """What becomes of a clip."""

    short_side: int
    frames: int

    def indices(self, count: int) -> list[int]:
        """The middle frame of each of ``frames`` equal parts of a clip; all frames of a shorter one."""
        kept = min(count, self.frames)
        return [(2 * part + 1) * count // (2 * kept) for part in range(kept)]

    def resize(self, height: int, width: int) -> tuple[int, int]:
        """Even height and width, as H.264 wants them, of a frame that is made smaller but never larger."""
        scale = min(1.0, self.short_side / min(height, width))
        return _even(height * scale, height), _even(width * scale, width)


@dataclass(frozen=True)
class Plan:
    """What a dataset holds, by paths from its root on."""

    clips: list[Path]
    """Video files and folders of frames."""
    others: list[Path]
    """Files to copy as they are."""


@dataclass(frozen=True)
class Shrunk:
    """What was done."""

    written: int
    skipped: int
    """Clips that were there already."""
    copied: int
    failed: dict[Path, str]
    """Clip -> the sentence that says why it cannot be read."""


def shrink(
    root: Path | str,
    out: Path | str,
    short_side: int = 128,
    frames: int = 32,
    workers: int | None = None,
    frame_folders: bool = False,
    say: Callable[[str], None] = print,
) -> Shrunk:
    """Write every clip under ``root`` with fewer and smaller frames, and copy all other files.

    Names stay as they are, so that lists of files still hold: ``a.avi`` is then an MP4 file called ``a.avi``, which
    decoders recognise by its content. What is there already is not made again. Hidden files are left out.

    Args:
        root: the dataset.
        out: the copy, outside of ``root``.
        short_side: pixels of the shorter side; smaller frames keep their size.
        frames: frames to keep of each clip, spread evenly over its length.
        workers: processes; as many as there are cores unless given.
        frame_folders: whether folders of pictures are clips too.
        say: is given a line on the progress now and then, and one on each clip that cannot be read.
    """
    root, out, size = Path(root), Path(out), Size(short_side, frames)
    workers = _cores() if workers is None else workers
    if frames < 1 or short_side < 16 or workers < 1:
        given = f"frames = {frames}, short_side = {short_side} and workers = {workers}"
        raise ValueError(f"{given} must be at least 1, 16 and 1")
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder")
    if out.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{out} is in {root}: the copy must be outside")
    need("av", "data")
    plan = find(root, frame_folders)
    _settle(out, size)
    copied = [path for path in plan.others if _copy(root / path, out / path)]
    wanted = [path for path in plan.clips if not (out / path).exists()]
    failed: dict[Path, str] = {}
    start = said = time.monotonic()
    for done, (path, problem) in enumerate(_results(root, out, wanted, size, workers), start=1):
        if problem:
            failed[root / path] = problem
            say(problem)
        if (now := time.monotonic()) - said >= SECONDS or done == len(wanted):
            left = (now - start) / done * (len(wanted) - done)
            say(f"{done:,} of {len(wanted):,} clips, {len(failed):,} failed, {left / 60:.1f} minutes left")
            said = now
    return Shrunk(len(wanted) - len(failed), len(plan.clips) - len(wanted), len(copied), failed)


def find(root: Path, frame_folders: bool) -> Plan:
    """The clips and the other files of a dataset."""
    clips: list[Path] = []
    others: list[Path] = []
    for place, files, is_leaf in _walk(root, ()):
        videos = [file for file in files if is_video_file(file)]
        pictures = [file for file in files if is_image_file(file)]
        if pictures and is_leaf and not videos and place != root:
            if not frame_folders:
                raise ValueError(f"{place} holds pictures: say frame_folders=true if they are the frames of a clip")
            clips.append(place.relative_to(root))
            continue
        clips += [file.relative_to(root) for file in videos]
        others += [file.relative_to(root) for file in files if not is_video_file(file)]
    if not clips:
        raise ValueError(f"{root} holds no videos")
    return Plan(clips, others)


def _walk(place: Path, above: tuple[Path, ...]) -> Iterator[tuple[Path, list[Path], bool]]:
    """A folder and all in it: path, files, and whether it has no folders. Links are followed, but not in a circle."""
    above = (*above, place.resolve())
    inner = sorted(path for path in place.iterdir() if not path.name.startswith("."))
    folders = [path for path in inner if path.is_dir() and path.resolve() not in above]
    yield place, [path for path in inner if path.is_file()], not folders
    for folder in folders:
        yield from _walk(folder, above)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _settle(out: Path, size: Size) -> None:
    """Begin the copy, or go on with one that was made with the same settings."""
    settings = json.dumps(asdict(size))
    file = out / SETTINGS
    if file.is_file():
        if file.read_text(encoding="utf-8") != settings:
            raise ValueError(f"{out} was made with {file.read_text(encoding='utf-8')}, not with {settings}")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already, and is not a copy that was begun before")
    out.mkdir(parents=True, exist_ok=True)
    _whole(file, lambda part: part.write_text(settings, encoding="utf-8"))


def _results(root: Path, out: Path, clips: list[Path], size: Size, workers: int) -> Iterator[tuple[Path, str | None]]:
    """Every clip, with the sentence that says why it failed, if it did."""
    do = partial(_shrink_clip, root, out, size)
    if min(workers, len(clips)) < 2:
        yield from zip(clips, map(do, clips), strict=True)
        return
    pool = ProcessPoolExecutor(min(workers, len(clips)), get_context("spawn"), _start)
    try:
        yield from zip(clips, pool.map(do, clips), strict=True)
    except BrokenProcessPool:
        raise ValueError("a process died, perhaps for lack of memory: the same command goes on where it was") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    """Make ready a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent: clips under way are finished
    torch.set_num_threads(1)  # the processes are the threads
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent was killed; else it would wait for more work forever."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _shrink_clip(root: Path, out: Path, size: Size, clip: Path) -> str | None:
    """Write one clip, or say why it cannot be read."""
    source, target = root / clip, out / clip
    try:
        pixels = read_resized(source, size.indices, size.resize)
        if source.is_dir():
            _whole(target, partial(_write_frames, pixels, source))
        else:
            _whole(target, partial(_write_video, pixels, _rate(source, len(pixels))))
    except UnreadableError as error:
        return str(error)
    return None


def _rate(source: Path, kept: int) -> Fraction:
    """Frames a second with which the kept ones last as long as the clip did."""
    rate = frame_rate(source) or Fraction(25)
    kept_share = Fraction(kept, probe(source).frames)
    return min(max(rate * kept_share, Fraction(1)), Fraction(240)).limit_denominator(100)


def _write_video(pixels: Tensor, rate: Fraction, path: Path) -> None:
    """Encode frames [T, 3, H, W] as an MP4 file."""
    av = need("av", "data")
    codec = encoder()
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = pixels.shape[2:]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.options = {"crf": str(CRF)} if codec == "libx264" else {"qmin": "2", "qmax": "3"}
        for frame in pixels:
            picture = frame.permute(1, 2, 0).contiguous().numpy()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def encoder() -> str:
    """The encoder that is there: not every build of FFmpeg has one of H.264."""
    return "libx264" if "libx264" in need("av", "data").codecs_available else "mpeg4"


def _write_frames(pixels: Tensor, source: Path, folder: Path) -> None:
    """Frames [T, 3, H, W] as JPEG files, beside what else the clip's folder holds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, frame in enumerate(pixels):
        to_image(frame).save(folder / f"{number:05}.jpg", quality=JPEG_QUALITY)
    for file in source.iterdir():
        if file.is_file() and not is_image_file(file) and not file.name.startswith("."):
            shutil.copyfile(file, folder / file.name)


def _copy(source: Path, target: Path) -> bool:
    """Copy a file that is not there yet."""
    if target.exists():
        return False
    _whole(target, lambda part: shutil.copyfile(source, part))
    return True


def _whole(target: Path, write: Callable[[Path], object]) -> None:
    """Write a file or folder under another name first, so that what bears its own is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    write(part)
    part.replace(target)


def _even(length: float, most: int) -> int:
    """The nearest even number of pixels, not more than there are and at least 2."""
    return max(2, min(2 * round(length / 2), most // 2 * 2))
