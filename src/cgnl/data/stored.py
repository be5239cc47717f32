"""Files inside other files, such as the members of a tar file: read in place, never unpacked."""

import io
from pathlib import Path, PurePosixPath
from typing import BinaryIO


class StoredFile:
    """A file inside another, with the methods of ``Path`` that readers use."""

    file: str
    """Its name in the dataset, such as ``cats/1.jpg``; not a path on disk."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.file).name

    @property
    def parent(self) -> PurePosixPath:
        return PurePosixPath(self.file).parent

    def is_dir(self) -> bool:
        return False

    def is_file(self) -> bool:
        return True

    def read_bytes(self) -> bytes:
        """Its content; raises ``UnreadableError`` or ``OSError``."""
        raise NotImplementedError

    def open(self) -> BinaryIO:
        return io.BytesIO(self.read_bytes())


File = Path | StoredFile


def as_file(path: File | str) -> File:
    """A path given as text becomes a path."""
    return Path(path) if isinstance(path, str) else path
