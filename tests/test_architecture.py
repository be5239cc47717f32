"""Which way the rooms of the library may look, and what it promises to show."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cgnl

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "cgnl").rglob("*.py"))
}

CORE = {"ops", "kernels", "blocks", "heads", "surgery"}
UP_TO_MODELS = CORE | {"models", "extras", "spelling"}
LOOKS_AT = {
    "extras": set(),
    "spelling": set(),
    "ops": set(),
    "kernels": {"ops"},
    "blocks": {"ops"},
    "heads": {"ops", "blocks"},
    "surgery": {"ops", "blocks"},
    "models": CORE | {"extras", "spelling"},
    "data": {"extras", "spelling"},
    "engine": UP_TO_MODELS | {"data"},
    "explain": UP_TO_MODELS | {"data", "engine"},
    "export": UP_TO_MODELS | {"data", "engine"},
    "bench": UP_TO_MODELS | {"export"},
    "report": UP_TO_MODELS | {"data", "engine", "explain"},
    "experiments": UP_TO_MODELS | {"data", "engine", "explain", "bench"},
    "commands": UP_TO_MODELS | {"data", "engine", "explain", "export", "bench", "report", "experiments"},
    "timm_models": CORE | {"extras"},
    "__main__": {"cli"},
    "cli": {"engine", "extras", "spelling"},
}
"""Room -> other rooms it may import. The package's own ``__init__`` looks everywhere, lazily."""

ONLY_IN = {
    "triton": "cgnl.ops.fused",
    "lightning": "cgnl.engine",
    "pytorch_lightning": "cgnl.engine",
    "gradio": "cgnl.report.app",
}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Every module that is imported anywhere in the source, by a statement or by name."""
    here = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in FILES else base
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("need", "import_module", "__import__"):
                yield str(node.args[0].value)


def imports_of(module: str) -> list[str]:
    path = FILES[module]
    return list(imports(path.read_text(), module, path.name == "__init__.py"))


def third_party(module: str) -> set[str]:
    tops = {name.partition(".")[0] for name in imports_of(module)}
    return tops - sys.stdlib_module_names - {"cgnl"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import triton.language as tl", {"triton.language"}),
        ("from ..blocks import CGNL", {"cgnl.blocks"}),
        ("from .. import blocks, __version__", {"cgnl.blocks", "cgnl"}),
        ("from . import kernels", {"cgnl.ops.kernels"}),
        ("def f():\n    from cgnl.models.table import cost", {"cgnl.models.table"}),
        ("need('lightning.pytorch', 'train')", {"lightning.pytorch"}),
        ("importlib.import_module('torchvision')", {"torchvision"}),
    ],
)
def test_imports_finds(source, expected):
    assert set(imports(source, "cgnl.ops.reference")) == expected


@pytest.mark.parametrize("module", [name for name in FILES if name != "cgnl"])
def test_module_looks_only_where_its_room_may(module):
    room = room_of(module)
    assert room in LOOKS_AT, f"give the new room {room!r} its place in LOOKS_AT"
    seen = {room_of(name) for name in imports_of(module) if name.startswith("cgnl.")}
    assert seen <= LOOKS_AT[room] | {room}


@pytest.mark.parametrize("module", [name for name in FILES if room_of(name) in CORE])
def test_core_module_imports_torch_alone(module):
    allowed = {"torch", "triton"} if module.startswith("cgnl.ops.fused") else {"torch"}
    assert third_party(module) <= allowed


@pytest.mark.parametrize(("package", "home"), ONLY_IN.items())
def test_package_is_imported_in_one_place_only(package, home):
    elsewhere = [
        module for module in FILES if package in third_party(module) and not f"{module}.".startswith(f"{home}.")
    ]
    assert elsewhere == []


@pytest.mark.parametrize("module", ["cgnl", "cgnl.cli", "cgnl.extras", "cgnl.spelling"])
def test_module_needed_for_help_is_light(module):
    assert third_party(module) <= {"jsonargparse", "docstring_parser"}


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
