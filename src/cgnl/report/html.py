"""HTML from Python: everything is escaped but what was made here."""

import base64
import html
from collections.abc import Sequence
from importlib import resources
from typing import Any


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: object, **attributes: Any) -> Markup:
    """One element. Children that are not markup are escaped; ``class_`` is the attribute class."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    start = f"<{name}{''.join(words)}>"
    return Markup(start if name in ("img", "meta", "br") else f"{start}{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Children one after the other; lists are laid flat and ``None`` is left out."""
    parts = []
    for child in children:
        if isinstance(child, (list, tuple)):
            parts.append(join(*child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else html.escape(str(child)))
    return Markup("".join(parts))


def table(head: Sequence[object], rows: Sequence[Sequence[object]], class_: str | None = None) -> Markup:
    """A table; the first column names the rows. It scrolls by itself where the page is narrow."""
    body = [tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]]) for row in rows]
    top = tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head]))
    return tag("div", tag("table", top, tag("tbody", body), class_=class_), class_="wide")


def bar(share: float) -> Markup:
    """A share as a bar."""
    return tag("div", tag("i", style=f"width:{100 * share:.1f}%"), class_="bar")


def picture(webp: bytes, text: str) -> Markup:
    """A WebP file that lies in the page itself."""
    return tag("img", src=f"data:image/webp;base64,{base64.b64encode(webp).decode()}", alt=text, title=text)


def page(title: str, *body: object) -> str:
    """The whole file. It asks nobody for anything: a policy in its head forbids that."""
    style = (resources.files("cgnl.report") / "style.css").read_text()
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *body)), lang='en')}\n"
