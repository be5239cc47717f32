"""Files are written whole or not at all; tests/engine/test_checkpoint.py tries what can go wrong."""

import csv
import errno
import os
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cgnl.atomic_io import (
    STALE,
    make_folder,
    naming_if_full,
    remove_parts,
    save_figure,
    whole_file,
    write_csv,
    write_text,
    write_whole,
)


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


def test_whole_file_names_itself_where_nothing_can_be_written_or_removed(tmp_path, monkeypatch):
    def read_only(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(OSError, match=r"a\.txt cannot be written: Read-only file system$"):
        write_text(tmp_path / "a.txt", "content")


def test_remove_parts_leaves_whole_files(tmp_path):
    for name in (".last.ckpt.part", ".last.ckpt.0a1b.part", "last.ckpt", "a.part"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.part", "last.ckpt"]


def test_whole_file_of_two_writers_is_that_of_the_last(tmp_path):
    path = tmp_path / "a"
    with whole_file(path) as slow:
        slow.write(b"slow")
        with whole_file(path) as quick:
            quick.write(b"the quick one")
        assert path.read_bytes() == b"the quick one"
        slow.write(b" writer")
    assert path.read_bytes() == b"slow writer"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_whole_file_of_two_writers_survives_the_failure_of_one(tmp_path):
    path = tmp_path / "a"
    with whole_file(path) as good:
        good.write(b"go")
        with pytest.raises(UnicodeEncodeError):
            write_text(path, "\udcff")
        good.write(b"od")
    assert path.read_bytes() == b"good"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_whole_file_removes_what_a_killed_writer_left(tmp_path):
    for name, age in ((".a[1].part", STALE + 9), (".a[1].0a1b.part", STALE + 9), (".a[1].2c3d.part", 0)):
        (tmp_path / name).touch()
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age, now - age))
    write_text(tmp_path / "a[1]", "whole")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".a[1].2c3d.part", "a[1]"]


def test_make_folder_names_one_that_cannot_be_written_to(tmp_path):
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/b cannot be written to: Not a directory$"):
        make_folder(tmp_path / "file" / "b")


@pytest.mark.parametrize("name", ["a.png", "a.pdf", "a.svg", "a.JPG"])
def test_save_figure_leaves_nothing_on_a_full_disk(tmp_path, monkeypatch, name):
    figure = Figure(figsize=(1, 1))
    save_figure(figure, tmp_path / name)
    before = (tmp_path / name).read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=rf"{name} cannot be written: No space left"):
        save_figure(figure, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before


def test_writers_that_do_not_name_their_file_are_named_on_a_full_disk(tmp_path):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"a/b cannot be written: No space left on device: [\d.,]+ MB are free"):
        write_whole(tmp_path / "a" / "b", full)
    with (
        pytest.raises(OSError, match=r"new/set cannot be written: No space left"),
        naming_if_full(tmp_path / "new/set"),
    ):
        full(None)
    with pytest.raises(FileNotFoundError), naming_if_full(tmp_path / "a"):
        (tmp_path / "other").read_bytes()
    assert list((tmp_path / "a").iterdir()) == []
