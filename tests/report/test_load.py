"""Many visitors at once: the harness of benchmarks/page_load.py in its short form, and the files that visits leave."""

import itertools
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.page_load import ROOM, measure
from cgnl.report import app

pytest.importorskip("gradio")


@pytest.mark.long
def test_visitors_at_once_get_what_each_would_get_alone(tmp_path):
    figures = measure(40, 20, tmp_path)
    assert (figures.lost, figures.mixed, figures.left) == ([], [], [])
    assert len(figures.seconds) == 40
    assert figures.grown < ROOM


@pytest.fixture
def visited(tmp_path):
    """The folder of a page: an example, and files of visitors, old and new."""
    for name in ("0-red.png", "old/look.png", "new/look.png", "tmp123", "deep/er/a.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for path in [*tmp_path.rglob("*")]:
        if "new" not in path.parts:
            os.utime(path, (0, 0))
    return tmp_path


def names(folder):
    """What is in a folder; others may remove it meanwhile."""
    found = [Path(place, name) for place, *inside in os.walk(folder) for name in itertools.chain(*inside)]
    return sorted(str(path.relative_to(folder)) for path in found)


def test_remove_old_leaves_what_is_new_and_what_is_ours(visited):
    app.remove_old(visited, 3600, {visited / "0-red.png"})
    assert names(visited) == ["0-red.png", "deep", "deep/er", "new", "new/look.png", "old"]  # folders were just changed
    app.remove_old(visited, -1, {visited / "0-red.png"})
    assert names(visited) == ["0-red.png"]


def test_sweep_goes_on_while_visitors_come_and_go(visited, monkeypatch):
    """Gradio's own task ends for good when a set changes that it goes through."""
    monkeypatch.setattr(app, "KEEP", 0.02)
    page = SimpleNamespace(temp_file_sets=[{"a"}, {"b"}])
    ours = {visited / "0-red.png"}
    threading.Thread(target=app.sweep, args=(page, visited, ours), daemon=True).start()
    for number in range(300):
        with suppress(FileNotFoundError):  # it was swept away already
            (visited / f"visit{number}").mkdir()
            (visited / f"visit{number}" / "look.png").touch()
        page.temp_file_sets[0].add(str(number))
    for _ in range(500):
        if names(visited) == ["0-red.png"] and page.temp_file_sets == [set(), set()]:
            return
        time.sleep(0.02)
    raise AssertionError(names(visited))
