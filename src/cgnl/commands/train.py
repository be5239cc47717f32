"""``cgnl train``."""

import shlex
from pathlib import Path
from typing import Annotated, Any

from ..atomic_io import make_folder
from ..data.index import require_outside
from ..engine.checks import check_files
from ..engine.config import default_recipe, load_typed
from ..engine.loggers import check_installed
from ..engine.settings import ONLINE, Config
from ..extras import need
from ..text import say

STEPS = 100
"""Of ``--find-lr``."""


def train(
    recipe: str | None = None,
    *,
    resume: bool | str = False,
    find_lr: bool = False,
    steps: Annotated[int, ">= 10", "<= 1e6"] | None = None,
    output: str | None = None,
    **settings: Any,
) -> None:
    """Train a network and test it.

    The run folder gets the settings, metrics, checkpoints, a log and a report. Without recipe and data, the network
    learns the synthetic dataset parts.

    Args:
        recipe: a recipe by name (parts, cub_r50_cgnl1, ...) or a YAML file. If not given: one that suits the dataset.
            With --resume, also a run folder, whose own settings are then used.
        resume: resume a run, by its folder or by its name; optim.epochs may be larger than before.
        find_lr: train nothing: raise the learning rate over some steps, and suggest an optim.lr.
        steps: number of steps of --find-lr. If not given: 100.
        output: (-o) PNG file for the curve of --find-lr.
        settings: Change the recipe, as in: cgnl train data.root=my_birds optim.epochs=10
    """
    if isinstance(resume, str):  # --resume=FOLDER
        if recipe or not resume:
            raise ValueError(
                f"--resume={resume} must name one run{f', and {recipe} is another word' if recipe else ''}"
            )
        recipe, resume = resume, True
    check_options(resume, find_lr, steps, output)
    repeat, folder = repeat_by(["cgnl", "train", recipe or ""], settings), None
    if recipe and resume:
        from ..engine.runs import Run, find_run

        folder = find_run(recipe, settings.get("runs", Config.runs))
        if folder:
            recipe = str(folder / "config.yaml")
            repeat = repeat_by(begun_by(Run(folder).environment.get("command")) or ["cgnl", "train", recipe], settings)
            settings = without_online(Run(folder).config, settings)
    elif recipe:
        run = Path(recipe).parent if recipe.endswith(".ckpt") else Path(recipe)
        if (run / "config.yaml").is_file():
            new = f"cgnl train {run / 'config.yaml'} starts another with its settings"
            raise ValueError(f"{recipe} is a run: cgnl train --resume {run} resumes it, {new}")
    config = load_typed(recipe or default_recipe(settings), settings)
    check_files(config)
    if find_lr:
        suggest_lr(config, steps or STEPS, output)
        return
    check_installed(config.loggers)
    from ..engine.train import train as train_network  # imports torch, so settings are checked first
    from ..report.write import try_to_report

    train_network(config, folder or resume, repeat, on_end=try_to_report)


def begun_by(command: Any) -> list[str]:
    """The words of the command that began a run; none where its file does not say."""
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # a quote is open
        return []


def check_options(resume: bool, find_lr: bool, steps: int | None, output: str | None) -> None:
    """Raise for options that do not go together."""
    if find_lr and resume:
        raise ValueError("--find-lr and --resume do not go together: a run keeps the learning rate it was begun with")
    for name, value in {"steps": steps, "output": output}.items():
        if value is not None and not find_lr:
            raise ValueError(f"{name} = {value} is for --find-lr alone")
    if output and Path(output).suffix.lower() != ".png":
        raise ValueError(f"{output} must end in .png")


def without_online(config: Config, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for a run that is resumed by its folder: what may open an address must be typed again."""
    online = [name for name in config.loggers if name in ONLINE]
    if "logger" in settings or not online:
        return settings
    say(f"the run was begun with logger={','.join(online)}, which counts only when typed again", error=True)
    return settings | {"logger": [name for name in config.loggers if name not in ONLINE]}


def suggest_lr(config: Config, steps: int, output: str | None) -> None:
    """Print, and draw, how the loss depends on the learning rate, and a rate to use."""
    if output:
        if config.data.root is not None:
            require_outside(output, config.data.root)
        need("matplotlib", "explain")
        make_folder(Path(output).parent)
    from ..engine.distributed import is_rank_zero
    from ..engine.find_lr import describe, draw, find_lr

    found = find_lr(config, steps)
    if not is_rank_zero():
        return
    say(*describe(found))
    if output:
        draw(found, Path(output))
        say(f"{output} written")


def repeat_by(command: list[str], settings: dict[str, Any]) -> str:
    """Return the command that starts the same run again, with these settings added."""
    return shlex.join([*filter(None, command), *(f"{name}={value}" for name, value in settings.items())])
