from pathlib import Path, PurePosixPath

import pytest

from cgnl.data.stored import StoredFile, as_file


class Bytes(StoredFile):
    def __init__(self, file: str, content: bytes):
        self.file, self.content = file, content

    def read_bytes(self) -> bytes:
        return self.content


def test_stored_file_has_as_much_of_a_path_as_reading_it_takes():
    stored = Bytes("cats/1.jpg", b"abc")
    assert (stored.name, stored.parent) == ("1.jpg", PurePosixPath("cats"))
    assert (stored.is_file(), stored.is_dir()) == (True, False)
    with stored.open() as file:
        assert (file.read(2), file.read()) == (b"ab", b"c")


def test_stored_file_itself_holds_nothing():
    with pytest.raises(NotImplementedError):
        StoredFile().read_bytes()


def test_as_file_makes_paths_of_text_alone():
    stored = Bytes("a", b"")
    assert as_file("a/b.png") == Path("a/b.png")
    assert as_file(Path("a")) == Path("a")
    assert as_file(stored) is stored
