"""``cgnl train``."""

import shlex
from typing import Any

from ..engine.config import default_recipe, load


def train(recipe: str | None = None, *, resume: bool = False, **settings: Any) -> None:
    """Train a network and test it.

    The run folder gets the settings, metrics, checkpoints, a log and a report. Without recipe and data, the network
    learns the synthetic dataset parts.

    Args:
        recipe: a recipe by name (parts, cub_r50_cgnl1, ...) or a YAML file. If not given: one that suits the dataset.
        resume: resume the stopped run of this name.
        settings: Change the recipe, as in: cgnl train data.root=my_birds optim.epochs=10
    """
    config = load(recipe or default_recipe(settings), settings)
    from ..engine.train import train as train_network  # imports torch, so settings are checked first
    from ..report.write import try_to_report

    train_network(config, resume, repeat_by(recipe, settings), on_end=try_to_report)


def repeat_by(recipe: str | None, settings: dict[str, Any]) -> str:
    """Return the command that starts the same run again."""
    words = [f"{name}={value}" for name, value in settings.items()]
    return shlex.join(["cgnl", "train", *([recipe] if recipe else []), *words])
