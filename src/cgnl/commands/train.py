"""``cgnl train``."""

import shlex
from pathlib import Path
from typing import Any

from ..engine.config import Config, default_recipe, load


def train(recipe: str | None = None, *, resume: bool = False, **settings: Any) -> None:
    """Train a network and test it.

    The run folder gets the settings, metrics, checkpoints, a log and a report. Without recipe and data, the network
    learns the synthetic dataset parts.

    Args:
        recipe: a recipe by name (parts, cub_r50_cgnl1, ...) or a YAML file. If not given: one that suits the dataset.
            With --resume, also a run folder, whose own settings are then used.
        resume: resume a run, by its folder or by its name; optim.epochs may be larger than before.
        settings: Change the recipe, as in: cgnl train data.root=my_birds optim.epochs=10
    """
    repeat, folder = repeat_by(["cgnl", "train", recipe or ""], settings), None
    if recipe and resume:
        from ..engine.runs import Run, find_run

        folder = find_run(recipe, settings.get("runs", Config.runs))
        if folder:
            recipe = str(folder / "config.yaml")
            command = Run(folder).environment.get("command") or f"cgnl train {shlex.quote(recipe)}"
            repeat = repeat_by(shlex.split(command), settings)
    elif recipe and Path(recipe, "config.yaml").is_file():
        new = f"cgnl train {Path(recipe, 'config.yaml')} starts another with its settings"
        raise ValueError(f"{recipe} is a run: cgnl train --resume {recipe} resumes it, {new}")
    config = load(recipe or default_recipe(settings), settings)
    from ..engine.train import train as train_network  # imports torch, so settings are checked first
    from ..report.write import try_to_report

    train_network(config, folder or resume, repeat, on_end=try_to_report)


def repeat_by(command: list[str], settings: dict[str, Any]) -> str:
    """Return the command that starts the same run again, with these settings added."""
    return shlex.join([*filter(None, command), *(f"{name}={value}" for name, value in settings.items())])
