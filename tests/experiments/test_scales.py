"""What rows are told at each scale."""

import pytest
import torch

from cgnl.engine.config import SYNTHETIC, load
from cgnl.engine.network import build_network
from cgnl.experiments.scales import describe, scale_settings
from cgnl.experiments.tables import TABLES

ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows]


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[f"{name}-{row.name}" for name, row in ROWS])
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_scale_settings_of_a_row_keep_its_network(row, scale):
    config, alone = row.config(scale_settings(row, scale)), row.config()
    assert config.model == alone.model
    assert config.data.dataset == alone.data.dataset
    if scale == "paper":
        assert config == alone


def test_scale_settings_of_small_are_smaller():
    for _, row in ROWS:
        small, paper = (row.config(scale_settings(row, scale)) for scale in ("small", "paper"))
        assert small.optim.epochs <= paper.optim.epochs
        assert small.data.size <= paper.data.size


def test_scale_settings_of_embedded_need_nothing():
    seen = set()
    for name, row in ROWS:
        if name in ("coco", "cityscapes"):
            continue
        config = row.config(scale_settings(row, "embedded"))
        assert config.data.dataset in SYNTHETIC
        assert config.model.weights is None
        if str(config.model) not in seen:
            with torch.device("meta"):
                assert build_network(config.model, 4) is not None
        seen.add(str(config.model))
    assert len(seen) > 20


def test_scale_settings_of_embedded_refuse_objects():
    with pytest.raises(ValueError, match="no pictures with objects are embedded"):
        scale_settings(TABLES["coco"].rows[0], "embedded")


@pytest.mark.parametrize(
    ("recipe", "settings", "expected"),
    [
        ("cub_r50", {}, "resnet50 from the weights IMAGENET1K_V1: 448 pixels, 10 + 100 epochs, step schedule, 256"),
        ("parts", {}, "resnet18 from random weights: embedded parts, 1 + 2 epochs, cosine schedule, 48 samples"),
        ("ucf101_r50", {"data.limit": 1000}, "224 pixels, clips of 32 frames, at most 1,000 training samples, 10"),
        ("cub_r50", {"data.test_on": "validation"}, "samples a step, tested on 20% of the training samples"),
    ],
)
def test_describe_says_the_protocol(recipe, settings, expected):
    assert expected in describe(load(recipe, settings))
