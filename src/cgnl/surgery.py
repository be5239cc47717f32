"""Insert blocks into any model, remove them again, and look up where the paper places them."""

import copy
import difflib
import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils._pytree import tree_leaves

from . import blocks as _blocks
from .layouts import Adapter, Features, Modules, PatchCounter, find_features, runs_in_order
from .ops.kernels import GaussianRBF

Model = TypeVar("Model", bound=nn.Module)
Factory = Callable[[int], nn.Module]

BLOCKS: dict[str, Callable[..., nn.Module]] = {
    "cgnl": _blocks.CGNL,
    "cgnlx": functools.partial(_blocks.CGNL, kernel=GaussianRBF(order=3)),
    "nl": _blocks.NonLocal,
    "residual": _blocks.SimpleResidual,
}
"""The paper's blocks by name."""

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Residual blocks in layer1 (res2) .. layer4 (res5) of a ResNet, by depth."""

FIVE_BLOCKS = {
    34: {"layer2": (1, 3), "layer3": (1, 3, 5)},
    50: {"layer2": (1, 3), "layer3": (1, 3, 5)},
    101: {"layer2": (1, 3), "layer3": (6, 13, 20)},  # as in the non-local authors' code
    152: {"layer2": (3, 7), "layer3": (11, 23, 35)},  # our choice: evenly, as above
}
"""Two blocks in res3 and three in res4, by depth. Other code bases place them differently."""

NAME_MODULES = "name modules with after= in Python, or model.after= for cgnl train"


def insert(
    model: Model,
    block: str | Factory,
    after: str | Sequence[str],
    *,
    channels: int | None = None,
    example: Tensor | tuple | Mapping | None = None,
    layout: str = "auto",
    prefix: int | None = None,
    **block_options,
) -> Model:
    """Insert a block after each named module, in place.

    In an ``nn.Sequential`` the block becomes a child of its own, ``layer3.4_cgnl`` after ``layer3.4``; anywhere else it
    is registered next to the target and called by a forward hook. Either way every old parameter keeps its name. A
    model that counts the children of its Sequentials, as some that return the features of every stage do, would
    miscount: ``example`` detects that, and the block is then called by a hook. Where one module has several names, the
    block follows the named child of a Sequential only; a hook follows every call.

    Args:
        model: any module.
        block: ``"cgnl"``, ``"cgnlx"``, ``"nl"``, ``"residual"``, a class of ours (or a partial of one), or
            ``callable(channels) -> nn.Module``.
        after: dotted names of modules whose output is a map or a sequence of tokens.
        channels: C; None reads it off the modules at or before the target, or off a run of ``example``, which a target
            that concatenates (DenseNet's, Inception's) needs.
        example: an input of the model (a tensor, a tuple of arguments, or a dict of named ones), or None. It is run
            before and after, in eval mode, to check that nothing else changes.
        layout: ``"channels_first"`` ([B, C, *positions]), ``"channels_last"`` ([B, *positions, C], as in Swin),
            ``"tokens"`` ([B, N, C], as in ViT; class and register tokens pass by the block, which has ``ndim=1``), or
            ``"auto"``: found out from the model's layers and class, and a run of ``example``.
        prefix: class and register tokens before the others; None means that they are counted in a run of ``example``
            or, without one, those of the model's class.
        block_options: further arguments of the block, such as ``groups=4``.

    Returns:
        The model.
    """
    names = [after] if isinstance(after, str) else list(after or ())
    if not names:
        raise ValueError("no place given: after is empty")
    if len(set(names)) < len(names):
        raise ValueError(f"a place is named twice: {', '.join(names)}")
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        _check_target(name, modules)
    if isinstance(block, nn.Module):
        raise ValueError(
            f"block is an instance of {type(block).__name__}: give its class, or a function that makes one"
        )
    shared = [name for name in names if _is_shared(model, name)]
    run = functools.partial(_run, model, example, shared)
    before = run(modules, watched=names) if example is not None else None
    outputs, patches = (before.outputs, before.patches) if before else ({}, {})
    if missed := [name for name, found in outputs.items() if not found]:
        raise ValueError(f"the example never reached {', '.join(missed)}")

    built = []  # everything is built, and may fail, before anything is changed
    for name in names:
        features = find_features(name, modules, outputs.get(name), channels, layout, prefix, patches.get(name, ()))
        try:
            built.append((name, *_build(block, block_options, features, name, modules[name], model)))
        except ValueError as error:
            raise ValueError(f"after {name!r}: {error}") from None
    try:
        for name, label, module in built:
            for spot in _find_spots(model, name, label, name in shared):
                _register(modules[name], label, module, *spot)
                if before is None or _is_unchanged(run, before, modules, name, module):
                    break
                _detach(model, module)
            else:
                raise ValueError(f"after {name!r}: the block changes which other modules run, wherever it is")
    except Exception:
        for _, _, module in built:
            _detach(model, module)
        raise
    _forget_compiled()
    return model


def remove(model: Model) -> Model:
    """Remove every inserted block, in place."""
    for block in [module for module in model.modules() if _get_target(module)]:
        _detach(model, block)
    _forget_compiled()
    return model


def _forget_compiled() -> None:
    """Compile networks anew when they are next called: what is compiled does not notice other hooks."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def _get_target(module: nn.Module | None) -> str | None:
    """The name that a block, or the adapter around one, was inserted after; None for other modules."""
    return getattr(module.block if isinstance(module, Adapter) else module, "_inserted_after", None)


def _detach(model: nn.Module, block: nn.Module) -> None:
    for module in list(model.modules()):
        for key, child in list(module._modules.items()):
            if child is block:
                del module._modules[key]
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, _BlockHook) and hook.block is block:
                del module._forward_hooks[key]


def inserted(model: nn.Module) -> dict[str, nn.Module]:
    """The inserted blocks by their dotted names; inside an adapter a block is called ``block``."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "_inserted_after")}


@contextmanager
def in_eval_mode(model: Model) -> Iterator[Model]:
    """Put the model into eval mode; afterwards each module is back in its own mode."""
    training = [module for module in model.modules() if module.training]
    try:
        yield model.eval()
    finally:
        for module in training:
            module.training = True


def placement(name: str, blocks: int = 1) -> list[str]:
    """Where the paper places 1 or 5 blocks in a ResNet, or in the backbone of a Mask R-CNN, as names for ``insert``.

    One block: before the last residual block of res4 (``layer3``). Five: two in res3 and three in res4.

    Args:
        name: of a network of ``create_model``, such as ``"resnet50"``.
        blocks: 1 (default) or 5.
    """
    match = re.fullmatch(r"(?:(?:c2d|i3d)_|(maskrcnn)_)?resnet(\d+)(?(1)_(?:fpn|c4))(?:_caffe)?", str(name))
    if match is None or int(match[2]) not in STAGES:
        raise ValueError(f"no placement is known for {name!r}: {NAME_MODULES}")
    depth, within = int(match[2]), "backbone.body." if match[1] else ""
    if blocks == 1:
        return [f"{within}layer3.{STAGES[depth][2] - 2}"]
    if blocks == 5 and depth in FIVE_BLOCKS:
        return [f"{within}{layer}.{index}" for layer, places in FIVE_BLOCKS[depth].items() for index in places]
    known = "1 or 5" if depth in FIVE_BLOCKS else "1"
    raise ValueError(f"no placement of blocks = {blocks} is known for {name!r} (only {known}): {NAME_MODULES}")


class _BlockHook:
    """Forward hook that sends a module's output through a block. An object, so that a copied model calls its copy."""

    def __init__(self, block: nn.Module, label: str):
        self.block, self.label = block, label

    def __call__(self, _module, _args, output):
        return self.block(output)


def _keep_hooks(parent: nn.Module, key: str, new: Any) -> None:
    """Let the blocks after a norm follow the one it is converted to, as by ``SyncBatchNorm.convert_sync_batchnorm``.

    Conversions put a norm of another class, or with the same statistics, in its place, and leave its hooks behind.
    """
    old: Any = parent._modules.get(key)
    if old is None or not old._forward_hooks or not (hasattr(old, "running_var") and hasattr(new, "running_var")):
        return
    if type(old) is not type(new) or old.running_var is new.running_var:
        for hook in old._forward_hooks.values():
            if isinstance(hook, _BlockHook) and hook not in new._forward_hooks.values():
                new.register_forward_hook(hook)


register_module_module_registration_hook(_keep_hooks)


def _check_target(name: str, modules: Modules) -> None:
    """Raise for unknown modules, and for lists of modules, which are never called themselves."""
    if not name or name not in modules:
        close = difflib.get_close_matches(name, filter(None, modules), n=5, cutoff=0.5)
        parent = name
        while parent not in modules:
            parent = parent.rpartition(".")[0]
        close = close or [f"{parent}.{child}".lstrip(".") for child, _ in modules[parent].named_children()]
        raise ValueError(f"there is no module {name!r} in the model; close to it: {', '.join(close)}")
    target = modules[name]
    if getattr(target.forward, "__func__", None) is nn.Module.forward:
        inside = ", ".join(f"{name}.{child}" for child, _ in target.named_children())
        raise ValueError(f"{name!r} is a {type(target).__name__}, which is never called: name one of {inside}")
    parts = name.split(".")
    for end in range(len(parts) + 1):
        if isinstance(modules[".".join(parts[:end])], torch.jit.ScriptModule):
            raise ValueError(f"{name!r} is in a ScriptModule: insert blocks before torch.jit.script")


def _build(
    block, options: dict, features: Features, name: str, target: nn.Module, model: nn.Module
) -> tuple[str, nn.Module]:
    """(the child's suffix, the block, in an adapter if needed), on the device and in the dtype of its surroundings."""
    if not callable(block) and block not in BLOCKS:
        raise ValueError(f"unknown block {block!r}: choose one of {', '.join(BLOCKS)}")
    label, factory = (block, BLOCKS[block]) if isinstance(block, str) else (None, block)
    ours = factory.func if isinstance(factory, functools.partial) else factory
    if features.ndim and isinstance(ours, type) and issubclass(ours, _blocks._Residual):
        options = {"ndim": features.ndim} | getattr(factory, "keywords", {}) | options
    _check_options(factory, options)
    module = factory(features.channels, **options)
    if not isinstance(module, nn.Module):
        raise ValueError(f"block makes a {type(module).__name__}, not a module")
    if features.layout == "tokens" and getattr(module, "ndim", 1) != 1:
        raise ValueError(f"tokens have one position axis, and the block has ndim = {module.ndim}")
    label = label or next((n for n, cls in BLOCKS.items() if type(module) is cls), type(module).__name__.lower())
    near = next((p for m in (target, model) for p in m.parameters() if p.is_floating_point()), None)
    if near is not None:
        module.to(near.device, near.dtype)
    object.__setattr__(module, "_inserted_after", name)
    if features.layout != "channels_first":
        module = Adapter(module, features, name)
    return label, module.train(target.training)


def _check_options(factory: Callable[..., object], options: dict) -> None:
    """Raise for options that the block does not have."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables do not tell
        return
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [option for option in options if option not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(known[1:]) or 'none'}"
        raise ValueError(f"the block got an unexpected keyword argument {unknown[0]!r}; {hint}")


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LOOPS = {"children", "named_children", "modules", "_modules"}
"""Names by which the code of a forward, such as that of timm's RegStage, loops over its children."""
Spot = tuple[nn.Module, str, str | None]
"""The module to register a block on, its key there, and the child it follows in order, or None for a forward hook."""


def _can_add_child(module: nn.Module) -> bool:
    """Whether a child can be added, because the forward does not loop over the children."""
    names = getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
    return not isinstance(module, _CONTAINERS) and _LOOPS.isdisjoint(names)


def _is_shared(model: nn.Module, name: str) -> bool:
    """Whether this child of a Sequential is also a child under another name."""
    parent_name, _, key = name.rpartition(".")
    parent, target = model.get_submodule(parent_name), model.get_submodule(name)
    names = [(id(m), k) for m in model.modules() for k, child in m._modules.items() if child is target]
    return runs_in_order(parent) and names != [(id(parent), key)]


def _find_spots(model: nn.Module, name: str, label: str, shared: bool) -> list[Spot]:
    """Places for a block, best first: in the order of a Sequential, next to the target, further up, in the target."""
    parent_name, _, child = name.rpartition(".")
    parent, target, key = model.get_submodule(parent_name), model.get_submodule(name), f"{child}_{label}"
    for there, block in inserted(model).items():
        if _get_target(block) == name and there.removesuffix(".block").endswith(f"_{label}"):
            raise ValueError(f"{name!r} already has a block after it: {there!r}")
    if any(isinstance(hook, _BlockHook) and hook.label == label for hook in target._forward_hooks.values()):
        raise ValueError(f"{name!r} already has a block after it, inserted by another name")
    spots: list[Spot] = []
    if runs_in_order(parent):
        if hasattr(parent, key):
            taken = f"{parent_name}.{key}".lstrip(".")
            raise ValueError(f"after {name!r}: the block's name is taken by {taken!r}")
        spots.append((parent, key, child))
        if shared:  # a hook would run after the others too
            return spots
    while True:
        if _can_add_child(parent) and not hasattr(parent, key):
            spots.append((parent, key, None))
        if parent is model:
            break
        parent_name, _, child = parent_name.rpartition(".")
        parent, key = model.get_submodule(parent_name), f"{child}_{key}"
    if hasattr(target, key):
        pass
    elif runs_in_order(target) and target._modules:
        spots.append((target, key, next(reversed(target._modules))))
    elif _can_add_child(target):
        spots.append((target, key, None))
    if not spots:
        raise ValueError("only containers surround it, and none can take another child: wrap the model in a module")
    return spots


def _register(
    target: nn.Module, label: str, block: nn.Module, parent: nn.Module, key: str, follows: str | None
) -> None:
    if follows is None:
        parent.add_module(key, block)
        target.register_forward_hook(_BlockHook(block, label))
        return
    children = list(parent._modules.items())
    before = {follows}  # the target and the blocks after it: a second block follows the first, as with hooks
    for existing, module in children:
        if (_get_target(module) or "").rpartition(".")[2] in before:
            before.add(existing)
    last = max(i for i, (existing, _) in enumerate(children) if existing in before)
    parent._modules.clear()
    for existing, module in [*children[: last + 1], (key, block), *children[last + 1 :]]:
        parent.register_module(existing, module)


class _Run(NamedTuple):
    calls: Counter[str]
    """How often each module was called."""
    outputs: dict[str, list]
    """What each watched module returned: shapes of tensors, types of all else."""
    patches: dict[str, list[int]]
    """How many patches there may be, as seen before the first output of each watched module."""
    result: list[Tensor]


@contextmanager
def _separate_shared(modules: Modules, shared: Sequence[str]) -> Iterator[dict[str, nn.Module]]:
    """The modules, with a shallow copy for each shared name for a while, so that calls are counted by name."""
    twins = {}
    for name in shared:
        twins[name] = copy.copy(modules[name])
        twins[name]._forward_hooks = twins[name]._forward_hooks.copy()
        modules[name.rpartition(".")[0]]._modules[name.rpartition(".")[2]] = twins[name]
    try:
        yield {**modules, **twins}
    finally:
        for name in shared:
            modules[name.rpartition(".")[0]]._modules[name.rpartition(".")[2]] = modules[name]


def _run(model: nn.Module, example, shared: Sequence[str], modules: Modules, watched: Sequence[str] = ()) -> _Run:
    """Run the example in eval mode, and record which modules are called."""
    calls: Counter[str] = Counter()
    outputs: dict[str, list] = {name: [] for name in watched}

    counter, patches = PatchCounter(), {}

    def record(module, _args, output, name: str) -> None:
        calls[name] += 1
        counter.add(module, output)
        if name in outputs:
            patches.setdefault(name, counter.counts())
            outputs[name].append(output.shape if isinstance(output, Tensor) else type(output))

    with _separate_shared(modules, shared) as apart, ExitStack() as hooks:
        for name, module in apart.items():
            hooks.enter_context(module.register_forward_hook(functools.partial(record, name=name)))
        if "torch._dynamo" in sys.modules:  # what is compiled does not call the hooks
            hooks.enter_context(torch.compiler.set_stance("force_eager"))
        with torch.no_grad(), in_eval_mode(model):
            if isinstance(example, Mapping):
                result = model(**example)
            else:
                result = model(*(example if isinstance(example, tuple) else (example,)))
    return _Run(calls, outputs, patches, [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)])


def _is_unchanged(run: Callable[..., _Run], before: _Run, modules: Modules, name: str, block: nn.Module) -> bool:
    """Whether the model computes the same, with as many calls of each module, when the block returns its input."""
    with block.register_forward_hook(lambda _module, args, _output: args[0]):
        now = run({**modules, "the block": block})
    if now.calls != before.calls + Counter({"the block": before.calls[name]}):
        return False
    pairs = list(zip(now.result, before.result, strict=False))
    return len(now.result) == len(before.result) and all(
        a.shape == b.shape and torch.allclose(a, b, 1e-3, 1e-3, equal_nan=True) for a, b in pairs
    )
