"""What the harnesses of kills and races share: their options, and how they end."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def make_parser(description: str | None, counted: str, count: int, about: str) -> argparse.ArgumentParser:
    """A parser with the number of experiments and a file for the figures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{counted}", type=int, default=count, help=about)
    parser.add_argument("--output", type=Path, help="write the figures to a file too")
    return parser


def report(lines: Sequence[str], faults: Sequence[str], output: Path | None) -> int:
    """Print the figures and the faults, write them to a file if one is given, and return the exit status."""
    text = "\n".join([*lines, *faults]) + "\n"
    print(text, end="")
    if output:
        output.write_text(text)
    return int(bool(faults))
