"""``cgnl data pack``: a dataset as tar shards, which WebDataset and we read. The same dataset gives the same bytes."""

import io
import json
import tarfile  # noqa: TID251  # written alone
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..atomic_io import make_folder, whole_file, write_text
from ..text import counted
from .index import DatasetIndex, File, Sample, StoredFile, require_new_folder, require_outside
from .shards import BLOCK, CLASSES, INDEX


class Packed(NamedTuple):
    """What was written."""

    shards: int
    samples: int
    bytes: int


class Name(NamedTuple):
    """The names of a sample."""

    file: str
    """In the dataset."""
    key: str
    """In its shard: with the folder, and without a dot in the last part, where WebDataset begins the suffix."""
    suffix: str


def pack(
    index: DatasetIndex, root: Path | str, out: Path | str, shard_mib: float = 64, say: Callable[[str], None] = print
) -> Packed:
    """Write the samples of each split, in their order, into ``train-000000.tar`` and so on.

    A sample is its file as it is, and ``key.cls`` with the number of its class. ``classes.txt`` names the classes, and
    ``shards.json``, which is written last, says where each sample is.

    Args:
        index: the dataset.
        root: its folder, which names of samples are relative to.
        out: a new folder.
        shard_mib: most MiB in a shard, unless a single sample has more.
        say: called with a line for each shard.
    """
    if shard_mib <= 0:
        raise ValueError(f"shard_mib = {shard_mib} must be more than 0")
    if index.is_detection:
        raise ValueError(f"{root} holds objects, and shards hold images or clips with one class each")
    folders = [s.path for samples in index.splits.values() for s in samples if s.path.is_dir()]
    if folders:
        raise ValueError(f"{folders[0]} is a folder of frames, and shards hold files: make a video of each clip first")
    if odd := [name for name in index.classes if name.strip() != name or "\n" in name]:
        raise ValueError(f"the name of class {odd[0]!r} cannot stand in a line of {CLASSES}")
    out = require_new_folder(require_outside(out, root))
    make_folder(out)
    entries = []
    for split, samples in index.splits.items():
        names = name_all(samples, Path(root), index.classes)
        parts = divide([_padded(sample.path) for sample in samples], int(shard_mib * 2**20))
        for number, part in enumerate(parts):
            path = out / f"{split}-{number:06}.tar"
            rows = _write(path, [(samples[i], names[i]) for i in part])
            entries.append({"file": path.name, "split": split, "bytes": path.stat().st_size, "samples": rows})
            say(f"{path}: {counted(len(rows), 'sample')}, {path.stat().st_size / 2**20:,.1f} MiB")
    write_text(out / CLASSES, "".join(f"{name}\n" for name in index.classes), "surrogateescape")
    counts = {split: len(samples) for split, samples in index.splits.items()}
    table = {"version": 1, "kind": index.kind, "classes": index.classes, "counts": counts, "shards": entries}
    write_text(out / INDEX, json.dumps(table, separators=(",", ":")) + "\n")
    return Packed(len(entries), sum(counts.values()), sum(entry["bytes"] for entry in entries))


def name_all(samples: Iterable[Sample], root: Path, classes: tuple[str, ...]) -> list[Name]:
    """Name the samples; keys that would be the same get a number."""
    names, used = [], set()
    for sample in samples:
        path = sample.path
        if isinstance(path, StoredFile):
            file = path.file
        elif path.is_relative_to(root):
            file = path.relative_to(root).as_posix()
        else:
            file = f"{classes[sample.label]}/{path.name}"
        name = PurePosixPath(file)
        stem = plain = str(name.with_name(name.name.removesuffix(name.suffix).replace(".", "_")))
        number = 1
        while stem in used:
            stem, number = f"{plain}-{number + 1}", number + 1
        used.add(stem)
        names.append(Name(file, stem, name.suffix.lower()))
    return names


def divide(sizes: Iterable[int], limit: int) -> Iterator[list[int]]:
    """Divide samples of these sizes, in their order, into parts below a limit; a larger one is a part by itself."""
    part: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        if part and total + size > limit:
            yield part
            part, total = [], 0
        part.append(number)
        total += size
    if part:
        yield part


def _padded(path: File) -> int:
    """The bytes of a sample in a shard: two headers, its label, and its file in whole blocks."""
    size = len(path.read_bytes()) if isinstance(path, StoredFile) else path.stat().st_size
    return 3 * BLOCK + -(-size // BLOCK) * BLOCK


def _write(path: Path, samples: list[tuple[Sample, Name]]) -> list[tuple[str, int, int, int]]:
    """Write a shard; returns file, offset, size and label of each sample."""
    rows = []
    with whole_file(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for sample, name in samples:
            content = sample.path.read_bytes()
            rows.append((name.file, _add(archive, f"{name.key}{name.suffix}", content), len(content), sample.label))
            _add(archive, f"{name.key}.cls", str(sample.label).encode())
    return rows


def _add(archive: Any, name: str, content: bytes) -> int:
    """Add a file of no owner and no time; returns where its content begins."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(content), 0o644
    archive.addfile(header, io.BytesIO(content))
    return archive.offset - -(-len(content) // BLOCK) * BLOCK
