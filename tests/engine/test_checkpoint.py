"""Checkpoints are written whole or not at all; what is none is refused by name, and nothing in it is run."""

import errno
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cgnl.engine.checkpoint import open_trained, read, write
from cgnl.engine.config import load, to_dict
from tests.engine.conftest import Tiny

CLASSES = ["a", "b", "c"]


@pytest.fixture
def saved(tmp_path):
    """A checkpoint as training writes it."""

    def call(name="last.ckpt", network=None, **changes) -> Path:
        network = network or Tiny(3, 0.0)
        config = to_dict(load(None, {"model.name": "tiny", "model.block": None}))
        content = {
            "state_dict": {f"network.{n}": v for n, v in network.state_dict().items()},
            "cgnl": {"config": config, "classes": CLASSES, "kind": "images", "results": {}, "problems": []},
        }
        write({**content, **changes}, tmp_path / name)
        return tmp_path / name

    return call


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_can_be_read_back(tmp_path):
    content = {"cgnl": {"classes": CLASSES, "loss": 0.5}, "weights": torch.arange(5)}
    write(content, tmp_path / "a.ckpt")
    back = read(tmp_path / "a.ckpt")
    assert back["cgnl"] == content["cgnl"]
    assert torch.equal(back["weights"], content["weights"])
    assert names(tmp_path) == ["a.ckpt"]


def test_write_replaces_what_was_there(saved):
    path = saved()
    write({"cgnl": 2}, path)
    assert read(path) == {"cgnl": 2}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RuntimeError("write failed\nat")])
def test_write_keeps_the_old_file_when_it_fails_halfway(saved, monkeypatch, error):
    path = saved()
    before = path.read_bytes()

    def full(_, file):
        file.write(b"x" * 1000)
        raise error

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="cannot be written") as raised:
        write({"cgnl": 1}, path)
    assert path.read_bytes() == before
    assert names(path.parent) == ["last.ckpt"]
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_write_keeps_the_old_file_when_it_cannot_be_flushed(saved, monkeypatch):
    path = saved()
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="Input/output error"):
        write({"cgnl": 1}, path)
    assert path.read_bytes() == before
    assert names(path.parent) == ["last.ckpt"]


def test_write_leaves_no_part_of_a_file_when_it_is_interrupted(saved, monkeypatch):
    path = saved()

    def interrupted(_, file):
        file.write(b"x")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write({"cgnl": 1}, path)
    assert read(path)["cgnl"]["classes"] == CLASSES
    assert names(path.parent) == ["last.ckpt"]


def test_write_to_a_full_disk_keeps_the_old_file(tmp_path):
    script = """
import resource, sys
from pathlib import Path
import torch
from cgnl.engine.checkpoint import read, write
path = Path(sys.argv[1])
write({"cgnl": 1, "weights": torch.zeros(10)}, path)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for count in (25_000, 1_000_000):
    try:
        write({"cgnl": 2, "weights": torch.zeros(count)}, path)
    except OSError as error:
        print(error)
assert read(path)["cgnl"] == 1
"""
    path = tmp_path / "last.ckpt"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sentences = done.stdout.splitlines()
    assert len(sentences) == 2
    assert all(sentence.startswith(f"{path} cannot be written: ") for sentence in sentences)
    assert all(sentence.endswith("; the one before is kept") for sentence in sentences)
    assert names(tmp_path) == ["last.ckpt"]


def test_write_into_a_folder_that_is_not_there_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"no/last\.ckpt cannot be written: No such file"):
        write({"cgnl": 1}, tmp_path / "no" / "last.ckpt")


class Code:
    """Runs when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("reader", [read, open_trained])
@pytest.mark.parametrize("part", [0, 1, 100, 0.25, 0.5, 0.99, -1], ids=str)
def test_read_refuses_a_file_that_was_cut(saved, reader, part):
    path = saved()
    content = path.read_bytes()
    end = int(part * len(content)) if isinstance(part, float) else part
    path.write_bytes(content[:end])
    with pytest.raises(ValueError, match="is not a whole checkpoint") as error:
        reader(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"hello\n", b"\x80\x02.", b"PK\x03\x04", bytes(range(256)) * 9], ids=["text", "pickle", "zip", "bytes"]
)
def test_read_refuses_what_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "a.ckpt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.ckpt is not a whole checkpoint") as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_read_runs_nothing(tmp_path, save):
    path, mark = tmp_path / "a.ckpt", tmp_path / "it ran"
    save({"cgnl": Code(mark)}, path)
    with pytest.raises(ValueError, match=r"a\.ckpt is (not a whole|no) checkpoint") as error:
        read(path)
    assert not mark.exists()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content", [Tiny(3, 0.0).state_dict(), torch.zeros(3), [1, 2], {"state_dict": {}}], ids=lambda c: type(c).__name__
)
def test_read_refuses_other_saved_things(tmp_path, content):
    torch.save(content, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"a\.ckpt is no checkpoint of cgnl train"):
        read(tmp_path / "a.ckpt")


def test_read_takes_the_last_checkpoint_of_a_folder(saved):
    path = saved()
    torch.save({"cgnl": "another"}, path.with_name("best.ckpt"))
    assert read(path.parent)["cgnl"] == read(path)["cgnl"]
    assert open_trained(str(path.parent)).classes == tuple(CLASSES)


def test_read_names_a_checkpoint_in_a_folder_without_the_last(tmp_path):
    with pytest.raises(ValueError, match=r" is a folder without a last\.ckpt$"):
        read(tmp_path)
    (tmp_path / "best.ckpt").touch()
    with pytest.raises(ValueError, match=r" is a folder without a last\.ckpt; name .*/best\.ckpt$"):
        read(tmp_path)


def test_open_trained_names_the_file_in_a_folder(saved):
    path = saved()
    path.write_bytes(b"half")
    with pytest.raises(ValueError, match=r"last\.ckpt is not a whole checkpoint"):
        open_trained(path.parent)


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.safetensors", "folder/config.json"])
def test_read_says_what_can_be_done_with_an_export(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    path = path.parent if path.suffix == ".json" else path
    sentence = "is an export and no checkpoint (.ckpt); cgnl predict also reads .onnx, which cgnl export last.ckpt "
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} {sentence}')}"):
        read(path)


def test_read_names_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*a\.ckpt$"):
        read(tmp_path / "a.ckpt")


def test_open_trained_gives_back_the_network(saved):
    network = Tiny(3, 0.0)
    trained = open_trained(saved(network=network))
    assert trained.classes == ("a", "b", "c")
    assert trained.kind == "images"
    assert trained.config.model.name == "tiny"
    assert not trained.network.training
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(trained.network(x), network.eval()(x))


@pytest.mark.parametrize(
    "network", [torch.nn.Linear(3, 4), Tiny(4, 0.0), Tiny(3, 0.0, torch.nn.Identity)], ids=["other", "classes", "norm"]
)
def test_open_trained_refuses_weights_of_another_network(saved, network):
    path = saved(network=network)
    with pytest.raises(ValueError, match=r"last\.ckpt is of another network: .") as error:
        open_trained(path)
    assert "\n" not in str(error.value)


def test_open_trained_refuses_weights_that_are_not_finite(saved):
    network = Tiny(3, 0.0)
    name, weight = next(network.named_parameters())
    weight.data.view(-1)[0] = torch.inf
    with pytest.raises(ValueError, match=rf"last\.ckpt .* not finite: {re.escape(name)}"):
        open_trained(saved(network=network))


@pytest.mark.parametrize(
    "content",
    [
        1,
        {},
        {"config": {}, "classes": CLASSES},
        {"config": {"model": {"name": "nothing"}}, "classes": CLASSES, "kind": "images"},
        {"config": {"nothing": 1}, "classes": CLASSES, "kind": "images"},
    ],
    ids=["number", "empty", "no kind", "unknown network", "unknown setting"],
)
def test_open_trained_names_a_checkpoint_whose_description_is_wrong(saved, content):
    with pytest.raises(ValueError, match=r"last\.ckpt"):
        open_trained(saved(cgnl=content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "videos"}, "tiny cannot take 3 x 64 x 64: "),
        ({"kind": "sounds"}, "its classes are not named"),
        ({"classes": [1, 2, 3]}, "its classes are not named"),
        ({"classes": 3}, "its classes are not named"),
        ({"classes": "abc"}, "its classes are not named"),
        ({"ids": 3}, "what was written about it is damaged"),
        ({"ids": ["a"]}, "its classes are not named"),
        (
            {"config": {"model": {"name": "tiny", "block": None}, "data": {"size": 10**9}}},
            "data.size = 1000000000 must",
        ),
        ({"config": {"model": {"name": "tiny", "block": "cgnl", "options": {"inner_channels": []}}}}, "placement"),
    ],
    ids=["videos", "kind", "classes", "number", "word", "damaged", "ids", "size", "options"],
)
def test_open_trained_refuses_a_description_of_something_else(saved, change, message):
    path = saved()
    content = read(path)
    write({**content, "cgnl": content["cgnl"] | change}, path)
    with pytest.raises(ValueError, match=r"last\.ckpt does not describe a network: ") as error:
        open_trained(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_open_trained_asks_for_no_more_memory_than_the_file_has(saved):
    """A block of a million million weights, in a file of a few thousand."""
    options = {"after": ["conv1"], "block": "cgnl", "options": {"inner_channels": 8 * 10**10}}
    config = to_dict(load(None, {"model.name": "tiny", "model.block": None}))
    config["model"] |= options
    path = saved(cgnl={"config": config, "classes": CLASSES, "kind": "images"})
    with pytest.raises(ValueError, match=r"last\.ckpt is of another network: its weights are of a smaller one"):
        open_trained(path)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(1).expand(10**6, 10**6),
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.zeros(3, dtype=torch.complex64),
        None,
        "x",
    ],
    ids=["repeated", "sparse", "meta", "complex", "nothing", "text"],
)
@pytest.mark.filterwarnings("ignore:Validating sparse")
def test_open_trained_refuses_weights_that_are_no_plain_tensors(saved, value):
    state = Tiny(3, 0.0).state_dict() | {"fc.bias": value}
    with pytest.raises(ValueError, match=r"last\.ckpt holds no weights"):
        open_trained(saved(state_dict={f"network.{name}": v for name, v in state.items()}))


def test_open_trained_refuses_weights_without_names(saved):
    with pytest.raises(ValueError, match=r"last\.ckpt holds no weights"):
        open_trained(saved(state_dict={7: torch.zeros(3)}))


def test_open_trained_names_a_checkpoint_without_weights(saved):
    path = saved()
    write({"cgnl": read(path)["cgnl"]}, path)
    with pytest.raises(ValueError, match=r"last\.ckpt"):
        open_trained(path)
