"""Shards from an address or a command: fetched whole into a folder of limited size, then read like local ones.

Only what was typed on the command line is ever opened: an address in a recipe, checkpoint or ``shards.json`` is not.
"""

import hashlib
import io
import os
import re
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import quote

from filelock import FileLock

from ..atomic_io import make_folder, write_whole
from .index import UnreadableError

TRIES, WAIT, TIMEOUT = 4, 0.5, 60.0
"""Attempts to fetch a shard, seconds before the second (doubled for each further), seconds without an answer."""
RETRY_AFTER = 60.0
"""Seconds in which a shard that could not be fetched is not tried again: each of its samples asks for it."""
COMMAND_TIMEOUT = 3600.0
"""Seconds after which a command is ended."""
MAX_INDEX = 2**30
_typed: set[str] = set()
_failed: dict[str, tuple[float, str]] = {}


def is_address(root: str) -> bool:
    """Whether a root is not a folder but an address, or a command after ``pipe:``."""
    return re.match(r"(?:[a-z][a-z0-9+.-]*://|pipe:)", root, re.IGNORECASE) is not None


def allow_typed(words: Iterable[str]) -> None:
    """Note the words of the command line: the addresses and commands among them may be opened."""
    for word in words:
        _typed.update((word, word.partition("=")[2]))


def require_typed(root: str) -> None:
    """Raise for an address that comes from a file, or is of another kind than those that are opened."""
    if not re.match(r"(https?://|pipe:)", root):
        raise ValueError(f"data.root = {root} is neither a folder nor an address (https://, http:// or pipe:)")
    if root not in _typed:
        raise ValueError(f"data.root = {root} comes from a file: an address is opened only if you type it yourself")


@dataclass(frozen=True)
class Stream:
    """Shards at an address, or from a command."""

    address: str
    folder: Path
    limit: int
    """Bytes that are kept in the folder, besides those being fetched."""

    @classmethod
    def open(cls, address: str, cache: str | None, gib: float) -> "Stream":
        """Open an address that was typed, with a part of the cache of its own."""
        require_typed(address)
        if cache is None:
            raise ValueError(f"data.root = {address} needs data.shard_cache=FOLDER, where fetched shards are kept")
        if address.startswith("pipe:") and "{shard}" not in address:
            raise ValueError(f"data.root = {address} must say where the name of a shard stands: {{shard}}")
        folder = Path(cache) / f"shards-{hashlib.blake2b(address.encode(), digest_size=8).hexdigest()}"
        make_folder(folder)
        return cls(address, folder, int(gib * 2**30))

    def locate(self, name: str) -> str:
        """The address or command of a shard."""
        if self.address.startswith("pipe:"):
            return self.address.replace("{shard}", name)
        return f"{self.address.rstrip('/')}/{quote(name)}"

    def check_size(self, name: str, size: int) -> None:
        """Raise for a shard that the cache cannot hold."""
        if size > self.limit:
            raise ValueError(
                f"{name} has {size:,} bytes, more than data.shard_cache_gib = {self.limit / 2**30:g} allows"
            )

    def read_index(self) -> bytes:
        """Fetch ``shards.json``."""
        path = self.folder / "shards.json"
        try:
            self._fetch_to(path, "shards.json", None)
        except OSError as error:
            raise UnreadableError(self.locate("shards.json"), error) from None
        return path.read_bytes()

    def fetch(self, name: str, size: int) -> Path:
        """The local copy of a shard, which is fetched unless it is there. Other processes may ask for it, too."""
        path = self.folder / quote(name, safe="")
        if not _touch(path, size):
            with FileLock(self.folder / f".{path.name}.lock"):
                if not _touch(path, size):
                    self._make_room(size)
                    self._fetch_to(path, name, size)
        return path

    def _make_room(self, size: int) -> None:
        """Remove the shards that were not used for the longest time."""
        with FileLock(self.folder / ".room.lock"):
            kept = sorted((_status(path) for path in self.folder.glob("*.tar")), key=lambda found: found[1])
            used = sum(bytes_ for bytes_, _, _ in kept)
            for bytes_, _, path in kept:
                if used + size <= self.limit:
                    break
                path.unlink(missing_ok=True)
                used -= bytes_

    def _fetch_to(self, path: Path, name: str, size: int | None) -> None:
        """Fetch a file, in several attempts."""
        where = self.locate(name)
        since, reason = _failed.get(where, (-RETRY_AFTER, ""))
        if time.monotonic() - since < RETRY_AFTER:
            raise OSError(reason)
        for attempt in range(TRIES):
            time.sleep(WAIT * 2 ** (attempt - 1) if attempt else 0)
            try:
                return write_whole(path, lambda part: self._copy(name, part, size))
            except (OSError, HTTPException, ValueError) as error:
                reason = str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
        reason = f"it cannot be fetched: {reason} (tried {TRIES} times)"
        _failed[where] = time.monotonic(), reason
        raise OSError(reason)

    def _copy(self, name: str, part: Path, size: int | None) -> None:
        """Copy a file, which must have this size."""
        most = MAX_INDEX if size is None else size
        with self._opened(name) as source, part.open("xb") as file:
            while block := source.read(min(2**20, most + 1 - file.tell())):
                file.write(block)
            found = file.tell()
        if found > most or (size is not None and found < size):
            raise OSError(f"{found:,} bytes came{' or more' if found > most else ''}, not {most:,}")

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        """Open the answer of the address, or the output of the command."""
        if not self.address.startswith("pipe:"):
            with urllib.request.urlopen(self.locate(name), timeout=TIMEOUT) as answer:  # noqa: S310  # http(s), typed
                yield answer
            return
        # The name is put into words that are split already, and no shell sees it unless the user has typed one.
        command = [word.replace("{shard}", name) for word in shlex.split(self.address.removeprefix("pipe:"))]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            timer = threading.Timer(COMMAND_TIMEOUT, process.kill)
            timer.start()
            try:
                yield process.stdout
                process.stdout.close()
                if status := process.wait():
                    raise OSError(f"the command ended with status {status}")
            finally:
                timer.cancel()
                process.kill()


@dataclass(frozen=True)
class RemoteShard:
    """A shard of a stream."""

    stream: Stream
    name: str
    size: int

    def open(self) -> io.FileIO:
        for _ in range(TRIES):
            with suppress(FileNotFoundError):  # another process may have removed it to make room
                return io.FileIO(self.stream.fetch(self.name, self.size))
        raise OSError("it is removed as soon as it is fetched: data.shard_cache_gib is too small")

    def __str__(self) -> str:
        return self.stream.locate(self.name)


def _touch(path: Path, size: int) -> bool:
    """Note that a file is used; False if there is none of this size."""
    with suppress(FileNotFoundError):
        if path.stat().st_size == size:
            os.utime(path)
            return True
    return False


def _status(path: Path) -> tuple[int, int, Path]:
    """Size and time of a file, which may have been removed by now."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0, path
    return status.st_size, status.st_mtime_ns, path
