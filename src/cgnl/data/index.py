"""What a dataset is before anything is decoded: classes, splits, and a file for each sample."""

from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, Literal, NamedTuple

from ..spelling import first_line, printable

Kind = Literal["images", "videos", "objects"]
"""What is to be named: pictures, clips, or the objects in pictures."""


class UnreadableError(ValueError):
    """A sample that cannot be decoded. The message is one sentence that names the file."""

    def __init__(self, path: Path | str, reason: object):
        super().__init__(printable(f"{path} cannot be read: {first_line(reason)}"))
        self.path = path


class Sample(NamedTuple):
    """A file, or a folder of frames, and the number of its class."""

    path: Path
    label: int

    @property
    def labels(self) -> tuple[int, ...]:
        """The numbers of all classes in it."""
        return (self.label,)


class Object(NamedTuple):
    """An annotation in COCO's terms."""

    id: int
    label: int
    """The number of its class, from 0 on; not COCO's category_id."""
    box: tuple[float, float, float, float]
    """Left, top, width, height."""
    segmentation: Any
    """Polygons, or a run-length encoding."""
    area: float
    crowd: bool = False
    """Many objects in one: it is not trained on, and what is found in it is no mistake."""


class Scene(NamedTuple):
    """A picture with objects in it."""

    path: Path
    id: int
    height: int
    width: int
    objects: tuple[Object, ...]

    @property
    def labels(self) -> tuple[int, ...]:
        """The numbers of the classes of its objects."""
        return tuple(thing.label for thing in self.objects)


@dataclass(frozen=True)
class Index:
    """A dataset by its files."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[Any, ...]]
    """``"train"`` and ``"test"``, and what else there is: ``Sample``s, or ``Scene``s where the kind is objects."""
    kind: Kind
    problems: tuple[str, ...] = field(default=())
    """One sentence for each thing that is not as it should be, such as a label without its file."""
    ids: tuple[int, ...] = ()
    """What the dataset itself calls its classes, if that is a number: COCO's category_id."""


def inside(name: str, source: Path) -> str:
    """A name from an annotation file, if it stays inside the dataset."""
    path = PureWindowsPath(name)
    if path.anchor or ".." in path.parts:
        raise ValueError(f"{source} names {name!r}, which is outside the dataset")
    return name
