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

from ..atomic_io import make_folder, write_text, write_whole
from ..extras import need
from .images import to_image
from .index import (
    UnreadableError,
    is_image_file,
    is_video_file,
    require_folder,
    require_new_folder,
    require_outside,
    walk,
)
from .loading import count_cores
from .video import probe, read_frames, write_video

SETTINGS = ".cgnl-shrink.json"
"""File in the copy that says how it was made, so that copies with other settings are not mixed into it."""
SECONDS = 10.0
"""Seconds between two progress messages."""
JPEG_QUALITY = 95


@dataclass(frozen=True)
class Size:
    """The size of the small clips."""

    short_side: int
    frames: int

    def indices(self, count: int) -> list[int]:
        """The middle frame of each of ``frames`` equal parts of a clip; all frames of a shorter one."""
        kept = min(count, self.frames)
        return [(2 * part + 1) * count // (2 * kept) for part in range(kept)]

    def resize(self, height: int, width: int) -> tuple[int, int]:
        """Even height and width, as H.264 needs them, of a frame that is reduced but never enlarged."""
        scale = min(1.0, self.short_side / min(height, width))
        height, width = (min(2 * round(side * scale / 2), side // 2 * 2) for side in (height, width))
        return max(2, height), max(2, width)


@dataclass(frozen=True)
class Shrunk:
    """How many clips and files were handled, and how."""

    written: int
    skipped: int
    """Clips that were there already."""
    copied: int
    failed: dict[Path, str]
    """Clip -> why it cannot be read."""


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

    Names stay the same, so that lists of files still hold: ``a.avi`` becomes an MP4 file called ``a.avi``, which
    decoders recognise by its content. Files that exist are not made again. Hidden files are skipped.

    Args:
        root: the dataset.
        out: the copy, outside of ``root``.
        short_side: pixels of the shorter side; smaller frames keep their size.
        frames: frames to keep of each clip, spread evenly over its length.
        workers: processes; default one per core.
        frame_folders: whether folders of images are clips too.
        say: called with progress, and with each clip that cannot be read.
    """
    root, out, size = Path(root), Path(out), Size(short_side, frames)
    workers = count_cores() if workers is None else workers
    if frames < 1 or short_side < 16 or workers < 1:
        given = f"frames = {frames}, short_side = {short_side} and workers = {workers}"
        raise ValueError(f"{given} must be at least 1, 16 and 1")
    require_outside(out, require_folder(root))
    need("av", "data")
    clips, others = _find(root, frame_folders)
    _start_or_resume(out, size)
    to_copy = [path for path in others if not (out / path).exists()]
    for path in to_copy:
        write_whole(out / path, partial(shutil.copyfile, root / path))
    wanted = [path for path in clips if not (out / path).exists()]
    failed: dict[Path, str] = {}
    start = said = time.monotonic()
    for done, problem in enumerate(_shrink_all(root, out, size, wanted, workers), start=1):
        if problem:
            failed[root / wanted[done - 1]] = problem
            say(problem)
        if (now := time.monotonic()) - said >= SECONDS or done == len(wanted):
            left = (now - start) / done * (len(wanted) - done)
            say(f"{done:,} of {len(wanted):,} clips, {len(failed):,} failed, {left / 60:.1f} minutes left")
            said = now
    return Shrunk(len(wanted) - len(failed), len(clips) - len(wanted), len(to_copy), failed)


def _find(root: Path, frame_folders: bool) -> tuple[list[Path], list[Path]]:
    """The clips (video files and folders of frames) and the other files of a dataset, relative to its root."""
    clips: list[Path] = []
    others: list[Path] = []
    for place, paths, folders in walk(root):
        files = [path for path in paths if path.is_file()]
        videos = [file for file in files if is_video_file(file)]
        if not folders and not videos and place != root and any(map(is_image_file, files)):
            if not frame_folders:
                raise ValueError(f"{place} holds images: say frame_folders=true if they are the frames of a clip")
            clips.append(place.relative_to(root))
            continue
        clips += [file.relative_to(root) for file in videos]
        others += [file.relative_to(root) for file in files if not is_video_file(file)]
    if not clips:
        raise ValueError(f"{root} holds no videos")
    return clips, others


def _start_or_resume(out: Path, size: Size) -> None:
    """Begin the copy, or resume one with the same settings."""
    settings = json.dumps(asdict(size))
    file = out / SETTINGS
    if not file.is_file():
        require_new_folder(out)
        make_folder(out)
        write_text(file, settings)
    elif (made_with := file.read_text(encoding="utf-8")) != settings:
        raise ValueError(f"{out} was made with {made_with}, not with {settings}")


def _shrink_all(root: Path, out: Path, size: Size, clips: list[Path], workers: int) -> Iterator[str | None]:
    """Write every clip; yield the reason if it cannot be read."""
    shrink_clip = partial(_shrink_clip, root, out, size)
    if min(workers, len(clips)) < 2:
        yield from map(shrink_clip, clips)
        return
    pool = ProcessPoolExecutor(min(workers, len(clips)), get_context("spawn"), _start_worker)
    try:
        yield from pool.map(shrink_clip, clips)
    except BrokenProcessPool:
        raise ValueError("a process died, perhaps for lack of memory: the same command resumes") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Set up a process of the pool, which ends with its parent; else it would wait for more work forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent: clips under way are finished
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _shrink_clip(root: Path, out: Path, size: Size, clip: Path) -> str | None:
    """Write one clip; return the reason if it cannot be read."""
    source, target = root / clip, out / clip
    try:
        pixels = read_frames(source, size.indices, size.resize)
        if source.is_dir():
            write_whole(target, partial(_write_frames, pixels, source))
        else:
            info = probe(source)
            rate = (info.rate or Fraction(25)) * Fraction(len(pixels), info.frames)  # the clip lasts as long as before
            write_whole(target, partial(write_video, pixels, min(max(rate, Fraction(1)), Fraction(240))))
    except UnreadableError as error:
        return str(error)
    return None


def _write_frames(pixels: Tensor, source: Path, folder: Path) -> None:
    """Write frames [T, 3, H, W] as JPEG files, with the other files of the clip's folder."""
    folder.mkdir()
    for number, frame in enumerate(pixels):
        to_image(frame).save(folder / f"{number:05}.jpg", quality=JPEG_QUALITY)
    for file in source.iterdir():
        if file.is_file() and not is_image_file(file) and not file.name.startswith("."):
            shutil.copyfile(file, folder / file.name)
