"""What the docstrings of public names promise: every parameter, the shapes of tensors, and defaults as they are."""

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

import cgnl
from cgnl.cli import COMMANDS
from cgnl.models.pretrained import Network
from cgnl.timm_models import run_script

SHAPE = re.compile(r"\[(?=[^]]*[A-Za-z])\*?[\w.][\w'. ]*(, \*?[\w.][\w'. ]*)*\]")
"""[B, C, *positions], [1, channels, *positions], [*positions], [B, C, 1, ..], but not [0, 1]."""
ARGUMENTS = re.compile(r"^Args:\n(.*?)(?=^\S|\Z)", re.M | re.S)
AS_FOR = re.compile(r"as for ``(\w+)``")


def public() -> Iterator[tuple[str, Any]]:
    """Names and what they stand for: of the package, of its public modules, and the functions of commands."""
    for name in cgnl.__all__:
        value = getattr(cgnl, name)
        yield name, value
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{inner}", getattr(value, inner)) for inner in value.__all__)
    yield "models.pretrained.Network", Network
    yield "timm_models.run_script", run_script
    for command in COMMANDS:
        yield f"cgnl {command}", getattr(importlib.import_module(f"cgnl.commands.{command}"), command)


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that we wrote, of a class and of what it inherits from."""
    for name, value in inspect.getmembers(cls):
        ours = any(name in vars(base) and base.__module__.startswith("cgnl.") for base in cls.__mro__)
        if ours and not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
            yield name, value


PUBLIC = dict(public())
CALLED = {name: value for name, value in PUBLIC.items() if callable(value)}
METHODS = {f"{n}.{m}": f for n, cls in CALLED.items() if isinstance(cls, type) for m, f in methods(cls)}


@functools.cache
def described(source: Any) -> dict[str, str]:
    """What stands below the fields of a class or the constants of a module, by their names."""
    body = ast.parse(textwrap.dedent(inspect.getsource(source))).body
    body = body[0].body if isinstance(body[0], ast.ClassDef) else body
    texts = {}
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(below, ast.Expr):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            texts[ast.unparse(target)] = ast.literal_eval(below.value)
    return texts


def arguments(text: str) -> dict[str, str]:
    """Parameter -> what the ``Args:`` of a docstring say about it."""
    section = ARGUMENTS.search(text)
    entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M)
    return {name.strip(): said for names, said in entries for name in names.split(",")}


def parameters(function: Callable) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "self"]


def says(parameter: inspect.Parameter, text: str) -> bool:
    """Whether a description tells what holds unless the parameter is given. A switch is off unless it says so."""
    default = parameter.default
    if default is parameter.empty:
        return "unless given" not in text
    if default is None:
        return bool(re.search(r"\bnone\b|unless given|if not given|default", text, re.I))
    return default in (False, ()) or bool(re.search(rf"(?<![\w.]){re.escape(str(default))}(?!\.?\w)", text))


def problems(value: Any, known: Mapping[str, Callable], defaults: bool = True) -> list[str]:
    """What the docstring of a function or class leaves out, or says wrongly."""
    text, taken = inspect.getdoc(value) or "", parameters(value)
    entries = arguments(text)
    found = [f"there is no parameter {name}" for name in entries.keys() - {p.name for p in taken}]
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        entries |= {p.name: text for p in taken if re.search(rf"\b{p.name}\b", text)} | described(value)
    if len(taken) == 1 and taken[0].default is taken[0].empty:  # a sentence will do
        entries.setdefault(taken[0].name, text)
    for parameter in taken:
        name, said = parameter.name, entries.get(parameter.name)
        if said is None:
            found.append(f"{name} is not described")
        elif see := AS_FOR.search(said):
            if parameter.replace(kind=parameter.KEYWORD_ONLY) not in (
                p.replace(kind=p.KEYWORD_ONLY) for p in parameters(known[see[1]])
            ):
                found.append(f"{name} is not as for {see[1]}")
        else:
            if defaults and not says(parameter, said):
                found.append(f"{name}: nothing says that it is {parameter.default!r}")
            if parameter.annotation is Tensor and not SHAPE.search(said):
                found.append(f"{name} has no shape")
    if not isinstance(value, type) and returns_tensor(value) and not SHAPE.search(ARGUMENTS.sub("", text)):
        found.append("what is returned has no shape")
    return found


def returns_tensor(function: Any) -> bool:
    return "Tensor" in str(inspect.signature(function).return_annotation)


def example(x: Tensor, order: int = 3, *, scale: str | None = None, heat: bool = False) -> Tensor:
    raise NotImplementedError


RIGHT = """One line: [B, C] -> [B].

Args:
    x: [B, C].
    order: of the series, 3 unless given.
    scale: a name, or None.
    heat: warmer.
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("    heat: warmer.\n", "", ["heat is not described"]),
        ("heat:", "heat, cold:", ["there is no parameter cold"]),
        ("x: [B, C]", "x: in [0, 1]", ["x has no shape"]),
        (": [B, C] -> [B]", "", ["what is returned has no shape"]),
        ("3 unless", "2 unless", ["order: nothing says that it is 3"]),
        ("a name, or None", "a name", ["scale: nothing says that it is None"]),
        ("of the series, 3 unless given", "as for ``example``", []),
        ("of the series, 3 unless given", "as for ``other``", ["order is not as for other"]),
    ],
)
def test_problems_finds(monkeypatch, old, new, expected):
    monkeypatch.setattr(example, "__doc__", RIGHT.replace(old, new))
    assert problems(example, {"example": example, "other": lambda order=2: order}) == expected


@pytest.mark.parametrize("name", CALLED)
def test_function_or_class_describes_its_parameters(name):
    known = {key.rpartition(".")[2]: value for key, value in CALLED.items()}
    value = CALLED[name]
    text = inspect.getdoc(value)
    assert text
    assert not text.startswith(f"{value.__name__}(")  # which a dataclass writes for itself
    assert problems(value, known, defaults=not name.startswith("cgnl ")) == []  # the help of a command adds them


@pytest.mark.parametrize("name", METHODS)
def test_method_describes_itself(name):
    value = METHODS[name]
    function: Any = value.fget if isinstance(value, property) else value
    text, names = inspect.getdoc(value) or "", [p.name for p in parameters(function)]
    assert text
    if len(names) > 1:
        assert [n for n in names if not re.search(rf"\b{n}\b", text)] == []
    if returns_tensor(function):
        assert SHAPE.search(text)


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if name not in CALLED])
def test_module_or_constant_describes_itself(name):
    value = PUBLIC[name]
    package, _, constant = name.rpartition(".")
    if isinstance(value, ModuleType):
        assert value.__doc__
    else:
        files = Path(str(getattr(cgnl, package).__file__)).parent.glob("*.py")
        modules = [importlib.import_module(f"cgnl.{package}.{file.stem}".removesuffix(".__init__")) for file in files]
        assert any(described(module).get(constant) for module in modules)
