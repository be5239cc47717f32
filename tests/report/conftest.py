"""Folders of runs, written by hand."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cgnl.engine.config import load, to_yaml
from tests.engine.conftest import _alone, _networks, cgnl, run  # noqa: F401  fixtures
from tests.explain.conftest import checkpoint  # noqa: F401  fixture


class Reader(HTMLParser):
    """Tags, attributes and text of a page, as a browser's parser reads them."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.tags]


@pytest.fixture(autouse=True)
def _reports():
    """Runs write them here."""


@pytest.fixture
def folder(tmp_path):
    """Write the folder of a run with classes of pictures."""

    def write(
        name: str = "one",
        rows: list[dict[str, Any]] | None = None,
        predictions: list[tuple] | None = None,
        results: dict[str, float] | None = None,
        recipe: str = "parts",
        command: str | None = None,
        **settings: Any,
    ) -> Path:
        place = tmp_path / name
        place.mkdir()
        given = {key.replace("__", "."): value for key, value in settings.items()}
        (place / "config.yaml").write_text(
            to_yaml(load(recipe, {"data.dataset": "parts", "model.name": "resnet18", **given}))
        )
        (place / "environment.json").write_text(json.dumps({"command": command, "python": "3.11", "cores": 2}))
        if rows is not None:
            columns = list(dict.fromkeys(column for row in rows for column in row))
            lines = [",".join(columns), *(",".join(str(row.get(c, "")) for c in columns) for row in rows)]
            (place / "metrics.csv").write_text("\n".join(lines) + "\n")
        if predictions is not None:
            lines = [
                "sample,label,predicted,score,name",
                *(",".join(map(str, prediction)) for prediction in predictions),
            ]
            (place / "predictions.csv").write_text("\n".join(lines) + "\n")
        if results is not None:
            (place / "results.json").write_text(json.dumps(results))
        return place

    return write


ROWS = [
    {"epoch": 1, "step": 3, "lr": 0.1, "train_loss": 2.0, "train_top1": 0.25, "samples_per_second": 10.0, "seconds": 5},
    {"epoch": 2, "step": 6, "lr": 0.05, "train_loss": 1.0, "train_top1": 0.5, "samples_per_second": 30.0, "seconds": 70}
    | {"test_loss": 1.5, "test_top1": 0.375, "test_top5": 0.75, "test_count": 8},
]
"""Two epochs, the second of them tested."""
RESULTS = {"test_loss": 1.5, "test_top1": 0.375, "test_top5": 0.75, "test_count": 8, "best_top1": 0.5, "seconds": 75.0}
ANSWERS = [
    (0, "red", "red", 0.9, "parts 0"),
    (1, "red", "<script>", 0.8, "parts 1"),
    (2, "red", "<script>", 0.7, "parts 2"),
    (3, "<script>", "<script>", 0.6, "parts 3"),
]
