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
from typing import BinaryIO

from .text import first_line

STALE = 3600.0
"""Age in seconds from which on a temporary file counts as left behind by a killed writer."""


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
    remove_parts(path.parent, path.name, STALE)
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, (OSError, RuntimeError)):
            raise
        kept = "; the one before is kept" if path.exists() else ""
        raise OSError(f"{path} cannot be written: {_reason(error, path.parent, size)}{kept}") from error


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Write a file or folder under a temporary name, then rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_parts(target.parent, target.name, STALE)
    part = temporary_name(target)
    try:
        write(part)
        part.replace(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
        raise


def temporary_name(path: Path) -> Path:
    """A hidden name beside a file that no other writer uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def _reason(error: BaseException, folder: Path, size: int | None) -> str:
    """Why a file cannot be written; writers in C++ raise errors of their own behind that of the system."""
    first = error
    while not isinstance(first, OSError) and first.__context__ is not None:
        first = first.__context__
    reason = getattr(first, "strerror", None) or first_line(error)
    if getattr(first, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
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


def remove_parts(folder: Path, name: str = "", age: float = 0.0) -> None:
    """Remove temporary files of killed writers: of one file or of all, unless changed in the last ``age`` seconds."""
    for path in folder.glob(f".{glob.escape(name)}*.part"):
        with suppress(FileNotFoundError):  # another writer may remove it, too
            if not age or time.time() - path.stat().st_mtime > age:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
