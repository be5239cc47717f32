"""``cgnl new``."""

import shlex
from pathlib import Path

from ..atomic_io import write_text
from ..text import say


def new(folder: str, *, output: str | None = None) -> None:
    """Look at a folder, say what it holds, and write a recipe to train on it.

    Class folders of images or clips, with or without splits, tables of labels, tar shards, COCO's annotations and the
    datasets of `cgnl data check` are recognised. The recipe explains its settings.

    Args:
        folder: the dataset.
        output: (-o) the recipe, a new YAML file. If not given: the name of the folder, in the working folder.
    """
    root = Path(folder)
    target = Path(f"{root.resolve().name or 'new'}.yaml") if output is None else Path(output)
    if target.suffix not in (".yaml", ".yml"):
        raise ValueError(f"output = {target} must end in .yaml")
    if not root.is_dir():
        raise ValueError(f"{root} is {'a file, not' if root.exists() else 'not'} a folder")
    _require_free(target)
    from ..data.survey import describe, survey  # imports torch
    from ..engine.suggest import suggest_recipe

    found = survey(root)
    recipe = suggest_recipe(found)
    _require_free(target)  # to look at a folder takes a while
    write_text(target, recipe)
    say(*describe(found), f"{target} written. Read it, then: cgnl train {shlex.quote(str(target))}")


def _require_free(target: Path) -> None:
    """Raise if there is a recipe already."""
    if target.exists():
        raise ValueError(f"{target} is there already: name another recipe with -o")
