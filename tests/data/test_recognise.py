"""The layout of a folder, by the files in it."""

import json

import pytest

from cgnl.data.readers import READERS
from cgnl.data.recognise import MARKERS, describe_layout, recognise
from tests.data.test_readers import write


@pytest.mark.parametrize("layout", MARKERS)
def test_every_layout_with_a_marker_is_recognised(tmp_path, layout):
    marker = tmp_path / MARKERS[layout][1].replace("*", "2017")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    assert recognise(tmp_path) == (layout, {})
    assert layout in READERS


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"dataset_dict.json": "{}"}, ("hf", {})),
        ({"dataset_info.json": "{}", "state.json": "{}"}, ("hf", {})),
        ({"dataset_info.json": "{}"}, ("folder", {})),
        ({"0.tar": ""}, ("shards", {})),
        ({"train/0.tar": ""}, ("shards", {})),
        ({"annotations/train.csv": "label,youtube_id,time_start,time_end"}, ("kinetics400", {})),
        ({"my.csv": "file,label,split"}, ("csv", {"labels": "my.csv"})),
        ({"my.csv": "name,age"}, ("folder", {})),
        ({"my.json": "[1, 2]", "other.json": "{"}, ("folder", {})),
    ],
    ids=str,
)
def test_other_layouts(tmp_path, files, expected):
    for name, text in files.items():
        write(tmp_path / name, text)
    assert recognise(tmp_path) == expected


def test_one_annotation_file(tmp_path):
    write(tmp_path / "birds.json", json.dumps({"images": [], "annotations": [], "categories": []}))
    assert recognise(tmp_path) == ("coco", {"annotations": "birds.json"})


def test_describe_layout_says_what_to_type():
    said = describe_layout("csv", {"labels": "my.csv"})
    assert "dataset=csv labels=my.csv" in said
    assert "data.dataset=csv data.labels=my.csv" in said
