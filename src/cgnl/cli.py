"""The ``cgnl`` command. Nothing heavy is imported before a command has read its arguments."""

import argparse
import dataclasses
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any

from . import __version__
from .extras import need, with_extra
from .text import nearest, printable

COMMANDS = {
    "new": ("cli", "look at a dataset and write a recipe for it: cgnl new FOLDER [-o RECIPE.yaml]"),
    "train": ("train", "train and test a network: cgnl train [RECIPE] [data.root=FOLDER] | --resume RUN"),
    "eval": ("train", "test checkpoints by the full protocol: cgnl eval RUN"),
    "predict": ("train", "classify files, or detect objects in them: cgnl predict RUN FILE ..."),
    "explain": ("explain", "show what a network attends to: cgnl explain RUN FILE --at x,y -o a.png"),
    "diagnose": ("train", "test whether the attention matters: cgnl diagnose RUN [FOLDER]"),
    "report": ("explain", "write a page about one run or several: cgnl report RUN [RUN ...]"),
    "app": ("app", "try networks in a browser: cgnl app RUN [OTHER]"),
    "export": ("export", "write a file that runs elsewhere: cgnl export RUN model.onnx"),
    "data": ("cli", "check, show, draw, shrink, pack or convert a dataset: cgnl data check FOLDER"),
    "models": ("cli", "list the networks, with parameters and multiply-adds: cgnl models [NAME]"),
    "reproduce": ("reproduce", "fill in a table of the paper: cgnl reproduce cub-kernels [--scale small|embedded]"),
    "bench": ("cli", "measure time, memory and error: cgnl bench block | network | ops | serve"),
}
"""Command -> the extra that it needs, and what it does. ``cgnl.commands.NAME`` has a function of this name."""

QUIET = (
    r"PIL|matplotlib|scipy\.stats|cgnl\.(atomic_io|commands|report|explain)"
    r"|torch\.(serialization|_weights_only_unpickler)"
)
"""Modules whose warnings about odd files are hidden; commands say themselves what matters."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    warnings.filterwarnings("ignore", module=QUIET)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or a lost rank is told by stack traces of C++, too
    try:
        if command in ("-h", "--help", "help"):
            print(usage())
        elif command in ("-V", "--version"):
            print(__version__)
        elif command not in COMMANDS:
            wrong = f"there is no command {command!r}{nearest(command, COMMANDS)}"
            print(f"cgnl: {printable(wrong)}", file=sys.stderr)
            return 2
        else:
            run(command, rest)
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError) as error:
        print(f"cgnl {command}: {printable(explain_error(error, command))}", file=sys.stderr)
        return 2
    return 0


def usage() -> str:
    commands = "\n".join(f"  {name:10} {text}" for name, (_, text) in COMMANDS.items())
    return f"""cgnl {__version__}: compact generalized non-local networks

usage: cgnl COMMAND [ARGUMENT ...] [option=value | --option value ...]
       cgnl COMMAND --help

{commands}"""


def explain_error(error: Exception, command: str) -> str:
    """Return an error's message; with the missing extra, or with the file first and without the system's number."""
    if isinstance(error, ModuleNotFoundError):
        return str(with_extra(error, COMMANDS[command][0]))
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename} cannot be read or written: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return f"a file cannot be read or written: {error.strerror}"
    return str(error)


def run(command: str, arguments: list[str]) -> None:
    """Call a command's function with arguments read by its signature.

    Words fill its parameters in order and then ``*more``. Options go by name. If it takes ``**settings``, the settings
    of a run are options too.
    """
    need("jsonargparse", COMMANDS[command][0])
    from .data.streams import allow_typed
    from .engine.config import check_overrides, check_test
    from .engine.settings import OfTest, setting_names
    from .engine.values import convert

    function = getattr(importlib.import_module(f"cgnl.commands.{command}"), command)
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    if {"-h", "--help"} & set(arguments):
        print_help(command, function, parameters)
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    takes_settings = any(p.kind is p.VAR_KEYWORD for p in parameters)
    switches = [n for n, p in named.items() if p.default is False] + (setting_names(bool) if takes_settings else [])
    allow_typed(arguments)
    words, options = split(arguments, [*named, *(setting_names() if takes_settings else [])], switches)
    for place in places:
        if words and place not in options:
            options[place] = words.pop(0)
    if words and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ValueError(f"there is no place for {words[0]!r}; see cgnl {command} --help")
    if missing := [n for n, p in named.items() if p.default is p.empty and n not in options]:
        raise ValueError(f"{missing[0]} is missing; see cgnl {command} --help")
    values = {n: convert(n, options.pop(n), p.annotation) for n, p in named.items() if n in options}
    if any(p.annotation == OfTest for p in parameters):
        check_test(options)
    check_overrides(options)  # before the command imports anything heavy
    positional = [values.pop(n, named[n].default) for n in places]
    function(*positional, *words, **values, **options)


def split(arguments: list[str], known: list[str], switches: list[str]) -> tuple[list[str], dict[str, str]]:
    """Split into words, and options as ``--name value``, ``--name=value``, ``name=value`` or a bare ``--switch``."""
    words: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        argument = "--output" if argument == "-o" else argument
        if not argument.startswith("--") and not re.match(r"[A-Za-z_][\w.-]*=", argument):
            words.append(argument)
            continue
        name, equals, value = argument.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name not in known and not (name.startswith("model.options.") and "model.options" in known):
            raise ValueError(f"there is no option {name!r}{nearest(name, known)}")
        if not equals and name in switches and (not rest or rest[0].lower() not in ("true", "false")):
            value = "true"
        elif not equals and not rest:
            raise ValueError(f"--{name} needs a value")
        elif not equals:
            value = rest.pop(0)
        options[name] = value.lower() if name in switches and value.lower() in ("true", "false") else value
    return words, options


def print_help(command: str, function: Callable[..., None], parameters: Iterable[Parameter]) -> None:
    """Print what a command does and takes, as docstrings say it."""
    from .engine.settings import SECTIONS, OfTest, why_not_tested

    docstrings = need("docstring_parser", COMMANDS[command][0])
    text = docstrings.parse(function.__doc__ or "")
    words: dict[str, str] = {}  # all that are required, and the first that is not
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            words[p.name] = f"[{p.name.upper()} ...]"
        elif p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty:
            words[p.name] = p.name.upper()
        elif p.kind is p.POSITIONAL_OR_KEYWORD and not any(word.startswith("[") for word in words.values()):
            words[p.name] = f"[{p.name.upper()}]"
    parser = argparse.ArgumentParser(
        prog=f"cgnl {command}",
        usage=" ".join(["cgnl", command, *words.values(), "[option=value ...]"]),
        description=text.description,
    )
    about = {p.arg_name: p.description for p in text.params}
    for p in parameters:
        if p.name in words:
            parser.add_argument(p.name, metavar=p.name.upper(), help=about.get(p.name, "").replace("%", "%%"))
        elif p.kind is not p.VAR_KEYWORD:
            add_option(parser, p.name, p.annotation, p.default, about.get(p.name, ""))
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        parser.add_argument_group("settings", about.get("settings"))
        own = {p.name for p in parameters}  # which come before settings of the same name
        of_test = any(p.annotation == OfTest for p in parameters)
        for prefix, section in SECTIONS.items():
            text = docstrings.parse_from_object(section)
            about = {p.arg_name: p.description for p in text.params}
            group = parser.add_argument_group(text.short_description.removesuffix("."))
            for f in dataclasses.fields(section):
                name = f"{prefix}{f.name}"
                if f"{f.name}." not in SECTIONS and name not in own and not (of_test and why_not_tested(name)):
                    add_option(group, name, f.type, f.default, about.get(f.name, ""))
    parser.print_help()


def add_option(group: Any, name: str, kind: Any, default: Any, text: str) -> None:
    """Add an option to the help, with its choices or its type, and its default."""
    from .engine.values import WORDS, choices, describe

    text = text.replace("%", "%%")
    if default is False:
        group.add_argument(f"--{name}", action="store_true", help=text)
        return
    if default not in (None, Parameter.empty, (), dataclasses.MISSING):
        shown = {"True": "true"}.get(str(default), default)
        text += f" (default: {list(default) if isinstance(default, tuple) else shown})"
    plain = {WORDS[int]: "INT", WORDS[float]: "FLOAT", WORDS[bool]: "true|false"}
    plain_type = plain.get(describe(kind).removesuffix(" or null"))
    metavar = "|".join(choices(kind)) or plain_type or name.rpartition(".")[2].upper()
    group.add_argument(f"--{name}", metavar=metavar, help=text)
