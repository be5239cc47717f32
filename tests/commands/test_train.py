import shlex
from typing import Any

import pytest

from cgnl.commands.train import repeat_by, train
from cgnl.engine.config import load


@pytest.fixture
def given(monkeypatch):
    """What a run is started with, instead of running it."""
    calls = []
    monkeypatch.setattr("cgnl.engine.train.train", lambda *arguments, **_: calls.append(arguments))
    return calls


def test_train_without_a_recipe_learns_the_synthetic_pictures(given, tmp_path):
    settings: dict[str, Any] = {"runs": str(tmp_path)}
    train(resume=True, **settings)
    assert given == [(load("parts", {"runs": str(tmp_path)}), True, f"cgnl train runs={tmp_path}")]


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({"data.root": "birds"}, None),
        ({"data.dataset": "actions"}, "actions"),
        ({"data.dataset": "coco", "data.root": "coco"}, "base_objects"),
        ({"data.annotations": "mine.json"}, "base_objects"),
    ],
    ids=str,
)
def test_train_chooses_a_recipe_for_the_dataset(given, settings, recipe):
    train(**settings)
    assert given[0][0] == load(recipe, settings)


def test_train_takes_the_recipe_that_is_given(given):
    settings: dict[str, Any] = {"data.root": "birds"}
    train("cub_r50", **settings)
    assert given[0][0] == load("cub_r50", {"data.root": "birds"})


def test_repeat_by_is_read_by_a_shell_as_it_was_meant():
    line = repeat_by("parts", {"name": "it's", "data.area": "[0.5, 1]"})
    assert shlex.split(line) == ["cgnl", "train", "parts", "name=it's", "data.area=[0.5, 1]"]
