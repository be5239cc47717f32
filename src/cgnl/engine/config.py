"""Settings from recipes, files and the command line, and back to text. Nothing heavy is imported."""

import dataclasses
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ..extras import need
from ..safe_yaml import parse, read
from ..text import nearest
from .checks import check, check_names, check_typed
from .settings import (
    BLOCK_OPTIONS,
    DATA_PATHS,
    DETECTION,
    GROUPS,
    ONLINE,
    SYNTHETIC,
    Config,
    Model,
    dataset_name,
    setting_names,
    why_not_tested,
)
from .values import convert


def recipes() -> list[str]:
    """List the recipes that come with cgnl."""
    names = (file.name.removesuffix(".yaml") for file in _home().iterdir() if file.name.endswith(".yaml"))
    return sorted(name for name in names if not name.startswith("base"))


def load(recipe: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Make settings from a recipe and overrides such as ``{"optim.lr": 0.02}`` or ``{"optim": {"lr": 0.02}}``."""
    settings = nest(overrides or {})
    check_keys(settings)
    base = read_recipe(recipe) if recipe else {}
    model = base.get("model", {})
    block = model.get("block", Model.block)
    if settings.get("model", {}).get("block", block) != block:
        base = base | {"model": {**model, "options": {}}}  # they belong to another block
    config = build(merge(base, settings))
    if recipe and config.model.head is None:  # what is written down shall not depend on what was measured since
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, head="average"))
    check_names(config)
    if "logger" not in settings and (online := [name for name in config.loggers if name in ONLINE]):
        typed = f"type logger={online[0]} to want it, or logger=none"
        raise ValueError(f"{recipe}: logger = {', '.join(online)} may open an address, which no recipe can: {typed}")
    return dataclasses.replace(config, model=_with_typed_options(config.model))


def load_typed(recipe: str | Path | None, typed: Mapping[str, Any]) -> Config:
    """Make settings as ``load`` does; raise for typed ones that have no effect with others that were typed."""
    config, settings = load(recipe, typed), nest(typed)
    check_typed(config, [f"{group}.{name}" for group in GROUPS for name in settings.get(group, {})])
    return config


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Raise for overrides that are wrong with any recipe."""
    check_names(build(nest(overrides)))


def check_test(overrides: Mapping[str, Any]) -> None:
    """Raise for overrides that a test cannot have."""
    tree = nest(overrides)
    check_keys(tree)
    for key, value in tree.items():
        for name in [f"{key}.{own}" for own in value] if key in GROUPS else [key]:
            if reason := why_not_tested(name):
                raise ValueError(reason)


def default_recipe(overrides: Mapping[str, Any]) -> str | None:
    """Choose the recipe for a dataset, if no recipe is given."""
    data = build({"data": nest(overrides).get("data", {})}).data
    name = dataset_name(data)
    return name if name in SYNTHETIC else "base_objects" if name in DETECTION else None


def read_recipe(recipe: str | Path, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read a recipe, by name or file, laid over the one that it extends."""
    file = _find(recipe)
    if str(file) in extended_by:
        raise ValueError(f"{file} extends itself")
    content = read(file) or {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds no settings")
    content.pop("paper", None)  # older recipes and run folders hold the paper's numbers
    base = content.pop("extends", None)
    if base is not None and not isinstance(base, str):
        raise ValueError(f"{file}: extends = {base} is not the name of a recipe")
    try:
        check_keys(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if base is None:
        return content
    neighbour = Path(str(file)).parent / f"{base.removesuffix('.yaml')}.yaml"
    is_other = neighbour.is_file() and neighbour != Path(str(file))
    return merge(read_recipe(neighbour if is_other else base, (*extended_by, str(file))), content)


def _find(recipe: str | Path) -> Any:
    """Find a recipe: one of ours by its name, or a file."""
    shipped = _home() / f"{recipe}.yaml"
    if "/" not in str(recipe) and shipped.is_file():
        return shipped
    if Path(recipe).is_file():
        return Path(recipe)
    if str(recipe).endswith(".yaml"):
        raise ValueError(f"there is no file {recipe}")
    raise ValueError(f"there is no recipe {str(recipe)!r}{nearest(str(recipe), recipes())}")


def _home() -> Any:
    return resources.files("cgnl") / "recipes"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay settings over others."""
    both = dict(base)
    for key, value in over.items():
        deeper = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merge(both[key], value) if deeper else value
    return both


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``{"optim.lr": 0.02}`` into ``{"optim": {"lr": 0.02}}``."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        if name.startswith("model.options") and isinstance(value, str):
            value = parse(value, f"{name} = {value}")  # the block knows the type
        for part in reversed(name.split(".")):
            value = {part: value}
        tree = merge(tree, value)
    return tree


def build(settings: Mapping[str, Any]) -> Config:
    """Make typed settings from plain ones; raise for an unknown key, a wrong type or a number out of range."""
    settings = {name: value for name, value in settings.items() if name != "paper"}  # of older checkpoints
    check_keys(settings)
    if isinstance(settings.get("precision"), int):
        settings["precision"] = str(settings["precision"])  # YAML reads 32 as a number
    given = {n: settings.pop(n, None) for n in GROUPS}
    groups = {n: _typed(GROUPS[n], group, f"{n}.") for n, group in given.items() if group is not None}
    if "data" in groups:
        groups["data"] = _with_home(groups["data"], DATA_PATHS)
    if "model" in groups:
        groups["model"] = _with_home(groups["model"], ("weights",))
    return check(dataclasses.replace(_typed(Config, settings, ""), **groups))


def _with_home(group: Any, names: tuple[str, ...]) -> Any:
    """The settings with ``~`` written out in these paths: a shell leaves it in ``data.root=~/birds``."""
    paths = {name: getattr(group, name) for name in names}
    return dataclasses.replace(group, **{name: os.path.expanduser(path) for name, path in paths.items() if path})


def _typed(kind: type, settings: Mapping[str, Any], prefix: str) -> Any:
    """Make one group of settings."""
    types = {f.name: f.type for f in dataclasses.fields(kind)}
    return kind(**{name: convert(f"{prefix}{name}", value, types[name]) for name, value in settings.items()})


def _with_typed_options(model: Model) -> Model:
    """Return the settings with options of the types that the block takes."""
    if model.block is None:
        return model
    types = {f"model.options.{name}": kind for name, kind in BLOCK_OPTIONS[model.block].items()}
    options = {}
    for option, value in model.options.items():
        name = f"model.options.{option}"
        if name not in types:
            raise ValueError(f"{name} is not an option of the block {model.block}{nearest(name, types)}")
        options[option] = convert(name, value, types[name])
    return dataclasses.replace(model, options=options)


def to_dict(config: Any) -> Any:
    """Return settings as dictionaries, lists, numbers and text, as they are written to a file."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return [to_dict(item) for item in config] if isinstance(config, tuple | list) else config


def to_yaml(config: Config) -> str:
    """Write settings as a recipe."""
    return need("yaml", "cli").safe_dump(to_dict(config), sort_keys=False)


def check_keys(settings: Mapping[str, Any], prefix: str = "") -> None:
    """Raise for an unknown key, with the nearest known one."""
    known = setting_names()
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if name in GROUPS and isinstance(value, Mapping):
            check_keys(value, f"{name}.")
        elif name in GROUPS:
            raise ValueError(f"{name} = {value} is not a group of settings")
        elif name not in (*known, *GROUPS):
            raise ValueError(f"there is no setting {name!r}{nearest(name, known)}")
