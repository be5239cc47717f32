"""Shards from an address on this machine and from commands: what is fetched, kept, tried again and refused."""

import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cgnl.data import streams
from cgnl.data.index import UnreadableError
from cgnl.data.pack import pack
from cgnl.data.readers import folder
from cgnl.data.shards import shards
from cgnl.data.sources import FileSource
from cgnl.data.streams import allow_typed, is_address
from tests.engine.conftest import write_pictures


class Server(http.server.ThreadingHTTPServer):
    """A folder at an address; ``broken`` says how many more answers for a file break off in the middle."""

    def __init__(self, root: Path):
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.asked, self.broken = root, Counter(), Counter()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        name = self.path.removeprefix("/data/")
        self.server.asked[name] += 1
        path = self.server.root / name
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        broken = self.server.broken[name] > 0
        self.server.broken[name] -= broken
        self.wfile.write(content[: len(content) // 2] if broken else content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(streams, "WAIT", 0.001)
    monkeypatch.setattr(streams, "_typed", set())
    monkeypatch.setattr(streams, "_failed", {})


@pytest.fixture
def packed(tmp_path) -> Path:
    """Five shards of two pictures."""
    write_pictures(tmp_path / "root", "ab", 5)
    pack(folder(tmp_path / "root"), tmp_path / "root", tmp_path / "data", 0.012, lambda _: None)
    assert len(list((tmp_path / "data").glob("*.tar"))) == 5
    return tmp_path / "data"


@pytest.fixture
def server(packed) -> Iterator[Server]:
    with Server(packed) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def open_stream(address: str, cache: Path, gib: float = 1.0) -> FileSource:
    allow_typed([f"data.root={address}"])
    index = shards(address, str(cache), gib)
    return FileSource(index.splits["train"], index.kind)


def read_all(source: FileSource) -> list[bytes]:
    return [sample.path.read_bytes() for sample in source.samples]


def local(packed: Path) -> list[bytes]:
    return [sample.path.read_bytes() for sample in shards(packed).splits["train"]]


def test_address_gives_what_the_folder_gives_and_fetches_once(server, packed, tmp_path):
    source = open_stream(server.address, tmp_path / "cache")
    assert set(server.asked) == {"shards.json"}  # nothing else before it is needed
    assert read_all(source) == read_all(source) == local(packed)
    assert set(server.asked.values()) == {1}
    assert source.name(0) == f"{server.address}/train-000000.tar/a/0.png"
    again = open_stream(f"{server.address}/", tmp_path / "cache")
    assert read_all(again) == local(packed)


@pytest.mark.parametrize("command", ["cat {}/{{shard}}", "sh -c 'cat {}/{{shard}}'"])
def test_command_gives_what_the_folder_gives(packed, tmp_path, command):
    source = open_stream("pipe:" + command.format(packed), tmp_path / "cache")
    assert read_all(source) == local(packed)


def test_download_that_breaks_off_is_tried_again(server, packed, tmp_path):
    server.broken["train-000001.tar"] = streams.TRIES - 1
    assert read_all(open_stream(server.address, tmp_path / "cache")) == local(packed)
    assert server.asked["train-000001.tar"] == streams.TRIES


def test_download_that_always_breaks_off_is_named_and_its_samples_counted(server, tmp_path):
    server.broken["train-000001.tar"] = 10**6
    source = open_stream(server.address, tmp_path / "cache")
    problems = []
    for number in range(len(source)):
        try:
            source.read(number, range)
        except UnreadableError as error:
            problems.append(str(error))
    assert len(problems) == 2
    assert all(f"{server.address}/train-000001.tar" in problem for problem in problems)
    assert len(set(problems)) == 2  # each sample is counted
    assert server.asked["train-000001.tar"] == streams.TRIES  # and the shard is not fetched for each of them
    kept = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and not path.name.endswith(".lock")}
    assert kept == {"shards.json", *(f"train-00000{n}.tar" for n in (0, 2, 3, 4))}  # and no part is left


def test_shard_that_is_not_there_or_has_another_size(server, packed, tmp_path):
    (packed / "train-000000.tar").unlink()
    (packed / "train-000001.tar").write_bytes(b"short")
    (packed / "train-000002.tar").write_bytes(bytes(10**6))
    source = open_stream(server.address, tmp_path / "cache")
    for number, words in ((0, "Not Found"), (2, "5 bytes"), (4, "or more")):
        with pytest.raises(UnreadableError, match=words):
            source.read(number, range)
    assert source.read(6, range).shape[0] == 3


def test_command_that_fails_or_does_not_exist(tmp_path):
    with pytest.raises(UnreadableError, match="status 1"):
        open_stream("pipe:false {shard}", tmp_path / "cache")
    with pytest.raises(UnreadableError, match="No such file"):
        open_stream("pipe:no-such-command {shard}", tmp_path / "cache")


def test_cache_removes_what_was_not_used_for_longest(server, packed, tmp_path):
    size = (packed / "train-000000.tar").stat().st_size
    source = open_stream(server.address, tmp_path / "cache", 3 * size / 2**30)
    folders = list((tmp_path / "cache").iterdir())
    for sample in (0, 2, 4, 0, 6):  # shard 1 is the longest unused when shard 3 comes
        source.samples[sample].path.read_bytes()
    assert sorted(path.name for path in folders[0].glob("*.tar")) == [f"train-00000{n}.tar" for n in (0, 2, 3)]
    assert read_all(source) == local(packed)
    assert sum(path.stat().st_size for path in folders[0].glob("*.tar")) <= 3 * size


def test_cache_must_hold_a_shard(server, tmp_path):
    with pytest.raises(ValueError, match=r"data\.shard_cache_gib"):
        open_stream(server.address, tmp_path / "cache", 1e-6)


def test_address_that_was_not_typed_is_not_opened(server, packed, tmp_path):
    for address in (server.address, f"pipe:cat {packed}/{{shard}}"):
        with pytest.raises(ValueError, match="comes from a file"):
            shards(address, str(tmp_path / "cache"))
    assert server.asked == {}
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("address", ["file:///etc", "ftp://a/b", "s3://a/b", "data://x", "FILE:///etc"])
def test_address_of_another_kind_is_refused(address, tmp_path):
    with pytest.raises(ValueError, match="neither a folder nor an address"):
        open_stream(address, tmp_path / "cache")


def test_stream_needs_a_cache_and_a_place_for_the_name(tmp_path):
    allow_typed(["https://a/b", "pipe:cat x"])
    with pytest.raises(ValueError, match=r"data\.shard_cache=FOLDER"):
        shards("https://a/b")
    with pytest.raises(ValueError, match=r"\{shard\}"):
        shards("pipe:cat x", str(tmp_path))


def test_is_address():
    assert [is_address(root) for root in ("http://a", "HTTPS://a", "pipe:a", "s3://a")] == [True] * 4
    assert [is_address(root) for root in ("a/b", "/a", "C:/a", "./pipe", "a/{0..3}.tar")] == [False] * 5
