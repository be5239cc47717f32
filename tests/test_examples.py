"""Every notebook runs from its first cell to its last, and holds what it printed and drew when it was written."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cgnl.cli import main

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
LARGEST = 300_000
"""Bytes of a notebook with its pictures."""


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def as_python(source: str) -> str:
    """A cell whose commands, ``!cgnl ...``, are calls in this process: each of its own would import for long."""

    def call(match: re.Match[str]) -> str:
        program, *arguments = shlex.split(match[1])
        assert program == "cgnl"
        return f"assert main({arguments!r}) == 0"

    return re.sub(r"^!(.+)$", call, source, flags=re.M)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cgnl.report.write.try_to_report", lambda _: None)  # which other tests run
    plt.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__", "main": main}
    for number, cell in enumerate(cells(notebook)):
        shorter = re.sub(r"optim\.epochs=\d+", "optim.epochs=1 data.limit=64", "".join(cell["source"]))
        exec(compile(as_python(shorter), f"{notebook.name}, cell {number}", "exec"), names)
    plt.close("all")


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == [
        "block_in_your_network",
        "train_on_your_folder",
        "why_it_decides_so",
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_small(notebook):
    outputs = [output for cell in cells(notebook) for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert notebook.stat().st_size < LARGEST
    assert "\\u001b" not in notebook.read_text()  # bars of progress, colours
    assert not re.search(r"/(home|root|tmp|work)/", notebook.read_text())


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_files_it_links_to_exist(notebook):
    text = "".join("".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"])
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (notebook.parent / link).exists()] == []
