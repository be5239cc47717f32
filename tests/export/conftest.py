"""Small networks with blocks in them, whose input may be of any size."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cgnl.models import NETWORKS
from cgnl.models.resnet import resnet
from cgnl.surgery import inserted
from tests.engine.conftest import cgnl, write_checkpoint  # noqa: F401

CLASSES = ["finch", "gull", "owl"]


class Small(nn.Module):
    """[B, 3, H, W] or [B, 3, T, H, W] -> [B, K]."""

    def __init__(self, num_classes: int, ndim: int):
        super().__init__()
        self.conv1 = (nn.Conv2d if ndim == 2 else nn.Conv3d)(3, 8, 4, stride=4)
        self.norm1 = (nn.BatchNorm2d if ndim == 2 else nn.BatchNorm3d)(8)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm1(self.conv1(x)).relu().flatten(2).mean(2))


SMALL: dict[str, Callable[[int, float], nn.Module]] = {
    "small": lambda num_classes, dropout: Small(num_classes, 2),  # noqa: ARG005
    "small_video": lambda num_classes, dropout: Small(num_classes, 3),  # noqa: ARG005
    "short": lambda num_classes, dropout: shorten(resnet(18, num_classes, dropout)),
}


@pytest.fixture(autouse=True)
def _networks(monkeypatch):
    for name, network in SMALL.items():
        monkeypatch.setitem(NETWORKS, name, network)


def stir(model: nn.Module) -> nn.Module:
    """Weights and statistics of a network that has learned something, in eval mode."""
    draws = torch.Generator().manual_seed(3)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5, generator=draws)
        elif value.is_floating_point():
            value.copy_(torch.randn(value.shape, generator=draws) * 0.3)
    return model.eval()


def shorten(model: nn.Module) -> nn.Module:
    """A ResNet, or what is built on one, with a residual block and our own block in each stage."""
    blocks = inserted(model)
    for name, stage in model.named_modules():
        if re.search(r"(^|\.)layer\d$", name):
            for child in [n for n, _ in stage.named_children() if n != "0" and f"{name}.{n}" not in blocks]:
                delattr(stage, child)
    return model


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint of a small network with a block behind its stem, and return its path."""

    def make(name: str = "small", block: str | None = "cgnl", **options) -> Path:
        return write_checkpoint(tmp_path / "best.ckpt", name, block, CLASSES, stir, **options)

    return make
