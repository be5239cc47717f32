"""Pages as a browser's parser reads them."""

import re
from html.parser import HTMLParser

import pytest

from cgnl.report.html import Markup, join, page, picture, table, tag

EVIL = "<script>alert(1)</script>\"'&"


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("make", [lambda e: tag("p", e), lambda e: tag("p", title=e), lambda e: join([e, None, [e]])])
def test_text_is_escaped(make):
    read = Reader(make(EVIL))
    assert "script" not in [name for name, _ in read.tags]
    assert EVIL in read.text + str([attributes.get("title") for _, attributes in read.tags]).replace("\\", "")


def test_markup_is_not_escaped_again():
    assert tag("p", tag("b", "a & b")) == "<p><b>a &amp; b</b></p>"


def test_tag_attributes():
    assert tag("td", 3, class_="x", aria_label="y", title=None) == '<td class="x" aria-label="y">3</td>'


def test_table_reads_as_it_was_given():
    read = Reader(table(["", "a"], [["x", 1], [EVIL, Markup("<b>2</b>")]]))
    assert [name for name, _ in read.tags].count("tr") == 3
    assert read.text == f"ax1{EVIL}2"


def test_picture_lies_in_the_page():
    (_, attributes), *_ = Reader(picture(b"\x00\x01", EVIL)).tags
    assert (attributes["src"], attributes["alt"]) == ("data:image/webp;base64,AAE=", EVIL)


def test_page_is_whole_and_asks_nobody():
    text = page(EVIL, tag("p", "body"))
    read = Reader(text)
    assert text.startswith("<!doctype html>")
    assert {"html", "head", "title", "style", "body"} <= {name for name, _ in read.tags}
    assert not {"script", "link", "iframe"} & {name for name, _ in read.tags}
    (policy,) = [a["content"] for name, a in read.tags if name == "meta" and a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert re.search(r"https?:|//", text) is None
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
