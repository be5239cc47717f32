"""Small helpers for messages: suggestions for misspelt names, plurals, and foreign text on one line.

Names of files and classes come from strangers and can hold control characters. Commands therefore print by ``say``, and
the log of a training has ``escape_record`` as its filter.
"""

import difflib
import math
import re
import sys
from collections.abc import Iterable, Sequence
from logging import LogRecord

LONGEST_WORD, LONGEST = 300, 2000
"""Most characters printed of a word and of a message."""

MOST_LISTED = 60
"""Most names that are listed."""

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change the terminal or the direction of text, or cannot be encoded."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean ...?`` if a known name is near, else ``; there is ...`` with all of them if not too many.

    Dotted names are compared by their last part, and only those of the same group are listed, unless the group itself
    is misspelt.
    """
    known = list(known)
    group, _, last = name.rpartition(".")
    siblings = [k for k in known if k.rpartition(".")[0] == group] if group else []
    choices = {k.rpartition(".")[2].lower(): k for k in [*reversed(known), *siblings]}  # siblings win
    if group and not siblings:
        last, choices = name, {k.lower(): k for k in known}
    near = difflib.get_close_matches(last.lower(), choices, n=1)
    if near:
        return f"; did you mean {choices[near[0]]}?"
    if len(siblings or known) <= MOST_LISTED:
        return f"; there is {', '.join(siblings or known)}"
    some = [choices[word] for word in difflib.get_close_matches(last.lower(), choices, n=3, cutoff=0.3)]
    return f"; there are {len(known):,}, such as {', '.join(some or known[:3])}"


def counted(number: int, thing: str) -> str:
    """``1 class``, ``2 classes``, ``1,000 runs``."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def format_duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``1 h 02 min``; a dash for infinity."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def printable(text: object) -> str:
    """Return text as one line for a terminal: no control characters, and too long words without their middle."""
    line = _shortened(" ".join(_shortened(word, LONGEST_WORD) for word in str(text).split()), LONGEST)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def percent(share: float) -> str:
    """``12.34%``, or a dash for the negative number by which COCO says that there is nothing to find."""
    return "-" if share < 0 else f"{share:.2%}"


def escape(text: object) -> str:
    """Return text with its control characters and line ends spelt out, as in ``\\x1b``."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], str(text))


def say(*lines: object, error: bool = False) -> None:
    """Print lines, without control characters, to stdout or to stderr."""
    print(*map(escape, lines), sep="\n", file=sys.stderr if error else sys.stdout, flush=True)


def escape_record(record: LogRecord) -> bool:
    """Spell out the control characters of a log's record; a filter."""
    record.msg, record.args = escape(record.getMessage()), ()
    return True


def first_line(error: object) -> str:
    """Return the first line of an error's message, or its type if it has no message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 3]} ... {text[3 - most // 2 :]}"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with a line of titles."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [titles, ["---"] * len(titles), *rows])
