"""Tables as Markdown."""

from collections.abc import Iterable, Sequence


def grid(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line of titles."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
