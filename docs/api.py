"""The API reference: Markdown from the signatures and docstrings of all public names."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import docstring_parser

import cgnl
from cgnl.trained import Trained

BESIDES = {"trained.Trained": Trained}
"""What public functions return, and people use."""


def public() -> Iterator[tuple[str, Any]]:
    """Names and what they stand for: first of the package itself, then module by module."""
    values = {name: getattr(cgnl, name) for name in cgnl.__all__}
    yield from ((f"cgnl.{name}", value) for name, value in values.items() if not isinstance(value, ModuleType))
    yield from ((f"cgnl.{name}", value) for name, value in BESIDES.items())
    for name, module in values.items():
        if isinstance(module, ModuleType):
            yield f"cgnl.{name}", module
            yield from ((f"cgnl.{name}.{inner}", getattr(module, inner)) for inner in module.__all__)


def write_reference() -> str:
    """The page."""
    parts = ["# API", "Made from the docstrings. Shapes are in brackets; B is the batch.", "## cgnl"]
    for name, value in public():
        parts += _describe(name, value)
    return "\n\n".join(parts) + "\n"


def _describe(name: str, value: Any) -> Iterator[str]:
    level = "##" if isinstance(value, ModuleType) else "###"
    yield f"{level} {_code(name)} {{ #{name} }}"
    if isinstance(value, ModuleType):
        yield from _text(value.__doc__)
    elif inspect.isroutine(value):
        yield from _function(name, value)
    elif isinstance(value, type):
        yield from _class(name, value)
    else:  # a constant
        yield _block(f"{name} = {value!r}")
        yield from _text(_find_constant(name))


def _class(name: str, cls: type) -> Iterator[str]:
    yield _block(f"{name}{_signature(cls)}")
    text = inspect.getdoc(cls)
    yield from _docstring(text if text and not text.startswith(f"{cls.__name__}(") else None)
    fields = {field: said for base in reversed(cls.__mro__) if _is_ours(base) for field, said in _fields(base).items()}
    if fields:
        yield "\n".join(f"* {_code(field)}: {_inline(said)}" for field, said in fields.items())
    for method, value in inspect.getmembers(cls):
        ours = any(method in vars(base) and _is_ours(base) for base in cls.__mro__)
        if not ours or method.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"#### {_code(f'.{method}')} {{ #{name}.{method} }}"
            yield from _docstring(inspect.getdoc(value))
        elif inspect.isroutine(value) and value.__doc__:  # its own, not that of torch
            yield f"#### {_code(f'.{method}')} {{ #{name}.{method} }}"
            yield from _function(method, value)


def _function(name: str, function: Any) -> Iterator[str]:
    yield _block(f"{name}{_signature(function)}")
    yield from _docstring(inspect.getdoc(function))


def _signature(value: Any) -> str:
    """The signature, one parameter a line if it is long."""
    signature = inspect.signature(value)
    taken = [p for p in signature.parameters.values() if p.name != "self"]
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", str(signature.replace(parameters=taken)))  # torch.Tensor -> Tensor
    if len(text) < 80:
        return text
    lines = [re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", str(p)) for p in taken]
    for kind, mark in ((inspect.Parameter.KEYWORD_ONLY, "*"), (inspect.Parameter.POSITIONAL_ONLY, "/")):
        places = [i for i, p in enumerate(taken) if p.kind is kind]
        if places and not any(p.kind is p.VAR_POSITIONAL for p in taken):
            lines.insert(places[0] if mark == "*" else places[-1] + 1, mark)
    return "(\n" + "".join(f"    {line},\n" for line in lines) + ")" + text[text.rindex(")") + 1 :]


def _docstring(text: str | None) -> Iterator[str]:
    """A docstring in Google's style as Markdown."""
    parsed = docstring_parser.parse(text or "", style=docstring_parser.DocstringStyle.GOOGLE)
    yield from _text(parsed.description)
    if parsed.params:
        yield "\n".join(f"* {_code(p.arg_name)}: {_inline(p.description)}" for p in parsed.params)
    if parsed.returns and parsed.returns.description:
        kind = f"{parsed.returns.type_name}: " if parsed.returns.type_name else ""
        yield f"**Returns** {_inline(kind + parsed.returns.description)}"
    for error in parsed.raises:
        yield f"**Raises** {_code(error.type_name or '')}: {_inline(error.description)}"


def _text(text: str | None) -> Iterator[str]:
    """Paragraphs; indented ones are shown as they are."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "").strip("\n")):
        if paragraph.startswith((" ", ">>>")):
            yield _block(textwrap.dedent(paragraph))
        elif paragraph.startswith(("* ", "- ")):
            yield "\n".join(f"* {_inline(item)}" for item in re.split(r"^[*-] ", paragraph, flags=re.M)[1:])
        elif paragraph.strip():
            yield _inline(paragraph)


def _inline(text: str | None) -> str:
    return _escape(" ".join((text or "").split()))


def _escape(text: str) -> str:
    """Escape what Markdown would read as marks, but not in code."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    return "".join(part if i % 2 else re.sub(r"([\[\]<*_|])", r"\\\1", part) for i, part in enumerate(parts))


def _code(text: str) -> str:
    return f"`{text}`"


def _block(text: str) -> str:
    return f"```python\n{text}\n```"


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("cgnl.")


def _fields(cls: type) -> dict[str, str]:
    """Public fields of a class -> what stands below them."""
    known = (
        {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {*getattr(cls, "_fields", ())}
    )
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {name: said for name, said in _said_below(tree.body) if name in known}


def _find_constant(name: str) -> str | None:
    """What stands below a constant, in whichever module of its package it is."""
    package, _, constant = name.rpartition(".")
    room = importlib.import_module(package)
    for module in (value for value in [room, *vars(room).values()] if isinstance(value, ModuleType)):
        said = (
            dict(_said_below(ast.parse(inspect.getsource(module)).body)) if module.__name__.startswith("cgnl") else {}
        )
        if constant in said:
            return said[constant]
    return None


def _said_below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Assigned names and the text in the next line."""
    for node, below in itertools.pairwise(body):
        text = below.value if isinstance(below, ast.Expr) else None
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            continue
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield ast.unparse(target), inspect.cleandoc(text.value)


if __name__ == "__main__":
    print(write_reference())
