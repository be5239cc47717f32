"""Files are written whole or not at all; tests/engine/test_checkpoint.py tries what can go wrong."""

import csv

import pytest

from cgnl.engine.atomic_io import make_folder, remove_parts, write_csv, write_text


def test_write_csv_can_be_read_back(tmp_path):
    write_csv(tmp_path / "a.csv", ["name", "value"], [("a, b", 1), ('"c"\nd', None)])
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["name", "value"], ["a, b", "1"], ['"c"\nd', ""]]


def test_write_csv_keeps_the_old_file_when_a_row_fails(tmp_path):
    path = tmp_path / "a.csv"
    write_text(path, "before")
    with pytest.raises(ZeroDivisionError):
        write_csv(path, ["share"], ([1 / n] for n in (1, 0)))
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


def test_write_text_refuses_what_has_no_letters_unless_told_how(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a", "\udcff")
    write_text(tmp_path / "a", "\udcff", errors="surrogateescape")
    assert (tmp_path / "a").read_bytes() == b"\xff"


def test_remove_parts_leaves_whole_files(tmp_path):
    for name in (".last.ckpt.part", "last.ckpt", "a.part"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.part", "last.ckpt"]


def test_make_folder_names_one_that_cannot_be_written_to(tmp_path):
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/b cannot be written to: Not a directory$"):
        make_folder(tmp_path / "file" / "b")
