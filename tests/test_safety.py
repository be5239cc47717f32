"""What is read from strangers' files runs no code, leaves no folder, and takes no more than its share of memory."""

import io
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from cgnl.cli import main
from cgnl.models import create_model
from tests.test_architecture import FILES, ROOT


def test_torch_load_takes_weights_alone():
    """Ruff's S rules and banned modules see to the rest."""
    lines = [line for path in FILES.values() for line in path.read_text().splitlines()]
    calls = [line for line in lines if "torch.load" in line or ".get_state_dict(" in line]
    assert len(calls) >= 3
    assert [call for call in calls if "weights_only=True" not in call] == []


def test_archives_are_never_unpacked():
    """Two files may import tarfile: one for the parser of a header, one to write."""
    found = {name: set(re.findall(r"tarfile\.(\w+)", path.read_text())) for name, path in FILES.items()}
    used = {name: words for name, words in found.items() if words}
    assert used.keys() == {"cgnl.data.shards", "cgnl.data.pack"}
    assert {word for word in used["cgnl.data.shards"] if not word.isupper()} == {"TarInfo", "HeaderError", "nti"}
    assert used["cgnl.data.pack"] == {"open", "TarInfo", "PAX_FORMAT"}
    assert re.findall(r"tarfile\.open\((.*?)\) as", FILES["cgnl.data.pack"].read_text()) == [
        'fileobj=file, mode="w", format=tarfile.PAX_FORMAT'
    ]
    text = "".join(path.read_text() for path in FILES.values())
    assert re.findall(r"\.extract(?:all|file)?\(", text) == []


class Code:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def as_torch(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def as_old_torch(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def as_zip(content: Any) -> bytes:
    """A pickle in an archive, as torch's old hub took it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../weights.pth", pickle.dumps(content))
    return file.getvalue()


FORMS = {"torch": as_torch, "old torch": as_old_torch, "pickle": pickle.dumps, "zip": as_zip}
COMMANDS = {
    "predict": ["predict", "a.ckpt", "a.png"],
    "eval": ["eval", "a.ckpt"],
    "explain": ["explain", "a.ckpt", "a.png"],
    "diagnose": ["diagnose", "a.ckpt"],
    "app": ["app", "a.ckpt"],
    "pth": ["train", "model.weights=a.pth", "model.name=resnet18", "data.samples=8"],
    "safetensors": ["train", "model.weights=a.safetensors", "model.name=resnet18", "data.samples=8"],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs_no_code_of_a_file(tmp_path, monkeypatch, capsys, form, command):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "it ran"
    content = FORMS[form]({"cgnl": Code(mark), "state_dict": {"conv1.weight": Code(mark)}})
    for name in ("a.ckpt", "a.pth", "a.safetensors"):
        Path(name).write_bytes(content)
    Path("a.png").touch()
    assert main(COMMANDS[command]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(r"a\.(ckpt|pth|safetensors) is (not a|no checkpoint)", err)
    assert not mark.exists()
    assert not (tmp_path.parent / "weights.pth").exists()


@pytest.mark.parametrize("form", FORMS)
def test_downloaded_weights_run_no_code(tmp_path, monkeypatch, form):
    """Whoever can write to the folder where torch keeps downloads has not thereby got a program of ours."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    mark, kept = tmp_path / "it ran", tmp_path / "hub" / "checkpoints"
    kept.mkdir(parents=True)
    (kept / "resnet18-f37072fd.pth").write_bytes(FORMS[form]({"fc.weight": Code(mark)}))
    with pytest.raises(ValueError, match="IMAGENET1K_V1 is damaged"):
        create_model("resnet18", weights="IMAGENET1K_V1")
    assert not mark.exists()


def test_broken_inputs_in_short(tmp_path):
    """The harness of benchmarks/fuzz.py in its short form: no stack trace, crash, hang or waste of memory."""
    command = [sys.executable, "-m", "benchmarks.fuzz", "--inputs", "60", "--seed", "7", "--without-exports"]
    command += ["--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all               60" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_last_run_of_all_broken_inputs_is_what_the_docs_say():
    figures = (ROOT / "benchmarks" / "results" / "fuzz.txt").read_text()
    assert figures in (ROOT / "docs" / "safety.md").read_text()
    (line,) = [line.replace(",", "") for line in figures.splitlines() if line.startswith("all ")]
    inputs, accepted, refused, *faults, seconds, mebibytes = map(float, line.split()[1:])
    assert inputs == accepted + refused >= 10_000
    assert faults == [0] * 5
    assert seconds < 10
    assert mebibytes < 2048
