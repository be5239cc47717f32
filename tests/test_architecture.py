"""What each room needs to be imported, and what the package shows. ``lint-imports`` checks which room imports which."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cgnl

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "cgnl").rglob("*.py"))
}

LIGHT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib
for module in {modules}:
    importlib.import_module(module)
"""
"""A program that imports modules where packages are missing."""


def import_without(missing: set[str], modules: list[str], then: str = "") -> None:
    script = LIGHT.format(missing=missing, modules=modules) + then
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_core_needs_torch_alone():
    others = {
        "torchvision",
        "timm",
        "jsonargparse",
        "scipy",
        "PIL",
        "av",
        "rich",
        "matplotlib",
    }
    import_without(others, ["cgnl.ops", "cgnl.kernels", "cgnl.blocks", "cgnl.heads", "cgnl.surgery"])


def test_load_says_which_extra_it_needs():
    with pytest.raises(AssertionError, match=r"pip install \"cgnl\[train\]"):
        import_without({"rich"}, ["cgnl"], "import cgnl; cgnl.load")


def test_folding_needs_torch_alone():
    others = {"torchvision", "jsonargparse", "scipy", "PIL", "av", "rich", "yaml"}
    without_numpy = "sys.modules['numpy'] = None; import cgnl; cgnl.export.fold(cgnl.CGNL(16))"
    import_without(others, ["cgnl"], without_numpy)


def test_command_line_starts_without_torch():
    import_without({"torch", "torchvision", "numpy"}, ["cgnl", "cgnl.cli", "cgnl.extras", "cgnl.text"])


def test_import_without_finds_what_is_missing():
    with pytest.raises(AssertionError, match="torch"):
        import_without({"torch"}, ["cgnl.ops"])


@pytest.mark.parametrize("name", cgnl.__all__)
def test_public_name_resolves_and_is_documented(name):
    assert (getattr(cgnl, name).__doc__ or "").strip()
    assert name in dir(cgnl)


def test_all_is_the_lazy_table():
    assert cgnl.__all__ == sorted(cgnl._PUBLIC)


def test_editors_see_what_resolves():
    tree = ast.parse(FILES["cgnl"].read_text())
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    statements = [n for n in block.body if isinstance(n, ast.ImportFrom)]
    assert len(statements) == len(block.body)
    seen = {a.name: f"{n.module}:{a.name}" if n.module else a.name for n in statements for a in n.names}
    assert seen == cgnl._PUBLIC


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'cgnl' has no attribute 'CGNN'"):
        cgnl.CGNN  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def lock_files() -> list[Path]:
    if not (shutil.which("git") and (ROOT / ".git").exists()):
        return [ROOT / "requirements.lock"]
    listed = subprocess.run(["git", "ls-files", "*.lock"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split()]


def test_lock_file_has_no_index_address():
    assert lock_files()
    for path in lock_files():
        assert re.findall(r"\S*://\S*|--(?:extra-)?index-url|--find-links", path.read_text()) == []


def test_lock_file_pins_and_hashes_everything():
    entries = re.split(r"\n(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text())
    requirements = [entry for entry in entries if not entry.startswith("#")]
    assert len(requirements) > 10
    assert [e.split()[0] for e in requirements if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", e, re.S)] == []


def test_every_module_has_its_tests():
    mirrors = {
        module: ROOT / "tests" / path.relative_to(SOURCE / "cgnl").with_name(f"test_{path.name}")
        for module, path in FILES.items()
        if not path.name.startswith("__")
    }
    assert [module for module, path in mirrors.items() if not path.exists()] == []
