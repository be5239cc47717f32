"""What is read from strangers' files runs no code, leaves no folder, and takes no more than its share of memory."""

import ast
import io
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cgnl.cli import main
from cgnl.models import create_model
from tests.test_architecture import FILES, ROOT

FORBIDDEN = {"eval", "exec", "compile", "extractall", "extract", "unpack_archive", "system", "popen", "exec_module"}
FORBIDDEN |= {"unsafe_load", "full_load", "load_pickle", "read_pickle", "Unpickler", "loads_pickle"}
"""Calls that run what a file says, or unpack it to where it says."""
MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "tarfile", "zipfile"}
ALLOWED = {("cgnl.bench.peers", "exec_module")}
"""``cgnl bench --peer FILE.py`` is there to run that file, which is the user's own."""


def dangers(source: str) -> Iterator[str]:
    """Everything in a source that could run or unpack what it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from {a.name.partition(".")[0] for a in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from {str(node.module).partition(".")[0]} & MODULES
        if not isinstance(node, ast.Call):
            continue
        of = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in FORBIDDEN and not (name in ("eval", "compile") and of):  # a network's own eval, torch.compile
            yield name
        if (of, name) in (("yaml", "load"), ("pickle", "load"), ("numpy", "load"), ("np", "load")):
            yield f"{of}.load"
        inner = [*node.args, node.func] if name == "partial" or (of, name) == ("torch", "load") else []
        loads = any(ast.unparse(part) == "torch.load" for part in inner)
        safe = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
        if (loads or name in ("get_state_dict", "load_state_dict_from_url")) and not safe:
            yield f"{name} without weights_only"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from zipfile import ZipFile", ["zipfile"]),
        ("torch.load(path)", ["load without weights_only"]),
        ("torch.load(path, weights_only=False)", ["load without weights_only"]),
        ("functools.partial(torch.load, map_location='cpu')", ["partial without weights_only"]),
        ("torch.load(path, weights_only=True)", []),
        ("yaml.load(text)", ["yaml.load"]),
        ("yaml.safe_load(text)", []),
        ("network.eval()", []),
        ("eval(text)", ["eval"]),
        ("shutil.unpack_archive(path)", ["unpack_archive"]),
        ("archive.extractall()", ["extractall"]),
        ("os.system(text)", ["system"]),
    ],
)
def test_dangers_are_found(source, found):
    assert list(dangers(source)) == found


@pytest.mark.parametrize("module", FILES)
def test_module_runs_and_unpacks_nothing_it_reads(module):
    assert [danger for danger in dangers(FILES[module].read_text()) if (module, danger) not in ALLOWED] == []


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
    assert main(COMMANDS[command]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "is not a" in err
    assert not mark.exists()
    assert not (tmp_path.parent / "weights.pth").exists()


@pytest.mark.parametrize("form", FORMS)
def test_downloaded_weights_run_no_code(tmp_path, monkeypatch, form):
    """Whoever can write to the folder where torch keeps downloads has not thereby got a program of ours."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    mark, kept = tmp_path / "it ran", tmp_path / "hub" / "checkpoints"
    kept.mkdir(parents=True)
    (kept / "resnet18-f37072fd.pth").write_bytes(FORMS[form]({"fc.weight": Code(mark)}))
    with pytest.raises(ValueError, match="the file of torchvision's IMAGENET1K_V1 is not whole"):
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
