"""What a dataset is before anything is decoded: classes, splits, and a file for each sample."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple


class UnreadableError(ValueError):
    """A sample that cannot be decoded. The message is one sentence that names the file."""

    def __init__(self, path: Path | str, reason: object):
        super().__init__(f"{path} cannot be read: {str(reason).partition(chr(10))[0] or type(reason).__name__}")
        self.path = path


class Sample(NamedTuple):
    """A file, or a folder of frames, and the number of its class."""

    path: Path
    label: int


@dataclass(frozen=True)
class Index:
    """A dataset by its files."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[Sample, ...]]
    """``"train"`` and ``"test"``, and what else there is."""
    kind: Literal["images", "videos"]
    problems: tuple[str, ...] = field(default=())
    """One sentence for each thing that is not as it should be, such as a label without its file."""
