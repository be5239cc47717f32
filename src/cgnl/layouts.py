"""Find out what a module returns: which axis holds the channels, how many, and how many position axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .blocks import as_one_node

LAYOUTS = ("auto", "channels_first", "channels_last", "tokens")
"""[B, C, *positions], [B, *positions, C] and [B, N, C], or whichever of them is found."""

Modules = Mapping[str, nn.Module]


class Features(NamedTuple):
    """What a module returns."""

    layout: str
    channels: int
    ndim: int | None
    """Position axes; None if unknown."""
    prefix: int = 0
    """Class and register tokens before the others."""
    guessed: bool = False
    """Whether the prefix is that of the model's class, which was not run: some add these tokens in later layers."""
    patches: int | None = None
    """Where the prefix is guessed, the number of patches that the model was made for, if it says so."""


class Adapter(nn.Module):
    """Gives a block [B, C, *positions] of maps with their channels last, or of tokens, and puts the result back.

    Class and register tokens pass by unchanged.
    """

    def __init__(self, block: nn.Module, features: Features, after: str):
        super().__init__()
        self.block, self.features, self.after = block, features, after

    def forward(self, x: Tensor) -> Tensor:
        """[B, *positions, C] -> the same shape."""
        if isinstance(x, torch.fx.Proxy):
            return as_one_node(self, x)
        layout, channels, ndim, prefix, guessed, patches = self.features
        if not isinstance(x, Tensor) or x.ndim != (ndim or 2) + 2 or x.shape[-1] != channels:
            got = list(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
            axes = "N" if layout == "tokens" else ", ".join("THW"[-(ndim or 2) :])
            raise ValueError(
                f"expected [B, {axes}, {channels}] ({layout}), got {got} after {self.after!r}: "
                "give cgnl.insert an example= of the model's input, or layout="
            )
        if guessed and isinstance(x.shape[1], int) and not _begins_with(prefix, x.shape[1], patches):
            raise ValueError(
                f"cannot tell whether the {x.shape[1]} tokens after {self.after!r} begin with the model's {prefix} "
                "class and register tokens: give cgnl.insert an example= of the model's input, or prefix="
            )
        y = self.block(x[:, prefix:].movedim(-1, 1)).movedim(1, -1)
        return torch.cat([x[:, :prefix], y], 1) if prefix else y

    def extra_repr(self) -> str:
        return f"layout={self.features.layout!r}" + (f", prefix={self.features.prefix}" * bool(self.features.prefix))


def runs_in_order(module: nn.Module) -> bool:
    """Whether this is a Sequential that runs its children one after the other."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def find_features(
    name: str,
    modules: Modules,
    outputs: Sequence[object] | None,
    channels: int | None,
    layout: str,
    prefix: int | None = None,
    patches: Sequence[int] = (),
) -> Features:
    """What the module returns, by its layers, its class and, if given, what it returned in a run.

    Args:
        name: of the module.
        modules: of the whole model, by name.
        outputs: the shape of each tensor that it returned, or the type of anything else; None if it was not run.
        channels: their number, or None.
        layout: one of ``LAYOUTS``.
        prefix: class and register tokens before the others; None means found out.
        patches: in the run, the positions of the maps before tokens were made of them, the last one last.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    target = modules[name]
    if isinstance(target, Adapter) and layout in ("auto", target.features.layout):
        return target.features
    width, ndim = _read_layers(name, modules)
    width = width if channels is None else channels
    if outputs is None:
        layout = _guess_layout(name, modules) if layout == "auto" else layout
        if width is None:
            raise ValueError(f"cannot tell the channels after {name!r}: give channels= or example=")
        ndim = {"channels_first": ndim, "channels_last": ndim or 2, "tokens": 1}[layout]
        _check_prefix(name, prefix, layout)
        if layout != "tokens" or prefix is not None:
            return Features(layout, width, ndim, prefix or 0)
        prefix = 0 if hasattr(target, "output_fmt") else _declared_prefix(name, modules) or 0
        count = next((n for m in modules.values() if isinstance(n := getattr(m, "num_patches", None), int)), None)
        return Features(layout, width, ndim, prefix, prefix > 0, count)
    shapes = _check_shapes(name, outputs)
    if layout == "auto":
        found = {_observed_layout(name, modules, shape, width) for shape in shapes}
        if len(found) > 1:
            raise ValueError(f"{name!r} is called several times, with other layouts: name a module that is called once")
        layout = found.pop()
    if layout == "tokens" and len(shapes[0]) != 3:
        raise ValueError(f"the output of {name!r} is not [B, N, C], as layout = 'tokens' says, but {list(shapes[0])}")
    axis = 1 if layout == "channels_first" else -1
    for shape in shapes:
        if (shape[axis], len(shape)) != (shapes[0][axis], len(shapes[0])):
            raise ValueError(
                f"{name!r} is called several times, with {shapes[0][axis]} and with {shape[axis]} channels: "
                "name a module that is called once"
            )
    width = shapes[0][axis] if channels is None else channels
    _check_prefix(name, prefix, layout)
    if layout == "tokens" and prefix is None:
        counts = {_observe_prefix(name, modules, shape[1], patches) for shape in shapes}
        if len(counts) > 1:
            raise ValueError(f"{name!r} is called several times, with other tokens: name a module that is called once")
        prefix = counts.pop()
    return Features(layout, width, len(shapes[0]) - 2, prefix or 0)


def _check_prefix(name: str, prefix: int | None, layout: str) -> None:
    if prefix is None:
        return
    if not hasattr(prefix, "__index__") or prefix < 0:
        raise ValueError(f"prefix must be a whole number, 0 or more, got {prefix!r}")
    if prefix and layout != "tokens":
        raise ValueError(f"prefix = {prefix} is a number of tokens, and the output of {name!r} is {layout}")


def _check_shapes(name: str, outputs: Sequence[object]) -> list[torch.Size]:
    for output in outputs:
        if not isinstance(output, torch.Size) or len(output) not in (3, 4, 5):
            what = list(output) if isinstance(output, torch.Size) else getattr(output, "__name__", output)
            raise ValueError(f"the output of {name!r} is not [B, C, *positions] or [B, *positions, C] but {what}")
    return [output for output in outputs if isinstance(output, torch.Size)]


def _observed_layout(name: str, modules: Modules, shape: torch.Size, width: int | None) -> str:
    """The layout of an output by its shape and the layers around it: another axis may be as long as the channels."""
    first, last = shape[1] == width, shape[-1] == width
    declared = _declared_layout(name, modules)
    flattened = len(shape) == 3 and (_read_layers(name, modules)[1] or 1) > 1  # convolutions have more axes than it
    if declared == "channels_first" and flattened:
        declared = None
    last_layout = "tokens" if len(shape) == 3 else "channels_last"
    if first == last:
        # A module that concatenates has more channels than its last layer.
        if declared is None or (not first and declared != "channels_first"):
            which = f"are its {width} channels" if first else "are the channels"
            raise ValueError(
                f"cannot tell which axis of the output of {name!r}, {list(shape)}, {which}: give "
                f"layout='channels_first' or layout={last_layout!r}{', or an example of another size' * first}"
            )
        layout = last_layout if declared in ("channels_last", "tokens") else "channels_first"
    else:
        layout = "channels_first" if first else last_layout
        if declared is not None and (declared == "channels_first") != first:
            raise ValueError(
                f"the output of {name!r}, {list(shape)}, seems to be {layout}, and its layers {declared}: give layout="
            )
    if layout == "tokens":
        _check_batch_first(name, modules)
    return layout


def _guess_layout(name: str, modules: Modules) -> str:
    """The layout of a module's output, without running it."""
    layout = _declared_layout(name, modules)
    if layout == "tokens":
        _check_batch_first(name, modules)
    axis = _channels_axis(modules[name]) or _axis_before(name, modules)
    if layout is None and axis in ("last", "moved"):
        raise ValueError(
            f"cannot tell the layout after {name!r}: give example=, or layout='channels_first', "
            "layout='channels_last' ([B, H, W, C]) or layout='tokens' ([B, N, C])"
        )
    return layout or "channels_first"


def _declared_layout(name: str, modules: Modules) -> str | None:
    """The layout by the module's layers and class, or None if they leave it open."""
    axis = _channels_axis(modules[name])
    if axis == "moved":
        return None
    if axis == "first" and _layout_of_class(modules[name]) is None:
        return "channels_first"
    if layout := next((known for m in _with_parents(name, modules) if (known := _layout_of_class(m))), None):
        return layout
    return "channels_first" if axis is None and _axis_before(name, modules) == "first" else None


_CLASSES = {
    "torchvision.models.swin_transformer": "channels_last",
    "torchvision.models.video.swin_transformer": "channels_last",
    "torchvision.models.vision_transformer": "tokens",
}
_TIMM_FORMATS = {"NCHW": "channels_first", "NHWC": "channels_last", "NLC": "tokens"}


def _layout_of_class(module: nn.Module) -> str | None:
    """The layout that modules of this class and their children have, as far as torchvision and timm say."""
    if (form := getattr(module, "output_fmt", None)) is not None:
        return "tokens" if getattr(module, "flatten", False) else _TIMM_FORMATS.get(form)
    return "tokens" if _own_prefix(module) is not None else _CLASSES.get(type(module).__module__)


def _with_parents(name: str, modules: Modules) -> Iterator[nn.Module]:
    yield modules[name]
    while name:
        name = name.rpartition(".")[0]
        yield modules[name]


_TOKENS = ("cls_token", "class_token", "dist_token", "distillation_token", "reg_token", "register_tokens")


def _own_prefix(module: nn.Module) -> int | None:
    """How many class and register tokens a vision transformer puts before the others; None for other modules."""
    if isinstance(count := getattr(module, "num_prefix_tokens", None), int):
        return count
    tokens = [p for key in _TOKENS if (p := module._parameters.get(key)) is not None and p.ndim == 3]
    return sum(token.shape[1] for token in tokens) if tokens else None


def _declared_prefix(name: str, modules: Modules) -> int | None:
    return next((count for m in _with_parents(name, modules) if (count := _own_prefix(m)) is not None), None)


def _observe_prefix(name: str, modules: Modules, tokens: int, patches: Sequence[int]) -> int:
    """The class and register tokens in the output of a module: how many it has more than there were patches."""
    declared = _declared_prefix(name, modules)
    if hasattr(modules[name], "output_fmt"):  # a patch embedding, which they follow
        return 0
    if declared:
        is_all, is_more = tokens in patches, tokens - declared in patches
        if is_all != is_more:
            return declared if is_more else 0
    elif declared == 0 or not patches or tokens in patches or tokens < patches[-1]:
        return 0
    raise ValueError(
        f"cannot tell whether the {tokens} tokens after {name!r} begin with class or register tokens: "
        "give prefix=, their number, 0 if there are none"
    )


def _begins_with(prefix: int, tokens: int, patches: int | None) -> bool:
    """Whether so many tokens are a prefix and patches: as many as the model was made for or, failing that, a square."""
    if patches in (tokens, tokens - prefix):
        return patches != tokens
    return [n >= 0 and math.isqrt(n) ** 2 == n for n in (tokens, tokens - prefix)] == [False, True]


class PatchCounter:
    """How many patches there are, by the outputs of the modules in the order in which they run."""

    def __init__(self):
        self.maps: list[int] = []
        self.tokens: list[int] = []

    def add(self, module: nn.Module, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim >= 3:
            if isinstance(module, nn.modules.conv._ConvNd) and not _is_gate(module):
                self.maps.append(math.prod(output.shape[2:]))
            elif output.ndim == 3:
                self.tokens.append(output.shape[1])

    def counts(self) -> list[int]:
        """The positions of all maps of convolutions or, without any, the first tokens."""
        return self.maps.copy() or self.tokens[:1]


def _check_batch_first(name: str, modules: Modules) -> None:
    for module in modules[name].modules():
        if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
            raise ValueError(f"the output of {name!r} is [N, B, C]: build its attention with batch_first=True")


_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
_LAST = (nn.Linear, nn.LayerNorm, nn.MultiheadAttention)
_MOVERS = ("permute", "transpose", "swapax", "rearrange", "flatten", "partition")
"""In the names of classes that move axes."""


def _kind(layer: nn.Module) -> str | None:
    if isinstance(layer, _FIRST) or (isinstance(layer, nn.LayerNorm) and type(layer).__name__.endswith("2d")):
        return None if _is_gate(layer) else "first"
    return "last" if isinstance(layer, _LAST) else None


def _channels_axis(module: nn.Module) -> str | None:
    """Which axis of a module's output are the channels, by its layers.

    "first", "last"; "mixed" if there are layers of both kinds; "moved" if axes are moved too; None without layers.
    """
    if isinstance(module, Adapter):
        return "last"
    if runs_in_order(module):
        return next((axis for child in reversed(list(module.children())) if (axis := _channels_axis(child))), None)
    layers = list(_own_layers(module))
    kinds = {kind for layer in layers if (kind := _kind(layer))}
    if len(kinds) == 2:
        return "mixed"
    moves = any(word in type(layer).__name__.lower() for layer in layers for word in _MOVERS)
    if moves and kinds != {"first"}:
        return "moved"
    return kinds.pop() if kinds else None


def _own_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The module and all in it, but for blocks that an adapter gives another layout."""
    yield module
    for child in module.children():
        if not isinstance(child, Adapter):
            yield from _own_layers(child)


def _axis_before(name: str, modules: Modules) -> str | None:
    return next((kind for layer in reversed(_layers_before(name, modules)) if (kind := _kind(layer))), None)


def _layers_before(name: str, modules: Modules) -> list[nn.Module]:
    names = list(modules)
    return [modules[n] for n in names[: names.index(name)] if not name.startswith(f"{n}.")]


def _read_layers(name: str, modules: Modules) -> tuple[int | None, int | None]:
    """(channels, ndim) from the last layers inside the target or, failing that, before it."""
    target = modules[name]
    inside = [modules[n] for n in modules if n == name or n.startswith(f"{name}.")]
    layers = [layer for layer in _layers_before(name, modules) + inside if not _is_gate(layer)]
    width = next((w for layer in reversed(layers) if (w := _width(layer))), None)
    ndim = next((len(n.kernel_size) for n in reversed(layers) if isinstance(n, nn.modules.conv._ConvNd)), None)
    if isinstance(target, nn.LayerNorm):
        width = target.normalized_shape[-1]
    return width, ndim


def _is_gate(layer: nn.Module) -> bool:
    """A convolution along the channels, as in efficient channel attention."""
    return isinstance(layer, nn.Conv1d) and layer.in_channels == layer.out_channels == 1


_WIDTHS: dict[type[nn.Module], str] = {
    nn.modules.conv._ConvNd: "out_channels",
    nn.Linear: "out_features",
    nn.modules.batchnorm._NormBase: "num_features",
    nn.GroupNorm: "num_channels",
}


def _width(layer: nn.Module) -> int | None:
    return next((getattr(layer, attribute) for kind, attribute in _WIDTHS.items() if isinstance(layer, kind)), None)
