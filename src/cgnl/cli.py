"""The ``cgnl`` command. Nothing heavy is imported before a command is chosen."""

import difflib
import importlib
import inspect
import re
import sys

from . import __version__
from .extras import need

COMMANDS = {
    "data": ("cgnl.data.check:data", "check a dataset: cgnl data check ROOT"),
    "models": ("cgnl.models.table:models", "list the networks, with parameters and multiply-adds"),
}
"""Command -> (the function that does it, what it does)."""


def usage() -> str:
    lines = [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            f"cgnl {__version__}: compact generalized non-local networks",
            "",
            "usage: cgnl COMMAND [--option value | option=value ...]",
            "       cgnl COMMAND --help",
            "",
            *lines,
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in ("-h", "--help", "help"):
        print(usage())
        return 0
    if command in ("-V", "--version"):
        print(__version__)
        return 0
    if command not in COMMANDS:
        print(f"cgnl: there is no command {command!r}; there is {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        run(command, rest)
    except (ValueError, OSError, ImportError) as error:
        print(f"cgnl {command}: {error}", file=sys.stderr)
        return 2
    return 0


def run(command: str, arguments: list[str]) -> None:
    """Call a command's function with arguments read from its signature."""
    jsonargparse = need("jsonargparse", "cli")
    module, _, function = COMMANDS[command][0].partition(":")
    function = getattr(importlib.import_module(module), function)
    options = inspect.signature(function).parameters
    arguments = [f"--{a}" if re.match(r"[A-Za-z_][\w.-]*=", a) else a for a in arguments]  # option=value
    check_names(arguments, list(options))
    parser = jsonargparse.ArgumentParser(prog=f"cgnl {command}", description=COMMANDS[command][1].capitalize() + ".")
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    switches = {f"--{name}" for name, option in options.items() if option.default is False}
    followers = [*arguments, ""][1:]
    arguments = [  # a switch by itself means yes
        f"{a}=true" if a in switches and b not in ("true", "false") else a
        for a, b in zip(arguments, followers, strict=True)
    ]
    function(**parser.parse_args(arguments).as_dict())


def check_names(arguments: list[str], known: list[str]) -> None:
    """Refuse a misspelt option with the nearest right one."""
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith("--") and name not in (*known, "help"):
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(known)}"
            raise ValueError(f"there is no option {name!r}; {hint}")
