"""A dataset before anything is decoded: classes, splits, and the file of each sample."""

import hashlib
import io
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

from ..text import counted, first_line, printable

T = TypeVar("T")
Kind = Literal["images", "videos", "objects"]
"""Classify images, classify videos, or detect objects in images."""
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
OTHER_SUFFIXES = frozenset({".avif", ".heic", ".heif", ".jp2", ".jxl"})
"""Image formats that are not read."""
VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm", ".wmv"}
)
SYSTEM_FOLDERS = ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found")
"""Folders that operating systems leave behind."""
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation", "eval")
"""Names of a split to test on; the first that is there is the test split."""
SPLITS = ("train", *TEST_FOLDERS)
FINGERPRINT = 64
"""Files in a fingerprint."""
MAX_NAMED = 10
"""Problems of a kind that are described one by one; the rest are counted."""


class StoredFile:
    """A file inside another, such as a member of a tar file, with the methods of ``Path`` that readers use.

    It is read in place and never unpacked.
    """

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


def is_image_file(path: Path | str) -> bool:
    """Whether the name is that of an image. Hidden files, such as ``._cat.jpg``, are not."""
    return has_suffix(path, IMAGE_SUFFIXES)


def has_suffix(path: Path | str, suffixes: Set[str]) -> bool:
    """Whether a file has one of these suffixes, in either case, and is not hidden."""
    name = PurePath(path)
    return name.suffix.lower() in suffixes and not name.name.startswith(".")


def is_video_file(path: Path | str) -> bool:
    """Whether the name is that of a video file. Hidden files are not."""
    return has_suffix(path, VIDEO_SUFFIXES)


CANNOT = " cannot be read: "


class UnreadableError(ValueError):
    """A sample that cannot be decoded. The message is one sentence with the file and the reason."""

    def __init__(self, path: object, reason: object):
        reason = getattr(reason, "strerror", None) or reason  # without the error number and the file name
        super().__init__(printable(f"{path}{CANNOT}{first_line(reason)}"))
        self.path = path


def refuse_endless(path: object) -> None:
    """Raise for pipes and devices, whose content may never come or never end."""
    if isinstance(path, str | Path) and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UnreadableError(path, "it is a pipe or a device")


class Sample(NamedTuple):
    """An image, a video file or a folder of frames, and its class index."""

    path: File
    label: int

    @property
    def labels(self) -> tuple[int, ...]:
        """All class indices in the sample."""
        return (self.label,)


class Object(NamedTuple):
    """A COCO annotation."""

    id: int
    label: int
    """Class index from 0, not COCO's category_id."""
    box: tuple[float, float, float, float]
    """Left, top, width, height."""
    segmentation: Any
    """Polygons or a run-length encoding."""
    area: float
    crowd: bool = False
    """Many objects in one: not trained on, and a detection inside it is not an error."""


class Scene(NamedTuple):
    """An image with its annotated objects."""

    path: Path
    id: int
    height: int
    width: int
    objects: tuple[Object, ...]

    @property
    def labels(self) -> tuple[int, ...]:
        """The class indices of the objects without crowds, which nothing is trained on."""
        return tuple(thing.label for thing in self.objects if not thing.crowd)


@dataclass(frozen=True)
class DatasetIndex:
    """A dataset as a list of files."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[Any, ...]]
    """``"train"``, ``"test"`` and any others: ``Sample``s, or ``Scene``s if the kind is objects."""
    kind: Kind
    problems: tuple[str, ...] = ()
    """One sentence per problem, such as a label without a file."""
    ids: tuple[int, ...] = ()
    """COCO's category_id of each class."""

    @property
    def is_detection(self) -> bool:
        """Whether its samples are scenes of objects."""
        return self.kind == "objects"

    @property
    def has_clips(self) -> bool:
        """Whether its samples are video files or folders of frames."""
        return self.kind == "videos"

    @property
    def unit(self) -> str:
        """What is labelled and counted."""
        return "object" if self.is_detection else "sample"


def hold_out(index: DatasetIndex, share: float) -> DatasetIndex:
    """Move a share of each class (of all images if they hold objects) from train to test, but never all of it.

    The choice depends on file names alone, so files added later do not mix training and test samples.
    """
    by_class: dict[int, list[Sample | Scene]] = defaultdict(list)
    for sample in index.splits["train"]:
        by_class[_stratum(sample)].append(sample)
    held_out: set[File] = set()
    for samples in by_class.values():
        count = min(max(1, round(share * len(samples))), len(samples) - 1) if share else 0
        held_out.update(sample.path for sample in sorted(samples, key=_digest)[:count])
    train = tuple(sample for sample in index.splits["train"] if sample.path not in held_out)
    test = tuple(sample for sample in index.splits["train"] if sample.path in held_out)
    return replace(index, splits=index.splits | {"train": train, "test": test})


def limit_training(index: DatasetIndex, limit: int) -> DatasetIndex:
    """Keep no more than ``limit`` training samples, spread over the classes as evenly as possible."""
    seen: Counter[int] = Counter()
    turns: dict[File, int] = {}
    for sample in sorted(index.splits["train"], key=_digest):
        seen[_stratum(sample)] += 1
        turns[sample.path] = seen[_stratum(sample)]
    chosen = set(sorted(turns, key=turns.__getitem__)[:limit])
    train = tuple(sample for sample in index.splits["train"] if sample.path in chosen)
    return replace(index, splits=index.splits | {"train": train})


def fingerprint(samples: Sequence[Sample | Scene]) -> dict[str, int]:
    """The sizes of a few files by digests of their names, which tell a dataset from others wherever it is."""
    return {_digest(sample).hex(): _size(sample.path) for sample in sorted(samples, key=_digest)[:FINGERPRINT]}


def fits_fingerprint(samples: Sequence[Sample | Scene], known: Mapping[str, int]) -> bool:
    """Whether most files of a fingerprint are among the samples: some may have been added or removed since."""
    found = {digest: sample.path for sample in samples if (digest := _digest(sample).hex()) in known}
    return 2 * sum(_size(path) == known[digest] for digest, path in found.items()) > len(known)


def _size(path: File) -> int:
    """Bytes of a file, or of those in a folder of frames; those of files in others are not counted."""
    if not isinstance(path, Path):
        return 0
    return sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file())


def _stratum(sample: Sample | Scene) -> int:
    """The class of a sample; images with objects of many classes are all one stratum."""
    return 0 if isinstance(sample, Scene) else sample.label


def _digest(sample: Sample | Scene) -> bytes:
    return hashlib.blake2b(f"{sample.path.parent.name}/{sample.path.name}".encode(errors="surrogateescape")).digest()


class Folder(NamedTuple):
    """A folder, its files and its folders, by name."""

    path: Path
    files: list[Path]
    folders: list[Path]


def walk(root: Path, ignored: set[str] | None = None) -> Iterator[Folder]:
    """Yield a folder and all folders in it. Links are followed, but not in a circle.

    Hidden files and folders, ``SYSTEM_FOLDERS``, pipes and devices are skipped; their names are added to ``ignored``.
    """
    ahead: list[tuple[Path, frozenset[Path]]] = [(root, frozenset())]
    while ahead:
        place, above = ahead.pop()
        above |= {place.resolve()}
        files, folders = [], []
        with os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = Path(entry.path)
                if entry.name.startswith(".") or entry.name in SYSTEM_FOLDERS:
                    if ignored is not None and not entry.name.startswith(".cgnl-"):  # our own
                        ignored.add(entry.name)
                elif not entry.is_dir():
                    if entry.is_file() or not path.exists():  # a broken link is named when it is read
                        files.append(path)
                    elif ignored is not None:  # a pipe or a device, which may have no end
                        ignored.add(entry.name)
                elif path.resolve() not in above:
                    folders.append(path)
        yield Folder(place, files, folders)
        ahead += [(path, above) for path in reversed(folders)]


def name_splits(found: Mapping[str, T]) -> dict[str, T]:
    """Name the splits: the first of ``TEST_FOLDERS`` that was found is called ``test``. Empty ones are left out."""
    splits = {"train": found["train"]}
    for name in TEST_FOLDERS:
        if found.get(name):
            splits[name if "test" in splits else "test"] = found[name]
    return splits


def sort_classes(labels: Iterable[str]) -> list[str]:
    """Names of classes in order: by number if all are numbers, else by name."""
    labels = list(labels)
    numbers = all(label.isascii() and label.isdigit() and len(label) < 10 for label in labels)
    return sorted(labels, key=lambda label: (int(label), label)) if numbers else sorted(labels)


def find_untrained(index: DatasetIndex) -> tuple[str, ...]:
    """The classes without a training sample."""
    trained = {label for sample in index.splits["train"] for label in sample.labels}
    return tuple(name for label, name in enumerate(index.classes) if label not in trained)


def decide_kind(source: object, image: object, video: object) -> Kind:
    """The kind of a dataset, from an example of each that was found; raises for a mix."""
    if image and video:
        raise ValueError(f"{source} mixes images ({image}) and videos ({video})")
    return "videos" if video else "images"


def name_some(names: Sequence[str], most: int = 3) -> str:
    """``a, b, c and 4 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def count_skipped(skipped: Sequence[object], thing: str, why: str) -> list[str]:
    """A sentence on what was skipped, with the first as an example, or none."""
    return [f"{counted(len(skipped), thing)} {why}, such as {skipped[0]}"] if skipped else []


def read_names(path: Path) -> list[str]:
    """The names in a text file, one a line."""
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None


def require_inside(name: str, source: Path) -> str:
    """Return a name from an annotation file, or raise if it leads out of the dataset."""
    path = PureWindowsPath(name)
    if path.anchor or ".." in path.parts:
        raise ValueError(f"{source} names {name!r}, which is outside the dataset")
    return name


def require_folder(path: Path | str) -> Path:
    """Return the path, or raise if it is not a folder."""
    if not Path(path).is_dir():
        raise ValueError(f"{path} is not a folder")
    return Path(path)


def require_file(path: Path | str) -> Path:
    """Return the path, or raise if it is not a file."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    return Path(path)


def require_there(path: Path | str) -> Path:
    """Return the path, or raise if there is neither a file nor a folder."""
    if not Path(path).exists():
        raise ValueError(f"there is no {path}")
    return Path(path)


def require_outside(target: Path | str, *inputs: Path | str) -> Path:
    """Return the path to write to, or raise if it is one of the inputs, or within one: nothing may change them."""
    whole = Path(target).resolve()
    for path in inputs:
        if whole.is_relative_to(Path(path).resolve()):
            if Path(path).is_dir():
                raise ValueError(f"{target} is within {path}, which is only read: choose a place outside")
            raise ValueError(f"{target} is what is read: choose another place")
    return Path(target)


def require_new_folder(path: Path | str) -> Path:
    """Return the path, or raise if it exists and is not an empty folder."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there already")
    return path
