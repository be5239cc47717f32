"""Other people's modules, from a file: ``path/to/file.py:Class`` or ``path/to/file.py:Class(C, inner, groups=8)``."""

import ast
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ..text import nearest
from .registry import BENCHMARKS, Setting, Subject


def peer_subjects(text: str, setting: Setting) -> list[Subject]:
    """A row for each peer, named by its class, or by its whole spelling where that name is taken."""
    numbers = {"C": setting.channels, "inner": setting.inner, "groups": setting.groups}
    numbers |= {"ndim": len(setting.size), "N": math.prod(setting.size)}
    spellings = [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]  # commas outside brackets
    peers = [(spelling, *parse(spelling, numbers)) for spelling in spellings]
    names = [name for _, name, _ in peers] + [subject.name for subject in BENCHMARKS["block"].subjects]
    return [
        Subject(name if names.count(name) == 1 else spelling, lambda _, build=build: build())
        for spelling, name, build in peers
    ]


def parse(spelling: str, numbers: Mapping[str, int]) -> tuple[str, Callable[[], Any]]:
    """Name and constructor of a peer, whose arguments may name ``numbers``; without arguments it gets C."""
    match = re.fullmatch(r"(.+\.py):([^:]+)", spelling)
    if not match:
        raise ValueError(f"a peer is spelt path/to/file.py:Class or path/to/file.py:Class(C, inner), got {spelling!r}")
    path = Path(match[1]).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} to take a peer from")
    call = match[2].strip()
    try:
        node = ast.parse(call if call.endswith(")") else f"{call}()", mode="eval").body
    except SyntaxError:
        node = None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{call!r} is not the name of a class, or a call of one")
    keywords = {str(k.arg): _value(k.value, numbers) for k in node.keywords}
    arguments = [_value(argument, numbers) for argument in node.args] or ([] if keywords else [numbers["C"]])
    return node.func.id, partial(_find(_load(path), node.func.id), *arguments, **keywords)


def _load(path: Path) -> ModuleType:
    """Import a file once; it can import its neighbours."""
    name = "cgnl_peer_" + re.sub(r"\W", "_", str(path.resolve()))
    if name in sys.modules:
        return sys.modules[name]
    loader = SourceFileLoader(name, str(path))
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ImportError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
    finally:
        sys.path.pop(0)
    return module


def _find(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        own = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]
        raise ValueError(f"{module.__file__} has no {name!r}{nearest(name, own)}")
    return found


def _value(node: ast.expr, numbers: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in numbers:
            raise ValueError(f"{node.id!r} has no value here{nearest(node.id, numbers)}")
        return numbers[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} must be a number, a text or one of {', '.join(numbers)}") from None
