"""Other people's modules, from a file: ``path/to/file.py:Class`` or ``path/to/file.py:Class(C, inner, groups=8)``."""

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..spelling import nearest


@dataclass(frozen=True)
class Peer:
    """A call of something in a file, whose arguments may name the numbers of a setting."""

    text: str
    path: Path
    name: str
    arguments: tuple[ast.expr, ...]
    keywords: tuple[ast.keyword, ...]

    def build(self, numbers: Mapping[str, int]) -> Any:
        """Call it. Without arguments of its own it gets the channels."""
        factory = find(load(self.path), self.name)
        arguments = [_value(node, numbers) for node in self.arguments]
        keywords = {str(k.arg): _value(k.value, numbers) for k in self.keywords}
        return factory(*arguments, **keywords) if arguments or keywords else factory(numbers["C"])


def split(text: str) -> list[str]:
    """Parts between commas that stand outside brackets."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def parse(text: str, known: Mapping[str, int]) -> Peer:
    """Read the spelling of a peer, and refuse what could not be built; ``known`` are the numbers it may name."""
    match = re.fullmatch(r"(.+\.py):([^:]+)", text)
    if not match:
        raise ValueError(f"a peer is spelt path/to/file.py:Class or path/to/file.py:Class(C, inner), got {text!r}")
    path = Path(match[1]).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} to take a peer from")
    try:
        node = ast.parse(match[2].strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{match[2]!r} is not the name of a class, or a call of one") from None
    function, arguments, keywords = (
        (node.func, node.args, node.keywords) if isinstance(node, ast.Call) else (node, (), ())
    )
    if not isinstance(function, ast.Name):
        raise ValueError(f"{match[2]!r} is not the name of a class, or a call of one")
    peer = Peer(text, path, function.id, tuple(arguments), tuple(keywords))
    for value in [*peer.arguments, *(k.value for k in peer.keywords)]:
        _value(value, known)
    find(load(path), peer.name)
    return peer


def load(path: Path) -> ModuleType:
    """Import a file, once; its neighbours can be imported by it."""
    name = "cgnl_peer_" + re.sub(r"\W", "_", str(path.resolve()))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ImportError(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
    finally:
        sys.path.pop(0)
    return module


def find(module: ModuleType, name: str) -> Callable[..., Any]:
    own = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]
    found = getattr(module, name, None)
    if not callable(found):
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
