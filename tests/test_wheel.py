"""The wheel: everything is in it, and it works away from the repository."""

import email
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEPENDENCIES = sysconfig.get_path("purelib")

SCRIPT = """
import importlib.metadata, sys
import cgnl

assert cgnl.__file__.startswith(sys.argv[1]), cgnl.__file__
assert not any(path.endswith("src") for path in sys.path), sys.path
(entry,) = importlib.metadata.distribution("cgnl").entry_points
for line in sys.stdin.read().splitlines():
    command, *arguments = line.split()
    assert entry.load()([command, *arguments]) == 0, line
"""
"""Runs one command a line as the installed one would, in a process that has the wheel and not the source."""

COMMANDS = """
data draw pictures count=4
train parts data.samples=24 data.size=32 data.test_short_side=32 data.workers=0 optim.batch_size=12 optim.epochs=1 optim.warmup_epochs=0 accelerator=cpu name=first
predict runs/first/last.ckpt pictures top=1
export runs/first/last.ckpt model.safetensors
report runs/first output=page.html
reproduce cub-kernels --scale embedded --dry
""".strip()  # noqa: E501


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by the backend that is installed: nothing is asked of a registry."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--no-build-isolation", "--offline", "--quiet", "--out-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


def uv(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_wheel_holds_every_file_of_the_package(wheel):
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "cgnl").rglob("*") if p.is_file()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {name for name in source if "__pycache__" not in name}
    data = {"recipes/parts.yaml", "experiments/tables.yaml", "report/report.html.j2", "report/style.css"}
    assert {"cgnl/py.typed", *(f"cgnl/{name}" for name in data)} <= held


def test_wheel_needs_torch_alone_without_extras(wheel):
    files = zipfile.ZipFile(wheel)
    (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    needs = email.message_from_bytes(files.read(name)).get_all("Requires-Dist") or []
    assert [need for need in needs if "extra ==" not in need] == ["torch>=2.11"]


def test_wheel_trains_predicts_and_exports_from_another_folder(wheel, tmp_path):
    site, away = tmp_path / "site", tmp_path / "away"
    away.mkdir()
    where = ("--python", sys.executable, "--target", str(site))
    uv("pip", "install", "--no-deps", "--offline", "--quiet", *where, str(wheel))
    paths = os.pathsep.join([str(site), DEPENDENCIES])
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT, str(site)],  # -S: no .pth file makes the source importable
        cwd=away,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        input=COMMANDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "test: top-1" in done.stdout
    assert done.stdout.count("%  ") == 4  # a class for each picture
    assert "model.safetensors and model.json written" in done.stdout
    assert "still to do: 20 runs, about" in done.stdout
    assert {file.name for file in away.iterdir()} >= {"runs", "model.safetensors", "model.json", "page.html"}
