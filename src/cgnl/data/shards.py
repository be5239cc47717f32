"""Tar shards as WebDataset has them: samples ``key.jpg`` with ``key.cls`` or ``key.json``.

A shard is read by random access, from an index of (file, offset, size, label): ``shards.json``, or its headers, read
once. So a sample has the same number as in the folder that the shards were packed from, and everything that follows
from the number is the same. Nothing is ever unpacked: of ``tarfile`` only the parser of headers is used.
"""

import io
import json
import os
import re
import tarfile  # noqa: TID251  # the headers alone
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..text import counted, first_line
from .index import (
    SPLITS,
    DatasetIndex,
    Sample,
    StoredFile,
    UnreadableError,
    decide_kind,
    is_image_file,
    is_video_file,
    name_some,
    name_splits,
    read_names,
    require_inside,
    sort_classes,
)
from .streams import RemoteShard, Stream, is_address

INDEX, CLASSES = "shards.json", "classes.txt"
BLOCK = tarfile.BLOCKSIZE
MAX_HEADER, MAX_LABEL, MAX_NAME = 2**16, 2**20, 1000
"""Most bytes of a long name, of a label's file, and most characters of a label."""
MAX_SHARDS = 100_000
MAX_OPEN = 64
"""Shards that a process keeps open."""


@lru_cache(MAX_OPEN)
def _open(path: Path) -> io.FileIO:
    """Open a shard, which is closed when it is neither among the last nor in use."""
    return io.FileIO(path)


@dataclass(frozen=True)
class Member(StoredFile):
    """A file in a shard."""

    shard: Path | RemoteShard
    file: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.shard}/{self.file}"

    def read_bytes(self) -> bytes:
        shard = _open(self.shard) if isinstance(self.shard, Path) else self.shard.open()
        found = os.pread(shard.fileno(), BLOCK + self.size, self.offset - BLOCK)
        if len(found) < BLOCK + self.size:
            raise UnreadableError(self, "the shard ends before it does")
        if _read_size(found) != self.size:
            raise UnreadableError(self, f"there is no such file at byte {self.offset:,} of the shard")
        return found[BLOCK:]


# Scanning


class Entry(NamedTuple):
    """A regular file in a shard."""

    name: str
    offset: int
    size: int


class Scan(NamedTuple):
    """The contents of a shard by its headers."""

    entries: list[Entry]
    ignored: list[str]
    """Links, devices, and paths outside the shard."""
    damage: str | None
    """Why reading stopped early."""


def scan(path: Path) -> Scan:
    """Read the headers of a tar file, up to its end or the first damage."""
    with path.open("rb", buffering=0) as file:
        found, place, long_name, length = Scan([], [], None), 0, None, os.fstat(file.fileno()).st_size
        while (block := os.pread(file.fileno(), BLOCK, place)) != bytes(BLOCK):
            header = _parse(block)
            if header is None:
                return found._replace(damage=f"it ends or is damaged at byte {place:,}")
            start = place + BLOCK
            content = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES or header.type in _NAMES
            place = start + -(-header.size // BLOCK) * BLOCK * content
            if header.size < 0 or header.issparse() or (content and start + header.size > length):
                return found._replace(damage=f"it ends or is damaged within {long_name or header.name}")
            if header.type in _NAMES:
                if header.size > MAX_HEADER:
                    return found._replace(damage=f"it has a header of {header.size:,} bytes")
                long_name = _read_name(header.type, os.pread(file.fileno(), header.size, start)) or long_name
                continue
            name, long_name = PurePosixPath(long_name or header.name), None
            if header.isreg() and not name.is_absolute() and ".." not in name.parts:
                found.entries.append(Entry(str(name), start, header.size))
            elif not header.isdir():
                found.ignored.append(str(name))
        return found


_NAMES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
"""Types of headers that belong to the next one."""


def _parse(block: bytes) -> tarfile.TarInfo | None:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None


def _read_size(block: bytes) -> int | None:
    """The size in a header: to parse all of it takes as long as to open a file."""
    try:
        return tarfile.nti(block[124:136])  # pyright: ignore[reportAttributeAccessIssue]
    except tarfile.HeaderError:
        return None


def _read_name(kind: bytes, content: bytes) -> str | None:
    """The name of the next member in a header of GNU or pax."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return content.rstrip(b"\0").decode("utf-8", "surrogateescape")
    found = re.search(rb"^\d+ path=([^\n]+)\n", content, re.MULTILINE) if kind == tarfile.XHDTYPE else None
    return found and found[1].decode("utf-8", "surrogateescape")


# Samples


class Row(NamedTuple):
    """A sample in a shard, with the text of its label."""

    entry: Entry
    label: str


@lru_cache(MAX_SHARDS)
def read_rows(path: Path, _size: int, _time: int) -> tuple[list[Row], list[str]]:
    """The samples and problems of a tar file of this size and time; it is scanned again only if they change."""
    entries, ignored, damage = scan(path)
    samples: dict[str, dict[str, Entry]] = {}
    twice, without, rows = [], [], []
    for entry in entries:
        folder, _, base = entry.name.rpartition("/")
        stem, _, kind = base.partition(".")
        parts = samples.setdefault(f"{folder}/{stem}", {})
        if parts.setdefault(kind.lower(), entry) is not entry:
            twice.append(entry.name)
    with path.open("rb", buffering=0) as file:
        for parts in samples.values():
            plain_first = sorted(parts, key=lambda kind: kind.count("."))  # png before depth.png
            media = [e for e in map(parts.__getitem__, plain_first) if is_image_file(e.name) or is_video_file(e.name)]
            label = _read_label(file.fileno(), parts)
            if media and label is not None:
                rows.append(Row(media[0], label))
            elif media:
                without.append(media[0].name)
            twice += [entry.name for entry in media[1:]]
    problems = [f"{path}: {damage}; the samples before that are used"] if damage else []
    for names, thing, what in (
        (ignored, "file", "ignored, links or paths outside the shard"),
        (twice, "file", "ignored, second files of a sample"),
        (without, "sample", "without a .cls or .json label"),
    ):
        problems += [f"{path}: {counted(len(names), thing)} {what}: {name_some(names)}"] if names else []
    return rows, problems


def _read_label(file: int, parts: Mapping[str, Entry]) -> str | None:
    """The label of a sample as text: of ``cls``, or of ``label`` in ``json``."""
    entry = parts.get("cls") or parts.get("json")
    if entry is None or entry.size > MAX_LABEL:
        return None
    text = os.pread(file, entry.size, entry.offset).decode("utf-8", "replace").strip()
    if "cls" not in parts:
        try:
            label = json.loads(text).get("label")
        except (AttributeError, ValueError, RecursionError):
            return None
        text = str(label).strip() if type(label) in (int, str) else ""
    return text if 0 < len(text) <= MAX_NAME else None


# Datasets


def shards(root: Path | str, shard_cache: str | None = None, shard_cache_gib: float = 64.0) -> DatasetIndex:
    """Tar shards in a folder or by a pattern such as ``shards/{000000..000007}.tar``, or a stream of them.

    A split is the first word of a shard's name or folder: train, test or val; other shards are for training.

    Args:
        root: the folder or pattern; or the address of a folder, or ``pipe:`` and a command with ``{shard}``.
        shard_cache: the folder where shards of a stream are kept.
        shard_cache_gib: how much is kept there, in GiB.
    """
    if is_address(str(root)):
        stream = Stream.open(str(root), shard_cache, shard_cache_gib)
        return read_index(stream.read_index(), f"{INDEX} of {root}", stream)
    if Path(root).is_dir():
        found = sorted(path for depth in ("*.tar", "*/*.tar") for path in Path(root).glob(depth))
        home, wanted = Path(root), None
    elif "{" in str(root) or str(root).endswith(".tar"):
        found = [Path(name) for name in expand(str(root))]
        home = Path(os.path.commonpath([path.parent for path in found]))
        wanted = {path.relative_to(home).as_posix() for path in found}
    else:
        raise ValueError(f"{root} is not a folder")
    if (home / INDEX).is_file():
        return read_index((home / INDEX).read_bytes(), str(home / INDEX), home, wanted)
    if not found:
        raise ValueError(f"{root} holds no shards (.tar)")
    return _index_scanned(root, home, found)


def expand(pattern: str) -> list[str]:
    """Write out ``{000..012}`` and ``{train,test}``."""
    names, waiting = [], [pattern]
    while waiting:
        name = waiting.pop()
        found = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", name)
        if found is None:
            names.append(name)
            continue
        first, last, words = found.groups()
        if words is None and int(last) - int(first) >= MAX_SHARDS:
            raise ValueError(f"{pattern} stands for more than {MAX_SHARDS:,} shards")
        numbers = (f"{n:0{len(first)}}" for n in range(int(first or 0), int(last or 0) + 1))
        choices = numbers if words is None else words.split(",")
        waiting += reversed([name[: found.start()] + choice + name[found.end() :] for choice in choices])
        if len(waiting) + len(names) > MAX_SHARDS:
            raise ValueError(f"{pattern} stands for more than {MAX_SHARDS:,} shards")
    if not names:
        raise ValueError(f"{pattern} stands for no shard")
    return names


def is_there(root: str) -> bool:
    """Whether a dataset's folder is on this machine, or the first shard of a pattern."""
    return Path(root).exists() or ("{" in root and not is_address(root) and Path(expand(root)[0]).exists())


def find_split(name: str) -> str:
    """The split that the name of a shard begins with."""
    word = re.match("[a-z]+", name.lower())
    return word[0] if word and word[0] in SPLITS else "train"


def _index_scanned(root: Path | str, home: Path, paths: list[Path]) -> DatasetIndex:
    """Build the index from the shards themselves, and ``classes.txt`` where there is one."""
    problems: list[str] = []
    listed: dict[str, list[tuple[Path, Row]]] = {split: [] for split in SPLITS}
    for path in paths:
        try:
            status = path.stat()
            rows, found = read_rows(path, status.st_size, status.st_mtime_ns)
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or first_line(error)}")
            continue
        problems += found
        listed[find_split(path.relative_to(home).as_posix())] += [(path, row) for row in rows]
    every = [(path, row) for rows in listed.values() for path, row in rows]
    if not every:
        raise ValueError(f"{root} holds no samples: {problems[0] if problems else 'the shards are empty'}")
    classes = _read_classes(home / CLASSES) or sort_classes({row.label for _, row in every})
    number_of = {str(number): number for number in range(len(classes))} if (home / CLASSES).is_file() else {}
    number_of |= {name: number for number, name in enumerate(classes)}
    if unknown := [f"{path}/{row.entry.name} ({row.label})" for path, row in every if row.label not in number_of]:
        problems.append(f"{counted(len(unknown), 'sample')} of no class of {home / CLASSES}: {name_some(unknown)}")
    image, video = (
        next((f"{path}/{entry.name}" for path, (entry, _) in every if is_kind(entry.name)), None)
        for is_kind in (is_image_file, is_video_file)
    )
    splits = {
        split: tuple(
            Sample(Member(path, *entry), number_of[label]) for path, (entry, label) in rows if label in number_of
        )
        for split, rows in listed.items()
    }
    return DatasetIndex(tuple(classes), name_splits(splits), decide_kind(root, image, video), tuple(problems))


def _read_classes(path: Path) -> list[str]:
    """The names in ``classes.txt``, one a line."""
    names = read_names(path) if path.is_file() else []
    if len(set(names)) < len(names):
        raise ValueError(f"{path} names a class twice")
    return names


# shards.json


def read_index(content: bytes, source: str, home: Path | Stream, wanted: set[str] | None = None) -> DatasetIndex:
    """The index of shards in ``shards.json``, which is not trusted."""
    try:
        table = json.loads(content)
        classes, kind, listed = tuple(table["classes"]), table["kind"], table["shards"]
        if kind not in ("images", "videos") or {str} != set(map(type, classes)) or len(set(classes)) < len(classes):
            raise ValueError("its classes are not names")
        problems: list[str] = []
        splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
        for entry in listed:
            if wanted is None or entry["file"] in wanted:
                splits[entry["split"]] += _read_entry(entry, len(classes), home, problems)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        reason = first_line(error) if type(error) is ValueError else "it is damaged"
        raise ValueError(f"{source} is not an index of shards: {reason}") from None
    if not any(splits.values()):
        raise ValueError(f"{source} lists no samples")
    return DatasetIndex(
        classes, name_splits({split: tuple(rows) for split, rows in splits.items()}), kind, tuple(problems)
    )


def _read_entry(entry: Mapping[str, Any], classes: int, home: Path | Stream, problems: list[str]) -> Iterator[Sample]:
    """The samples of one shard; what is wrong with the shard itself is added to ``problems``."""
    name, size = entry["file"], entry["bytes"]
    if not re.fullmatch(
        r"[A-Za-z0-9_][\w.,+=@-]*(/[A-Za-z0-9_][\w.,+=@-]*)*\.tar", require_inside(name, Path(INDEX)), re.ASCII
    ):
        raise ValueError(f"{name!r} is not the name of a shard")
    if type(size) is not int or size < 0:
        raise ValueError(f"{name} has no size")
    shard = home / name if isinstance(home, Path) else RemoteShard(home, name, size)
    if isinstance(shard, Path):
        try:
            if (found := shard.stat().st_size) != size:
                problems.append(f"{shard} has {found:,} bytes and not {size:,}: it is damaged")
        except OSError as error:
            samples = counted(len(entry["samples"]), "sample")
            problems.append(f"{shard} cannot be read, and with it {samples}: {error.strerror}")
    else:
        shard.stream.check_size(name, size)
    for file, offset, length, label in entry["samples"]:
        if type(file) is not str or {type(offset), type(length), type(label)} != {int}:
            raise ValueError(f"a sample of {name} is not a file, offset, size and class")
        if not (BLOCK <= offset <= offset + length <= size and length >= 0 and 0 <= label < classes):
            raise ValueError(f"{file} is not within {name}, or of no class")
        yield Sample(Member(shard, file, offset, length), label)
