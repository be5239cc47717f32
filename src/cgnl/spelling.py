"""What a misspelt name was meant to be, how things are counted, and how the words of strangers are printed."""

import difflib
import math
from collections.abc import Iterable

LONGEST_WORD, LONGEST = 300, 2000
"""Letters of a word and of a sentence, whatever it quotes."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?``, or all there are. Of a dotted name the last part is enough."""
    known = list(known)
    whole = {k.rpartition(".")[2]: k for k in reversed(known)} | {k: k for k in known}
    close = difflib.get_close_matches(name, whole, n=1, cutoff=0.5)
    return f"; did you mean {whole[close[0]]}?" if close else f"; there is {', '.join(known)}"


def counted(number: int, thing: str) -> str:
    """``1 class``, ``2 classes``, ``1,000 runs``."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def format_duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``1 h 02 min``; a line where nobody knows."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def printable(text: object) -> str:
    """One line that a terminal can show: no control characters, and what is too long without its middle."""
    line = _shortened(" ".join(_shortened(word, LONGEST_WORD) for word in str(text).split()), LONGEST)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def first_line(error: object) -> str:
    """What an error says, without its explanations; its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 3]} ... {text[3 - most // 2 :]}"
