"""The ``cgnl`` command. Nothing heavy is imported before a command is chosen."""

import argparse
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from . import __version__
from .extras import need, with_extra
from .spelling import nearest, printable

COMMANDS = {
    "train": ("cgnl.commands.train:train", "train a network: cgnl train [RECIPE] [data.root=FOLDER] [--resume]"),
    "eval": ("cgnl.commands.eval:eval", "test checkpoints by the full protocol: cgnl eval last.ckpt"),
    "predict": ("cgnl.commands.predict:predict", "name or find what is in files: cgnl predict last.ckpt FILE ..."),
    "explain": (
        "cgnl.commands.explain:explain",
        "show what it attends to: cgnl explain last.ckpt FILE --at x,y -o a.png",
    ),
    "diagnose": ("cgnl.commands.diagnose:diagnose", "whether the attention matters: cgnl diagnose last.ckpt [FOLDER]"),
    "report": ("cgnl.commands.report:report", "a page about a run, or several: cgnl report RUN [RUN ...]"),
    "app": ("cgnl.commands.app:app", "try networks in a browser: cgnl app last.ckpt [OTHER.ckpt]"),
    "export": ("cgnl.commands.export:export", "a file that runs elsewhere: cgnl export last.ckpt model.onnx"),
    "data": (
        "cgnl.commands.data:data",
        "prepare datasets: cgnl data check FOLDER | draw FOLDER | shrink ROOT OUT | convert cityscapes ROOT OUT",
    ),
    "models": ("cgnl.commands.models:models", "list the networks, with parameters and multiply-adds"),
    "reproduce": (
        "cgnl.commands.reproduce:reproduce",
        "fill in a table of the paper: cgnl reproduce cub-kernels [--scale small|embedded]",
    ),
    "bench": ("cgnl.commands.bench:bench", "measure time, memory and error: cgnl bench block | network | ops | serve"),
}
"""Command -> (the function that does it, what it does)."""

EXTRAS = {
    **dict.fromkeys(("data", "models", "bench"), "cli"),
    **dict.fromkeys(("eval", "predict", "diagnose"), "train"),
    "report": "explain",
}
"""Command -> the extra that it needs, where that is not called like the command."""

SHORT = {"-o": "--output"}
"""Options that have a short name."""
QUIET = (
    "PIL",
    "matplotlib",
    "cgnl.commands",
    "cgnl.report",
    "cgnl.explain",
    "torch.serialization",
    "torch._weights_only_unpickler",
)
"""Who warns of what is odd about a file, or is blamed for it; a command says itself whether that matters."""


def usage() -> str:
    lines = [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            f"cgnl {__version__}: compact generalized non-local networks",
            "",
            "usage: cgnl COMMAND [WORD ...] [--option value | option=value ...]",
            "   cgnl COMMAND --help",
            "",
            *lines,
        ]
    )


def extra_of(command: str) -> str:
    return EXTRAS.get(command, command)


def main(arguments: list[str] | None = None) -> int:
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for module in QUIET:
        warnings.filterwarnings("ignore", module=module)
    try:
        if command in ("-h", "--help", "help"):
            print(usage())
        elif command in ("-V", "--version"):
            print(__version__)
        elif command not in COMMANDS:
            wrong = f"there is no command {command!r}; there is {', '.join(COMMANDS)}"
            print(f"cgnl: {printable(wrong)}", file=sys.stderr)
            return 2
        else:
            run(command, rest)
    except BrokenPipeError:  # whoever read us, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError) as error:
        missing = isinstance(error, ModuleNotFoundError)
        said = with_extra(error, extra_of(command)) if missing else in_words(error)
        print(f"cgnl {command}: {printable(said)}", file=sys.stderr)
        return 2
    return 0


def in_words(error: Exception) -> str:
    """What an error says; one of the system's without its number, and with the file first."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename} cannot be read or written: {error.strerror}"
    return str(error)


def run(command: str, arguments: list[str]) -> None:
    """Call a command's function with arguments read from its signature.

    Words fill its parameters in order and then ``*more``; options go by name, and where it takes ``**settings`` by the
    dotted names of a run's settings too.
    """
    need("jsonargparse", extra_of(command))  # before what takes a while
    module, _, name = COMMANDS[command][0].partition(":")
    function = getattr(importlib.import_module(module), name)
    parameters = inspect.signature(function).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    settings = setting_names() if any(p.kind is p.VAR_KEYWORD for p in parameters) else []
    parser = parser_of(command, function, bool(settings))
    if {"-h", "--help"} & set(arguments):
        parser.print_help()
        return
    switches = [n for n, p in named.items() if p.default is False] + (setting_names(bool) if settings else [])
    words, options = split(arguments, [*named, *settings], switches)
    for place in places:
        if words and place not in options:
            options[place] = words.pop(0)
    if words and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ValueError(f"there is no place for {words[0]!r}; cgnl {command} --help says what there is")
    if missing := [n for n, p in named.items() if p.default is p.empty and n not in options]:
        raise ValueError(f"{missing[0]} is missing; cgnl {command} --help says what there is")
    try:
        values = parser.parse_args([f"--{n}={v}" for n, v in options.items() if n in named]).as_dict()
    except Exception as error:  # jsonargparse's errors have no common type
        from .engine.config import complaint

        raise ValueError(complaint(error, {n: p.annotation for n, p in named.items()})) from None
    keywords = {n: values[n] for n in named if n not in places}
    function(*(values[n] for n in places), *words, **keywords, **{n: v for n, v in options.items() if n not in named})


def parser_of(command: str, function: Callable[..., None], settings: bool) -> Any:
    """A parser of the function's own options, which also describes the settings of a run."""
    jsonargparse = need("jsonargparse", extra_of(command))
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    text = COMMANDS[command][1]
    parser = jsonargparse.ArgumentParser(
        prog=f"cgnl {command}",
        description=f"{text[0].upper()}{text[1:]}",
        usage=usage_of(command, function),
        exit_on_error=False,
    )
    parser.add_function_arguments(function, as_group=False)
    if settings:
        from .engine.config import Config

        parser.add_class_arguments(Config, None)
        for action in parser._actions:  # a group is no setting
            if action.dest in ("data", "model", "optim"):
                action.help = argparse.SUPPRESS
    return parser


def usage_of(command: str, function: Callable[..., None]) -> str:
    """``cgnl predict CHECKPOINT [FILES ...] [option=value ...]``."""
    words = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            words.append(f"[{p.name.upper()} ...]")
        elif p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty:
            words.append(p.name.upper())
        elif p.kind is p.POSITIONAL_OR_KEYWORD and len(words) == 0:
            words.append(f"[{p.name.upper()}]")
    return " ".join(["cgnl", command, *words, "[option=value ...]"])


def setting_names(of_type: type | None = None) -> list[str]:
    from .engine.config import keys

    return keys(of_type)


def split(arguments: list[str], known: list[str], switches: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words, and options as ``--name value``, ``--name=value``, ``name=value`` or a bare ``--switch``."""
    words: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        argument = SHORT.get(argument, argument)
        if not argument.startswith("--") and not re.match(r"[A-Za-z_][\w.-]*=", argument):
            words.append(argument)
            continue
        name, equals, value = argument.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        check_name(name, known)
        if not equals and name in switches and (not rest or rest[0].lower() not in ("true", "false")):
            value = "true"
        elif not equals and not rest:
            raise ValueError(f"--{name} needs a value")
        elif not equals:
            value = rest.pop(0)
        options[name] = value.lower() if name in switches else value
    return words, options


def check_name(name: str, known: list[str]) -> None:
    """Refuse a misspelt option with the nearest right one."""
    if name not in known and not (name.startswith("model.options.") and "model.options" in known):
        raise ValueError(f"there is no option {name!r}{nearest(name, known)}")
