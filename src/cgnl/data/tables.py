"""Datasets of Hugging Face, from folders that ``save_to_disk`` wrote. Their library finds the bytes; we decode them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..extras import need
from ..text import counted, first_line
from .index import (
    SPLITS,
    DatasetIndex,
    Sample,
    StoredFile,
    UnreadableError,
    name_splits,
    require_folder,
    require_inside,
)


@dataclass(frozen=True)
class Cell(StoredFile):
    """An image in a table."""

    root: Path
    file: str
    row: int
    images: Any = field(repr=False, compare=False)
    """The column, of which each cell has ``bytes``."""

    def __str__(self) -> str:
        return f"{self.root}/{self.file}"

    def read_bytes(self) -> bytes:
        content = (self.images[self.row] or {}).get("bytes")
        if not isinstance(content, bytes):
            raise UnreadableError(self, "its bytes are not in the table")
        return content


def hf(root: Path | str) -> DatasetIndex:
    """A folder that ``save_to_disk`` wrote, with a column of images and one of class labels."""
    root = require_folder(root)
    _check_names(root)
    library = need("datasets", "hf")
    library.disable_progress_bars()
    try:
        found = library.load_from_disk(str(root))
    except Exception as error:  # of Arrow, of fsspec, or of the library itself
        raise ValueError(f"{root} is not a dataset that save_to_disk wrote: {first_line(error)}") from None
    tables = dict(found) if isinstance(found, dict) else {"train": found}
    if "train" not in tables:
        raise ValueError(f"{root} has no split called train; there is {', '.join(tables)}")
    problems = [f"split {split} of {root} is ignored" for split in tables if split not in SPLITS]
    label = _only_column(root, tables["train"], library.ClassLabel)
    classes, splits = tuple(tables["train"].features[label].names), {}
    for split in filter(tables.__contains__, SPLITS):
        table = tables[split]
        if _only_column(root, table, library.ClassLabel) != label or tuple(table.features[label].names) != classes:
            raise ValueError(f"the splits train and {split} of {root} have different classes")
        image = _only_column(root, table, library.Image)
        images = table.select_columns([image]).cast_column(image, library.Image(decode=False))[image]
        labels = list(table.select_columns([label])[label])
        known = [row for row, number in enumerate(labels) if type(number) is int and 0 <= number < len(classes)]
        splits[split] = tuple(Sample(Cell(root, f"{split}/{row}", row, images), labels[row]) for row in known)
        if without := len(labels) - len(known):
            problems.append(f"{split}: {counted(without, 'sample')} without a class")
    if not any(splits.values()):
        raise ValueError(f"{root} holds no samples with a class")
    return DatasetIndex(classes, name_splits(splits), "images", tuple(problems))


def _only_column(root: Path, table: Any, kind: type) -> str:
    """The name of the column that has this feature."""
    names = [name for name, feature in table.features.items() if isinstance(feature, kind)]
    if len(names) != 1:
        found = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in table.features.items())
        raise ValueError(f"{root} must have one column of {kind.__name__}, not {len(names)}; there is {found}")
    return names[0]


def _check_names(root: Path) -> None:
    """Raise for a folder that names files outside of it, or was not written by ``save_to_disk``."""
    files = [*root.glob("dataset_dict.json"), *root.glob("state.json"), *root.glob("*/state.json")]
    if not files:
        raise ValueError(f"{root} is not a dataset that save_to_disk wrote: it has no dataset_dict.json or state.json")
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            listed = [entry["filename"] for entry in content.get("_data_files", ())] + content.get("splits", [])
            listed = [str(name) for name in listed]
        except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            raise ValueError(f"{file} is damaged") from None
        for name in listed:
            require_inside(name, file)
