"""A table whose networks learn in a second."""

from typing import Any

import pytest

from cgnl.experiments.tables import TABLES, Row, Table
from tests.engine.conftest import SETTINGS, _alone, _networks, cgnl  # noqa: F401  fixtures

OWN = ("name", "model.block")
SMALL: dict[str, Any] = {name: value for name, value in SETTINGS.items() if name not in OWN}


def row(label: str, called: str, block: str | None, **more: Any) -> Row:
    after = {"model.after": ["norm1"], "model.options": {"groups": 2}} if block else {}
    return Row(label, "parts", {**SMALL, "model.block": block, **after, **more}, called)


TOY = Table(
    "A toy",
    (
        row("plain", "toy", None),
        row("with CGNL", "toy_cgnl", "cgnl"),
        row("with a residual block", "toy_r", "residual"),
    ),
    "Small.",
    ours=True,
    diagnose=True,
)


def register() -> None:
    """Make the table known, in a process of its own."""
    TABLES["toy"] = TOY


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(TABLES, "toy", TOY)
    return TOY
