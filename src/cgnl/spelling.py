"""What a misspelt name was meant to be."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?``, or all there are. Of a dotted name the last part is enough."""
    known = list(known)
    whole = {k.rpartition(".")[2]: k for k in reversed(known)} | {k: k for k in known}
    close = difflib.get_close_matches(name, whole, n=1, cutoff=0.5)
    return f"; did you mean {whole[close[0]]}?" if close else f"; there is {', '.join(known)}"
