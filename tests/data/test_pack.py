"""Shards of a dataset hold its files, byte for byte, in its order."""

import json
import tarfile
from pathlib import Path

import pytest

from cgnl.data.index import hold_out
from cgnl.data.pack import divide, pack
from cgnl.data.readers import READERS, folder
from cgnl.data.shards import shards
from tests.data.test_readers import image, touch
from tests.engine.conftest import write_frame_folders, write_pictures


def quiet(_: str) -> None:
    pass


@pytest.fixture
def root(tmp_path) -> Path:
    """Names with dots, spaces and capitals, the same name twice, and a very long one."""
    write_pictures(tmp_path / "root" / "train", "ab", 5)
    write_pictures(tmp_path / "root" / "test", "ab", 2)
    for name in ("a/0.jpg", "a/x.y.png", "a/x.z.png", "a/x_y.png", "b/0 1.PNG", "b/é.png", f"b/{'long' * 40}.png"):
        image(tmp_path / "root" / "train" / name)
    return tmp_path / "root"


@pytest.mark.parametrize("indexed", [True, False])
def test_pack_keeps_every_sample(tmp_path, root, indexed):
    index = folder(root)
    done = pack(index, root, tmp_path / "out", 0.01, quiet)
    if not indexed:
        (tmp_path / "out" / "shards.json").unlink()
    again = shards(tmp_path / "out")
    assert done.samples == sum(map(len, index.splits.values())) == 21
    assert done.shards == len(list((tmp_path / "out").glob("*.tar"))) > 3
    assert done.bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))
    assert (again.classes, again.kind, again.problems) == (index.classes, index.kind, ())
    for split, samples in index.splits.items():
        assert [label for _, label in again.splits[split]] == [label for _, label in samples]
        both = list(zip(samples, again.splits[split], strict=True))
        assert [new.path.read_bytes() for _, new in both] == [old.path.read_bytes() for old, _ in both]
        if indexed:
            names = [(new.path.file, old.path.relative_to(root).as_posix()) for old, new in both]
            assert [name for name, old in names if name != old] == []
    held, kept = (hold_out(i, 0.3).splits["test"] for i in (again, index))
    assert not indexed or [s.path.name for s in held] == [s.path.name for s in kept]


def test_pack_follows_the_rules_of_webdataset(tmp_path, root):
    """Files of a sample are neighbours, with one key up to the first dot of the last part, which is unique."""
    pack(folder(root), root, tmp_path / "out", 64, quiet)
    for path in (tmp_path / "out").glob("*.tar"):
        with tarfile.open(path) as archive:
            members = archive.getmembers()
            content = {m.name: archive.extractfile(m).read() for m in members}  # pyright: ignore
        parts = [name.rpartition("/")[2].partition(".") for name in content]
        keys = [name[: len(name) - len(suffix) - 1] for name, (_, _, suffix) in zip(content, parts, strict=True)]
        assert keys[::2] == keys[1::2]
        assert len(set(keys[::2])) == len(keys) // 2
        assert {suffix for _, _, suffix in parts} <= {"png", "jpg", "cls"}
        assert {content[name] for name in content if name.endswith(".cls")} == {b"0", b"1"}
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)}


def test_pack_gives_the_same_bytes_each_time(tmp_path, root):
    for name in ("one", "two"):
        pack(folder(root), root, tmp_path / name, 0.01, quiet)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two
    table = json.loads(one["shards.json"])
    assert table["counts"] == {"train": 17, "test": 4}
    assert one["classes.txt"] == b"a\nb\n"


def test_pack_of_shards_is_the_same(tmp_path, root):
    pack(folder(root), root, tmp_path / "one", 0.01, quiet)
    pack(shards(tmp_path / "one"), tmp_path / "one", tmp_path / "two", 0.01, quiet)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two


def test_pack_refuses(tmp_path):
    write_frame_folders(tmp_path / "frames", "ab", 1)
    write_pictures(tmp_path / "data", "ab", 1)
    image(tmp_path / "odd" / "a\nb" / "1.png")
    touch(tmp_path / "full" / "file")
    for root, out, words in (
        ("frames", "out", "folder of frames"),
        ("odd", "out", "cannot stand in a line"),
        ("data", "full", "is there already"),
    ):
        with pytest.raises(ValueError, match=words):
            pack(READERS["folder"](tmp_path / root), tmp_path / root, tmp_path / out, say=quiet)
    with pytest.raises(ValueError, match="shard_mib = 0"):
        pack(folder(tmp_path / "data"), tmp_path / "data", tmp_path / "out", 0, quiet)
    assert not (tmp_path / "out").exists()


def test_divide():
    assert list(divide([3, 3, 3, 9, 1, 1], 6)) == [[0, 1], [2], [3], [4, 5]]
    assert list(divide([], 6)) == []
