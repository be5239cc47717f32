"""Checkpoints of small networks with blocks in them."""

from pathlib import Path

import pytest
from torch import nn

from tests.engine.conftest import _networks, cgnl, run, write_checkpoint  # noqa: F401

CLASSES = ["a", "b", "c"]


def enlarge(network: nn.Module) -> None:
    """Convolutions whose attention can be seen."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.normal_(module.weight, std=0.3)


@pytest.fixture
def checkpoint(tmp_path, _networks):  # noqa: F811
    """Write a checkpoint of a small network with a block behind its stem, and return its path."""

    def make(name: str = "tiny", block: str | None = "cgnl", folder: str = "one", **options) -> Path:
        return write_checkpoint(tmp_path / folder / "best.ckpt", name, block, CLASSES, enlarge, **options)

    return make
