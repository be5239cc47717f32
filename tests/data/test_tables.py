"""Folders of Hugging Face's datasets, written by their own library."""

import io
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from cgnl.data.index import Sample, UnreadableError
from cgnl.data.sources import FileSource
from cgnl.data.tables import Cell, hf

FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})


def picture(shade: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (shade, 0, 0)).save(file, "png")
    return {"bytes": file.getvalue(), "path": None}


def table(shades: list[int], labels: list[int | None], features: datasets.Features = FEATURES) -> datasets.Dataset:
    rows = {"image": [picture(shade) for shade in shades], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


def write(root: Path, **splits: datasets.Dataset) -> Path:
    datasets.DatasetDict(splits.items()).save_to_disk(root)
    return root


def test_splits_labels_and_pixels(tmp_path):
    root = write(tmp_path / "a", train=table([5, 6, 7], [1, 0, 1]), validation=table([9], [0]), extra=table([1], [0]))
    index = hf(root)
    assert (index.classes, index.kind) == (("cat", "dog"), "images")
    assert {split: [s.label for s in samples] for split, samples in index.splits.items()} == {
        "train": [1, 0, 1],
        "test": [0],
    }
    (ignored,) = index.problems
    assert "extra" in ignored
    source = FileSource(index.splits["train"], index.kind)
    assert [int(source.read(n, range)[0, 0, 0]) for n in range(3)] == [5, 6, 7]
    assert source.name(1) == f"{root}/train/1"


def test_single_table_and_missing_labels(tmp_path):
    table([1, 2, 3], [0, None, -1]).save_to_disk(tmp_path / "a")
    index = hf(tmp_path / "a")
    assert [(s.path.file, s.label) for s in index.splits["train"]] == [("train/0", 0)]
    assert index.problems == ("train: 2 samples without a class",)


def test_sample_without_bytes_is_unreadable(tmp_path):
    cells = [{"bytes": None, "path": "/etc/passwd"}, {"bytes": b"text", "path": None}]
    source = FileSource([Sample(Cell(tmp_path, f"train/{row}", row, cells), 0) for row in range(2)], "images")
    with pytest.raises(UnreadableError, match="its bytes are not in the table"):
        source.read(0, range)
    with pytest.raises(UnreadableError, match="train/1 cannot be read: it is not an image"):
        source.read(1, range)


def test_refusals(tmp_path):
    plain = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    other = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["dog", "cat"])})
    for root, words in (
        (write(tmp_path / "plain", train=table([1], [0], plain)), "one column of ClassLabel, not 0"),
        (write(tmp_path / "other", train=table([1], [0]), test=table([1], [0], other)), "different classes"),
        (write(tmp_path / "test", test=table([1], [0])), "no split called train"),
    ):
        with pytest.raises(ValueError, match=words):
            hf(root)


@pytest.mark.parametrize("name", ["../b.arrow", "/etc/passwd"])
def test_names_that_lead_out_are_refused(tmp_path, name):
    root = write(tmp_path / "a", train=table([1], [0]))
    state = root / "train" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"_data_files": [{"filename": name}]}))
    with pytest.raises(ValueError, match="outside the dataset"):
        hf(root)


@pytest.mark.parametrize("file", ["dataset_dict.json", "train/state.json", "train/dataset_info.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"splits": 3, "_data_files": 3}', "[" * 99_999])
def test_damaged_folder_is_refused_in_one_sentence(tmp_path, file, content):
    root = write(tmp_path / "a", train=table([1], [0]))
    (root / file).write_text(content)
    with pytest.raises(ValueError, match=str(root)) as raised:
        hf(root)
    assert "\n" not in str(raised.value)


def test_damaged_table_is_refused_in_one_sentence(tmp_path):
    root = write(tmp_path / "a", train=table([1], [0]))
    (data,) = root.glob("train/*.arrow")
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ValueError, match="save_to_disk wrote"):
        hf(root)


def test_address_is_no_folder():
    with pytest.raises(ValueError, match="is not a folder"):
        hf("hf://datasets/cats")
