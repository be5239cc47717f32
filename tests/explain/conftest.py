"""Checkpoints of small networks with blocks in them."""

from pathlib import Path

import pytest
import torch
from torch import nn

from cgnl.engine.checkpoint import write
from cgnl.engine.config import load, nested, plain
from cgnl.engine.network import build_network
from tests.engine.conftest import PICTURES, VIDEOS, _networks, cgnl, run  # noqa: F401

CLASSES = ["a", "b", "c"]


@pytest.fixture
def checkpoint(tmp_path, _networks):  # noqa: F811
    """Write a checkpoint of a small network with a block behind its stem, and return its path."""

    def make(name: str = "tiny", block: str | None = "cgnl", folder: str = "one", **options) -> Path:
        video = name == "tiny_video"
        settings = {n.replace("__", "."): v for n, v in (VIDEOS if video else PICTURES).items()}
        settings |= {"data.dataset": "folder", "data.root": "gone", "model.name": name, "model.block": block}
        if block:
            groups = {} if block == "nl" else {"groups": 2}
            settings["model.options"] = {"after": ["conv1"], **groups, **options}
        config = load(None, nested(settings))
        torch.manual_seed(3)
        network = build_network(config.model, len(CLASSES), load=False)
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.normal_(module.weight, std=0.3)
        weights = {f"network.{n}": v for n, v in network.state_dict().items()}
        kind = "videos" if video else "images"
        about = {"config": plain(config), "classes": CLASSES, "kind": kind, "results": {}, "problems": []}
        path = tmp_path / folder / "best.ckpt"
        path.parent.mkdir(exist_ok=True)
        write({"state_dict": weights, "cgnl": about}, path)
        return path

    return make
