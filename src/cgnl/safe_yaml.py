"""YAML from strangers: recipes, run folders and class names."""

from typing import Any

from .extras import need
from .text import first_line

LONGEST, DEEPEST = 2**20, 20
"""Most characters, and most brackets inside one another."""


def read(path: Any) -> Any:
    """Parse a file, of which no more is read than is allowed."""
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"{path} is too long: more than {LONGEST:,} bytes")
    try:
        return parse(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None


def parse(text: str, source: str) -> Any:
    """Parse YAML, but refuse what could take endless time or memory."""
    yaml = need("yaml", "cli")
    if len(text) > LONGEST:
        raise ValueError(f"{source} is too long: {len(text):,} characters")
    try:
        odd = _find_oddity(yaml, text)
        content = None if odd else yaml.safe_load(text)
    except Exception as error:  # a value that does not fit its tag, such as !!int, makes it raise anything
        raise ValueError(f"{source} is not YAML: {first_line(error)}") from None
    if odd:
        raise ValueError(f"{source} has {odd}")
    return content


def _find_oddity(yaml: Any, text: str) -> str | None:
    """Find an alias, by which a few lines can stand for more than memory holds, or endless lists in lists."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return "an alias (*), which is not allowed"
        if depth > DEEPEST:
            return f"more than {DEEPEST} brackets in one another"
    return None
