"""``cgnl train``."""

import shlex
from typing import Any

from ..engine.config import SYNTHETIC, Data, load
from ..engine.datasets import dataset_name
from ..engine.train import train as train_run
from ..report.write import try_to_report


def train(recipe: str | None = None, *, resume: bool = False, **settings: Any) -> None:
    """Train a network and test it. Without anything it learns the embedded pictures.

    Args:
        recipe: a recipe by name (parts, cub_r50_cgnl1, ...) or a YAML file.
        resume: go on with the run of this name that was stopped.
        settings: what is to be other than in the recipe, such as data.root=my_birds.
    """
    given = recipe
    if recipe is None:
        known: dict[str, Any] = {name: settings.get(f"data.{name}") for name in ("dataset", "root", "annotations")}
        name = dataset_name(Data(**known))
        recipe = name if name in SYNTHETIC else "base_objects" if name == "coco" else None
    train_run(load(recipe, settings), resume, repeat_by(given, settings), on_end=try_to_report)


def repeat_by(recipe: str | None, settings: dict[str, Any]) -> str:
    """The command that begins the same run again."""
    words = [f"{name}={value}" for name, value in settings.items()]
    return shlex.join(["cgnl", "train", *([recipe] if recipe else []), *words])
