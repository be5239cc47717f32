"""Files that are written whole or not at all."""

import csv
import errno
import glob
import io
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from .text import first_line

STALE = 3600.0
"""Age in seconds from which on a temporary file counts as left behind by a killed writer."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Of a disk, and of a user's share of it."""


def make_folder(folder: Path) -> None:
    """Make a folder that can be written to, before anything that takes long."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(f"{folder} cannot be written to: {error.strerror or error}") from None


@contextmanager
def whole_file(path: Path, size: int | None = None) -> Iterator[BinaryIO]:
    """Write a file under a temporary name, then rename it, so that readers never see a part of it.

    ``size`` is that of the file in bytes, as far as it is known, for the message where there is no space for it.
    """
    try:
        with _replacing(path) as part, part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        kept = "; the one before is kept" if path.exists() else ""
        raise OSError(f"{path} cannot be written: {_reason(error, path.parent, size)}{kept}") from error


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Write a file or folder under a temporary name, then rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(target) as part, naming_if_full(target):
        write(part)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A hidden name beside the target that no other writer uses; what is written there replaces the target."""
    remove_parts(target.parent, target.name, STALE)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(target)
    except BaseException:
        with suppress(OSError):  # a disk that can only be read has none
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise


@contextmanager
def naming_if_full(path: Path) -> Iterator[None]:
    """Name the file or folder that there is no space left for: writers of other libraries do not."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        raise OSError(f"{path} cannot be written: {_reason(error, folder, None)}") from error


def _reason(error: BaseException, folder: Path, size: int | None) -> str:
    """Why a file cannot be written; writers in C++ raise errors of their own behind that of the system."""
    first = error
    while not isinstance(first, OSError) and first.__context__ is not None:
        first = first.__context__
    reason = getattr(first, "strerror", None) or first_line(error)
    if getattr(first, "errno", None) not in FULL:
        return reason
    needed = "" if size is None else f"{size / 1e6:,.1f} MB are needed, "
    return f"{reason}: {needed}{shutil.disk_usage(folder).free / 1e6:,.1f} MB are free"


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text whole, or not at all; ``errors`` as for ``str.encode``."""
    with whole_file(path) as file:
        file.write(text.encode(errors=errors))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], errors: str = "strict") -> None:
    """Write a table whole, or not at all."""
    text = io.StringIO()
    csv.writer(text).writerows([columns, *rows])
    write_text(path, text.getvalue(), errors)


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a matplotlib figure whole; it is drawn in memory, because matplotlib fails oddly on a full disk."""
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:] or "png", **options)
    with whole_file(path, content.tell()) as file:
        file.write(content.getbuffer())


def remove_parts(folder: Path, name: str = "", age: float = 0.0) -> None:
    """Remove temporary files of killed writers: of one file or of all, unless changed in the last ``age`` seconds."""
    for path in folder.glob(f".{glob.escape(name)}*.part"):
        with suppress(FileNotFoundError):  # another writer may remove it, too
            if not age or time.time() - path.stat().st_mtime > age:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
