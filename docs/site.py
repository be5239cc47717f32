"""The site: the README as its home, the documents, all that they link to, and the API reference. ``make docs``."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from api import write_reference

ROOT = Path(__file__).parents[1]
HOME, ALSO = "README.md", ("CHANGELOG.md", "CONTRIBUTING.md", "docs/site.css")
LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def place(path: str) -> str:
    """Where a file of the repository is on the site."""
    return "index.md" if path == HOME else path.removeprefix("docs/")


def stage(target: Path) -> None:
    """Gather the pages, with links that fit where they are now."""
    shutil.rmtree(target, ignore_errors=True)
    documents = [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"]
    waiting, done = [HOME, *ALSO, *sorted(documents)], set()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        file = target / place(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            file.write_text(relink((ROOT / name).read_text(), name, waiting.append))
        else:
            shutil.copy(ROOT / name, file)
    (target / "api.md").write_text(write_reference())


def relink(text: str, name: str, need: Callable[[str], None]) -> str:
    """Return a page with its links changed; ``need`` receives the files it links to. Links to folders become text."""

    def change(match: re.Match[str]) -> str:
        mark, words, link, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in link:
            return match[0]
        path = (ROOT / name).parent.joinpath(link).resolve()
        if not path.is_file():
            return words
        other = path.relative_to(ROOT).as_posix()
        need(other)
        here, there = (PurePosixPath(place(one)) for one in (name, other))
        up = "../" * (len(here.parent.parts))
        return f"{mark}[{words}]({up}{there}{anchor})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)  # not in code
    return "".join(part if i % 2 else _plain_bars(LINK.sub(change, part)) for i, part in enumerate(parts))


def _plain_bars(text: str) -> str:
    """Write ``|`` in the code of tables as it is, which this Markdown wants and others do not."""
    return re.sub(r"`[^`\n]+`", lambda code: code[0].replace(r"\|", "|"), text)


def build(folder: Path = ROOT) -> int:
    """Build into ``site`` of a folder, and return the exit status; any warning is an error."""
    stage(folder / "build" / "docs")
    if folder != ROOT:
        shutil.copy(ROOT / "zensical.toml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(build(*map(Path, sys.argv[1:])))
