"""Tar shards, ours and strangers', whole and damaged. The truth is Python's tarfile."""

import io
import json
import os
import random
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from cgnl.data.index import DatasetIndex, UnreadableError
from cgnl.data.pack import pack
from cgnl.data.readers import READERS
from cgnl.data.shards import BLOCK, MAX_HEADER, expand, is_there, scan, shards
from cgnl.data.sources import CachedSource, FileSource
from cgnl.data.video import probe, read_frames
from tests.engine.conftest import write_video


def png(shade: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (shade, 0, 0)).save(file, "png")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path


def samples(index: DatasetIndex) -> dict[str, list[tuple[str, str]]]:
    """Split -> names of files and classes."""
    return {s: [(p.file, index.classes[label]) for p, label in found] for s, found in index.splits.items()}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_scan_finds_what_tarfile_finds(tmp_path, form):
    draws = random.Random(form)
    long = "" if form == tarfile.USTAR_FORMAT else "a-very-long-folder/" * 9
    members = {f"{long}d{n}/{n}.jpg": draws.randbytes(draws.choice([0, 1, 511, 512, 513, 3000])) for n in range(30)}
    members |= {} if form == tarfile.USTAR_FORMAT else {"ä/ö.jpg": b"1"}
    path = write_tar(tmp_path / "a.tar", members, form)
    found = scan(path)
    content = path.read_bytes()
    assert (found.ignored, found.damage) == ([], None)
    assert {e.name: content[e.offset : e.offset + e.size] for e in found.entries} == members
    with tarfile.open(path) as archive:
        assert [tuple(e) for e in found.entries] == [(m.name, m.offset_data, m.size) for m in archive]


def test_scan_leaves_out_links_devices_and_names_that_lead_out(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in {
            "link.jpg": tarfile.SYMTYPE,
            "hard.jpg": tarfile.LNKTYPE,
            "device.jpg": tarfile.CHRTYPE,
            "pipe.jpg": tarfile.FIFOTYPE,
            "folder": tarfile.DIRTYPE,
        }.items():
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, "/etc/passwd"
            archive.addfile(header)
        for name in ("../../out.jpg", "/etc/out.jpg", "./in.jpg", "a/../out.jpg"):
            header = tarfile.TarInfo(name)
            header.size = 3
            archive.addfile(header, io.BytesIO(b"abc"))
    found = scan(path)
    assert [(e.name, e.size) for e in found.entries] == [("in.jpg", 3)]
    assert set(found.ignored) == {
        *("link.jpg", "hard.jpg", "device.jpg", "pipe.jpg"),
        *("../../out.jpg", "/etc/out.jpg", "a/../out.jpg"),
    }
    assert os.listdir(tmp_path) == ["a.tar"]


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def negative() -> bytes:
    """A header whose size is minus 1,024, by which older readers went round in a circle."""
    block = bytearray(header("a.jpg", 0))
    block[124:136] = (2**96 - 1024).to_bytes(12, "big")
    block[148:156] = b"        "
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


@pytest.mark.parametrize(
    "content",
    [
        negative(),
        header("a.jpg", 2**40),
        header("long", MAX_HEADER + 1, tarfile.GNUTYPE_LONGNAME) + bytes(2 * MAX_HEADER),
        header("long", 2**33, tarfile.XHDTYPE),
        header("sparse.jpg", 4, tarfile.GNUTYPE_SPARSE),
        b"not a tar file",
        os.urandom(5000),
        b"",
        header("x", 20, tarfile.XHDTYPE) + b"9" * 512,
    ],
    ids=["negative", "too large", "long name", "huge header", "sparse", "text", "noise", "empty", "pax"],
)
def test_scan_stops_at_nonsense(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    found = scan(tmp_path / "a.tar")
    assert found.entries == []
    assert found.damage
    with pytest.raises(ValueError, match=r"a\.tar") as raised:
        shards(tmp_path)
    assert "\n" not in str(raised.value)


def test_shards_of_webdataset(tmp_path):
    """As webdataset.TarWriter has them: keys with folders, suffixes with dots, labels as numbers or in JSON."""
    write_tar(
        tmp_path / "train-000000.tar",
        {
            "x/1.cls": b"1",
            "x/1.png": png(1),
            "x/2.cls": b" 0\n",
            "x/2.png": png(2),
            "3.left.PNG": png(3),
            "3.json": b'{"label": 1, "more": [1]}',
            "4.jpg": png(4),
            "4.json": b'{"label": "dog"}',
        },
    )
    write_tar(tmp_path / "val-000000.tar", {"1.png": png(), "1.cls": b"dog"})
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    index = shards(tmp_path)
    assert (index.classes, index.kind, index.problems) == (("dog", "cat"), "images", ())
    assert samples(index) == {
        "train": [("x/1.png", "cat"), ("x/2.png", "dog"), ("3.left.PNG", "cat"), ("4.jpg", "dog")],
        "test": [("1.png", "dog")],
    }
    source = FileSource(index.splits["train"], index.kind)
    assert [int(source.read(n, range)[0, 0, 0]) for n in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize(("labels", "classes"), [("0 10 9", ("0", "9", "10")), ("b a 1", ("1", "a", "b"))])
def test_shards_without_a_list_of_classes(tmp_path, labels, classes):
    rows = {f"{n}.png": png() for n in range(3)} | {f"{n}.cls": w.encode() for n, w in enumerate(labels.split())}
    write_tar(tmp_path / "000.tar", rows)
    index = shards(tmp_path)
    assert (index.classes, [c for _, c in samples(index)["train"]]) == (classes, labels.split())


def test_shards_name_and_count_what_cannot_be_used(tmp_path):
    members = {f"{n}.png": png() for n in range(4)} | {"0.cls": b"a", "1.cls": b"b", "2.json": b"[[[", "5.txt": b"?"}
    write_tar(tmp_path / "a.tar", members | {"0.jpg": png()})
    (tmp_path / "classes.txt").write_text("a\nc\n")
    index = shards(tmp_path)
    twice, without, unknown = index.problems
    assert samples(index) == {"train": [("0.png", "a")]}
    assert "1 file " in twice
    assert "0.jpg" in twice
    assert "2 samples " in without
    assert "2.png, 3.png" in without
    assert "1 sample " in unknown
    assert "a.tar/1.png (b)" in unknown


def test_the_plain_name_is_the_sample(tmp_path):
    write_tar(tmp_path / "a.tar", {"0.depth.png": png(1), "0.mask.jpg": png(2), "0.png": png(3), "0.cls": b"0"})
    index = shards(tmp_path)
    assert samples(index) == {"train": [("0.png", "0")]}
    assert "0.depth.png, 0.mask.jpg" in index.problems[0]


def test_shards_cut_off_are_used_up_to_the_damage(tmp_path):
    members = {f"{n}.{suffix}": png(n) if suffix == "png" else b"ab" for n in range(6) for suffix in ("png", "cls")}
    whole = write_tar(tmp_path / "whole" / "a.tar", members).read_bytes()
    for cut in range(0, len(whole), 397):
        path = tmp_path / "cut" / "a.tar"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(whole[:cut])
        entries, _, damage = scan(path)
        assert damage is not None or whole[cut : cut + BLOCK] == bytes(BLOCK)[: len(whole) - cut]
        assert [tuple(e) for e in entries] == [
            e for e in scan(tmp_path / "whole" / "a.tar").entries if e[1] + e[2] <= cut
        ]
        if len(entries) >= 2:
            assert len(shards(path.parent).splits["train"]) == len(entries) // 2
            assert len(shards(path.parent).problems) == (damage is not None) + len(entries) % 2  # one has no label


@pytest.mark.parametrize("indexed", [False, True])
def test_pattern_of_folders(tmp_path, indexed):
    home = tmp_path / "home"
    for split in ("train", "val", "test"):
        write_tar(home / split / "0.tar", {"a.png": png(), "a.cls": b"0"})
        write_tar(home / split / "1.tar", {"a.png": png(), "a.cls": b"0"})
    if indexed:
        pack(shards(home), str(home), str(tmp_path / "packed"), 1, print)
        home = tmp_path / "packed"
    names = sorted(path.relative_to(home).as_posix() for path in home.rglob("*.tar"))
    wanted = [name for name in names if name.startswith(("train", "val"))]
    index = shards(f"{home}/{{{','.join(wanted)}}}")
    found = {str(sample.path.shard) for rows in index.splits.values() for sample in rows}
    assert (set(index.splits), index.problems) == ({"train", "test"}, ())
    assert found == {str(home / name) for name in wanted}


def test_pattern(tmp_path):
    for n in (7, 8, 10):
        write_tar(tmp_path / f"{n:03}.tar", {"a.png": png(n), "a.cls": b"x"})
    pattern = str(tmp_path / "{007..010}.tar")
    index = shards(pattern)
    assert len(index.splits["train"]) == 3
    (missing,) = index.problems
    assert str(tmp_path / "009.tar") in missing
    assert is_there(pattern)
    assert not is_there(str(tmp_path / "{000..003}.tar"))


def test_expand():
    assert expand("a/{train,test}-{08..11}.tar")[:5] == [
        *("a/train-08.tar", "a/train-09.tar", "a/train-10.tar", "a/train-11.tar", "a/test-08.tar"),
    ]
    for endless in ("{0..999999999}.tar", "{0..999}" * 3):
        with pytest.raises(ValueError, match="more than 100,000 shards"):
            expand(endless)
    with pytest.raises(ValueError, match="no shard"):
        expand("{5..4}.tar")


def packed(root: Path) -> Path:
    """Two shards with an index."""
    rows = []
    for n in range(2):
        path = write_tar(root / f"train-{n:06}.tar", {"a.png": png(1), "b.png": png(2)})
        where = [[e.name, e.offset, e.size, number] for number, e in enumerate(scan(path).entries)]
        rows.append({"file": path.name, "split": "train", "bytes": path.stat().st_size, "samples": where})
    write_index(root, shards=rows)
    return root


def write_index(root: Path, **content) -> None:
    (root / "shards.json").write_text(json.dumps({"kind": "images", "classes": ["x", "y"]} | content))


def test_index_is_enough(tmp_path, monkeypatch):
    packed(tmp_path)
    monkeypatch.setattr("cgnl.data.shards.scan", lambda _: pytest.fail("it was scanned"))
    index = shards(tmp_path)
    assert samples(index) == {"train": [("a.png", "x"), ("b.png", "y")] * 2}
    assert len(shards(tmp_path / "train-000001.tar").splits["train"]) == 2


def test_shard_that_is_missing_or_damaged_is_named_and_its_samples_counted(tmp_path):
    packed(tmp_path)
    (tmp_path / "train-000000.tar").unlink()
    second = tmp_path / "train-000001.tar"
    second.write_bytes(second.read_bytes()[: 2 * BLOCK])  # the first picture is left
    index = shards(tmp_path)
    missing, damaged = index.problems
    assert str(tmp_path / "train-000000.tar") in missing
    assert "2 samples" in missing
    assert str(second) in damaged
    source = FileSource(index.splits["train"], index.kind)
    assert len(source) == 4  # numbers stay, so that a run can be resumed when the shard is back
    for number in (0, 1, 3):
        with pytest.raises(UnreadableError, match=source.name(number)):
            source.read(number, range)
    assert source.read(2, range)[0, 0, 0] == 1


def test_shard_with_other_content_is_not_read_as_a_sample(tmp_path):
    packed(tmp_path)
    index = shards(tmp_path)
    path = tmp_path / "train-000000.tar"
    path.write_bytes(os.urandom(path.stat().st_size))
    with pytest.raises(UnreadableError, match="no such file"):
        FileSource(index.splits["train"], "images").read(0, range)


@pytest.mark.parametrize(
    "content",
    [
        {"shards": [{"file": "../a.tar", "split": "train", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "/etc/a.tar", "split": "train", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "http://a/b.tar", "split": "train", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "pipe:touch it.tar", "split": "train", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "$(touch it).tar", "split": "train", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "-o.tar", "split": "train", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "a.tar", "split": "extra", "bytes": 9, "samples": []}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": -9, "samples": []}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": 9999, "samples": [["a", 512, 99999, 0]]}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": 9999, "samples": [["a", -512, 99, 0]]}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": 9999, "samples": [["a", 512, 99, 2]]}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": 9999, "samples": [["a", 512, True, 1]]}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": 9999, "samples": [[3, 512, 9, 1]]}]},
        {"shards": [{"file": "a.tar", "split": "train", "bytes": 9999, "samples": []}]},
        {"shards": 3},
        {"shards": [], "classes": [1, 2]},
        {"shards": [], "kind": "objects"},
        {},
    ],
    ids=str,
)
def test_index_that_is_wrong_is_refused_in_one_sentence(tmp_path, content):
    write_index(tmp_path, **content)
    with pytest.raises(ValueError, match=r"shards\.json") as raised:
        shards(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "null", "\x00"])
def test_index_that_is_no_json(tmp_path, text):
    (tmp_path / "shards.json").write_text(text)
    with pytest.raises(ValueError, match=r"shards\.json"):
        shards(tmp_path)


def test_mixed_shards_are_refused(tmp_path):
    write_tar(tmp_path / "a.tar", {"1.png": png(), "1.cls": b"0", "2.mp4": b"", "2.cls": b"0"})
    with pytest.raises(ValueError, match=r"1\.png.*2\.mp4"):
        shards(tmp_path)


def test_clips_are_read_as_from_files(tmp_path):
    path = write_video(tmp_path / "clip.mp4", 7)
    write_tar(tmp_path / "a.tar", {"clip.mp4": path.read_bytes(), "clip.cls": b"0", "bad.mp4": b"", "bad.cls": b"1"})
    index = shards(tmp_path)
    (clip, _), (bad, _) = index.splits["train"]
    assert index.kind == "videos"
    assert probe(clip) == probe(path)
    assert read_frames(clip, [0, 5, 2]).equal(read_frames(path, [0, 5, 2]))
    with pytest.raises(UnreadableError, match=r"bad\.mp4 cannot be read: it is empty"):
        read_frames(bad, range)


def test_clip_that_lists_other_files_opens_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_video(Path("secret.mp4"), 3)
    write_tar(Path("a.tar"), {"1.mp4": b"ffconcat version 1.0\nfile secret.mp4\n", "1.cls": b"0"})
    (clip, _) = shards("a.tar").splits["train"][0]
    with pytest.raises(UnreadableError):
        probe(clip)


def test_cached_samples_notice_a_shard_that_has_changed(tmp_path):
    packed(tmp_path)
    source = FileSource(shards(tmp_path).splits["train"], "images")
    cached = CachedSource(source, "cpu")
    assert cached.holds(source, "cpu")
    os.utime(tmp_path / "train-000001.tar", ns=(1, 1))
    assert not cached.holds(source, "cpu")


def test_reader_is_known():
    assert READERS["shards"] is shards
