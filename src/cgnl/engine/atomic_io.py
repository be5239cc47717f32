"""Files that are written whole or not at all."""

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..spelling import first_line

PART = ".{}.part"
"""Name of a file that is not written to its end."""


def make_folder(folder: Path) -> None:
    """Make a folder that can be written to, before anything that takes long."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(f"{folder} cannot be written to: {error.strerror or error}") from None


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is written under another name and then renamed, so that there is always a whole one."""
    temporary = path.with_name(PART.format(path.name))
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, (OSError, RuntimeError)):
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise OSError(f"{path} cannot be written: {reason}; what was saved before is kept") from error


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text whole, or not at all; ``errors`` as for ``str.encode``."""
    with whole_file(path) as file:
        file.write(text.encode(errors=errors))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], errors: str = "strict") -> None:
    """Write a table whole, or not at all."""
    text = io.StringIO()
    csv.writer(text).writerows([columns, *rows])
    write_text(path, text.getvalue(), errors)


def remove_parts(folder: Path) -> None:
    """Remove what was being written when a run was killed."""
    for path in folder.glob(PART.format("*")):
        path.unlink()
