"""The site of the documents: built without a warning, with every public name, and no link into nothing."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urldefrag

import pytest

import cgnl

ROOT = Path(__file__).parents[1]


class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(
        self,
        tag: str,  # noqa: ARG002
        attrs: list[tuple[str, str | None]],
    ) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        self.links += [value for name in ("href", "src") if (value := given.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("built")
    done = subprocess.run([sys.executable, ROOT / "docs/site.py", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return {path: Page(path) for path in (folder / "site").rglob("*.html") if path.name != "404.html"}


def find(site: dict[Path, Page], name: str) -> Page:
    return next(page for path, page in site.items() if path.name == name)


@pytest.mark.long
def test_every_document_is_a_page_of_the_menu(site):
    menu = {link.removeprefix("./") for link in find(site, "api.html").links if link.startswith("./")}
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"} | {"CHANGELOG", "CONTRIBUTING"}
    assert {f"{name}.html" for name in documents} - menu == set()


@pytest.mark.long
def test_every_public_name_is_in_the_reference(site):
    values = {name: getattr(cgnl, name) for name in cgnl.__all__}
    modules = {name: module for name, module in values.items() if isinstance(module, ModuleType)}
    names = [*values, *(f"{name}.{inner}" for name, module in modules.items() for inner in module.__all__)]
    page = find(site, "api.html")
    assert [name for name in names if f"cgnl.{name}" not in page.anchors] == []
    assert "channel groups within which elements are related" in page.text  # an argument of CGNL
    assert {"cgnl.trained.Trained.predict", "cgnl.CGNL.forward"} <= page.anchors


@pytest.mark.long
def test_every_link_of_the_site_leads_somewhere(site):
    broken = []
    for path, page in site.items():
        for link in page.links:
            target, anchor = map(unquote, urldefrag(link))
            if re.match(r"\w+:", target):
                continue
            there = (path.parent / target).resolve() if target else path
            known = site[there].anchors if there in site else None
            if not there.exists() or (anchor and known is not None and anchor not in known):
                broken.append(f"{path.name}: {link}")
    assert broken == []


@pytest.mark.long
def test_pages_load_nothing_from_elsewhere(site):
    for path, page in site.items():
        loaded = re.findall(
            r"<(?:script|img|iframe)[^>]*src=\"(https?://[^\"]+)|<link[^>]*stylesheet[^>]*https?://", page.text
        )
        assert loaded == [], path


@pytest.mark.long
def test_lists_and_tables_are_read_as_such(site):
    for path, page in site.items():
        assert not re.search(r"<p>(?:(?!</p>).)*\n\* ", page.text, re.S), path
        assert not re.search(r"<p>\|", page.text), path
        assert r"\|" not in page.text, path
