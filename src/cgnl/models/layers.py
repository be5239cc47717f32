"""Find the layers, the stem and the stages of any network by its structure."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def find_layers(network: nn.Module) -> dict[str, str]:
    """Map each parameter to its layer: a residual block, or another module outside of them."""
    return {f"{layer}.{name}".lstrip("."): layer for layer, names in _walk(network, "") for name in names}


def find_stem(network: nn.Module) -> list[str]:
    """The layers before the first residual block: the first module with children in a container.

    Parameters that no layer has, such as embeddings of positions, are named one by one.
    """
    stem: list[str] = []
    for name, keys in _walk(network, ""):
        layer = network.get_submodule(name)
        if not keys:
            continue
        if not name or isinstance(layer, CONTAINERS) or _holds_layers(layer):
            stem += [f"{name}.{key}".lstrip(".") for key in keys]
        elif _is_composite(layer) and isinstance(network.get_submodule(name.rpartition(".")[0]), CONTAINERS):
            return stem
        else:
            stem.append(name)
    return stem


def find_stages(network: nn.Module) -> list[list[str]]:
    """The residual blocks of each stage. A stage is a run of neighbours of a class that forms runs of several."""
    names = [name for name in dict.fromkeys(find_layers(network).values()) if name]
    names = [name for name in names if _is_composite(layer := network.get_submodule(name)) and not _holds_layers(layer)]
    runs = [list(run) for _, run in groupby(names, lambda n: (n.rpartition(".")[0], type(network.get_submodule(n))))]
    repeated = {type(network.get_submodule(run[0])) for run in runs if len(run) > 1}
    return [run for run in runs if type(network.get_submodule(run[0])) in repeated]


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, list[str]]]:
    if name and not (isinstance(module, CONTAINERS) or _holds_layers(module)):
        yield name, [key for key, _ in module.named_parameters()]
        return
    yield name, [key for key, _ in module.named_parameters(recurse=False)]
    for key, child in module.named_children():
        yield from _walk(child, f"{name}.{key}".lstrip("."))


def _is_composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _holds_layers(module: nn.Module) -> bool:
    """Whether it contains what looks like a stage: several modules of one class, with children, in one container."""
    for part in module.modules():
        inside = part.children() if isinstance(part, CONTAINERS) else ()
        classes = Counter(type(m) for m in inside if not isinstance(m, CONTAINERS) and _is_composite(m))
        if max(classes.values(), default=0) > 1:
            return True
    return False
