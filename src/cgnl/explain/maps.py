"""Maps over the positions of one sample: the attention of a reference position, and Grad-CAM.

The paper's figure picks "a reference position in the space of g" and uses "the corresponding vectors in Theta and Phi".
In a non-local block that is one row of the N x N matrix: one map over the positions.
In a CGNL block a position has one element per channel, and each element has a row over all positions and channels of
its group: one map per channel. ``Attention.maps`` holds, for each group, the row of the element with the largest
|theta|, whose maps have the largest range; ``Attention.row`` gives any other. Rows are computed from theta and phi; the
NC' x NC' matrix is never built.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import ops
from ..blocks import CGNL, NonLocal
from ..extras import need
from ..heads import second_order_pools
from ..ops.kernels import Kernel
from ..surgery import in_eval_mode
from ..text import counted, nearest

COLUMNS, THRESHOLD = 5, 0.7  # of the paper's figure


class Map(NamedTuple):
    """One map over the positions of a block, and its name."""

    name: str
    """For example ``"group 3, channel 14"``."""
    values: Tensor
    """[*positions]."""

    @property
    def scaled(self) -> Tensor:
        """The map scaled to [0, 1] by its own range, [*positions]; a constant map becomes 0."""
        return unit_range(self.values, self.values.ndim)

    def related(self, threshold: float = THRESHOLD) -> Tensor:
        """Where the scaled map reaches the threshold (default 0.7): a mask [*positions]."""
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold = {threshold} must be above 0 and at most 1")
        return self.scaled >= threshold


@dataclass(frozen=True, eq=False)
class Attention:
    """How one block relates a reference position of one sample to every other."""

    block: str
    """Dotted name of the block."""
    kernel: Kernel | str
    """Pairwise function: a kernel for a CGNL block, a name for a non-local one."""
    rank: int
    """Upper bound of the rank of a group's pairwise matrix: 1 for the dot kernel."""
    at: tuple[float, ...]
    """Reference position (x, y[, t]) in the input."""
    position: tuple[int, ...]
    """The same on the block's grid, ([t,] row, column)."""
    input_size: tuple[int, ...]
    """Positions of the input, ([T,] H, W)."""
    maps: Tensor
    """Rows of the pairwise matrix in float64, [G, C', *positions], one reference element a group; of a non-local block
    [1, 1, *positions]. Factors common to a row, such as the block's ``scale`` and ``normalize``, are left out."""
    references: tuple[int, ...]
    """Channel of each group's reference element; empty for a non-local block."""
    theta: Tensor
    """Factor [C, *positions] in float64, which the reference position indexes."""
    phi: Tensor
    """Factor [C, *positions] in float64, from which the maps are computed."""
    output: Any
    """Output of the model."""

    @property
    def groups(self) -> int:
        """Number of channel groups; 1 for a non-local block."""
        return self.maps.shape[0]

    @property
    def non_local(self) -> bool:
        """Whether the block is non-local: one map for all channels."""
        return isinstance(self.kernel, str)

    @property
    def group_maps(self) -> Tensor:
        """The maps summed over the channels of each group, [G, *positions]."""
        return self.maps.sum(1)

    def row(self, channel: int) -> Tensor:
        """The row of another channel's element at the reference position, [C', *positions]."""
        if isinstance(self.kernel, str):
            raise ValueError(f"{self.block} is a non-local block: a position has one row for all channels")
        if not 0 <= channel < self.theta.shape[0]:
            raise ValueError(f"channel = {channel} is none of the {self.theta.shape[0]} of {self.block}")
        at = (channel, *self.position)
        return ops.affinity(self.theta[None], self.phi[None], at, kernel=self.kernel, groups=self.groups)[0]

    def strongest(self, count: int = COLUMNS, group: int | None = None) -> list[Map]:
        """The maps of the ``count`` channels (default 5) with the largest range, in all groups or in one ``group``."""
        if self.non_local:
            return [Map("all channels", self.maps[0, 0])]
        if group is not None and not 0 <= group < self.groups:
            raise ValueError(f"group = {group} is none of the {self.groups} of {self.block}")
        flat = self.maps.flatten(0, 1).flatten(1)  # [C, N]
        order = (flat.amax(1) - flat.amin(1)).argsort(descending=True, stable=True).tolist()
        chosen = [c for c in order if group is None or c // self.maps.shape[1] == group]
        return [self.of_channel(c) for c in chosen[:count]]

    def of_channel(self, channel: int) -> Map:
        """The map of a channel, counted over all groups."""
        group, inside = divmod(channel, self.maps.shape[1])
        return Map(f"group {group}, channel {channel}", self.maps[group, inside])

    def by_group(self) -> list[Map]:
        """The summed map of each group."""
        if self.non_local:
            return self.strongest()
        return [Map(f"group {group}", values) for group, values in enumerate(self.group_maps)]

    def choose(self, count: int = COLUMNS, group: int | None = None, by_group: bool = False) -> list[Map]:
        """One map for each group if ``by_group``, else of the ``count`` strongest channels (of one ``group``)."""
        return self.by_group() if by_group else self.strongest(count, group)

    @property
    def caption(self) -> str:
        """What is shown, and what the rank implies, in a sentence or two."""
        if self.non_local:
            how = "softmax" if self.kernel == "embedded_gaussian" else "dot product"
            return f"{self.block}: non-local, {how}. One map over all channels for each reference position."
        if self.rank == 1:
            pattern = "all reference positions of a group share one pattern, up to sign and size"
        else:
            pattern = f"each map of a group is a mixture of the same {self.rank} patterns"
        groups = counted(self.groups, "group")
        return f"{self.block}: CGNL, {self.kernel}, {groups}, rank {self.rank}: {pattern}."

    def arrays(self) -> dict[str, Any]:
        """Everything but the output as NumPy arrays, numbers and strings, for an NPZ file."""
        tensors = {"maps": self.maps, "group_maps": self.group_maps, "theta": self.theta, "phi": self.phi}
        others = ("rank", "at", "position", "input_size", "block", "caption", "references")
        return (
            {name: tensor.numpy() for name, tensor in tensors.items()}
            | {name: getattr(self, name) for name in others}
            | {"kernel": str(self.kernel)}
        )


def attention(
    model: nn.Module,
    x: Tensor,
    at: Sequence[float],
    block: str | None = None,
    forward: Callable[[Tensor], Any] | None = None,
) -> Attention:
    """Compute the attention of a reference position in an NL or CGNL block of a network.

    The network runs once, in eval mode and without gradients, and is left unchanged.

    Args:
        model: any network with NL or CGNL blocks.
        x: one sample, [1, channels, *positions].
        at: reference position in pixels of the input, (x, y) for images and (x, y, t) for video.
        block: dotted name of the block; the last one unless given.
        forward: what is called with the sample, such as the backbone of a detector; the network unless given.
    """
    sizes = check_input(x)
    at = read_position(at)
    if len(at) != len(sizes):
        order = ("(x)", "(x, y)", "(x, y, t)")[len(sizes) - 1]
        raise ValueError(f"at = {at} has {len(at)} numbers, an input of {list(x.shape)} needs {len(sizes)}: {order}")
    if not all(0 <= a < n for a, n in zip(at, reversed(sizes), strict=True)):
        words = " x ".join(map(str, reversed(sizes)))
        raise ValueError(f"at = ({', '.join(f'{a:g}' for a in at)}) is outside the input of {words}")
    known = find_blocks(model)
    name = find_module(known, block)
    module = known[name]
    seen: list[tuple[Tensor, Tensor]] = []

    def record(_module: nn.Module, inputs: tuple) -> None:  # a hook, so that autocast and the like apply
        theta, phi, _ = module.factors(inputs[0])
        seen[:] = [(theta[0].detach().cpu().double(), phi[0].detach().cpu().double())]  # the last call counts

    with module.register_forward_pre_hook(record), torch.no_grad(), in_eval_mode(model):
        output = (forward or eager(model))(x)
    if not seen:
        raise ValueError(f"the input never reached {name!r}")
    theta, phi = (as_grid(factor, sizes) for factor in seen[0])  # [C, *P]
    grid = tuple(theta.shape[1:])
    if len(grid) != len(sizes):
        raise ValueError(f"{name!r} has {len(grid)} position axes, and the input {len(sizes)}")
    if not (theta.isfinite().all() and phi.isfinite().all()):
        raise ValueError(f"theta and phi of {name!r} are not all finite")
    position = tuple(int(a * n / size) for a, n, size in zip(reversed(at), grid, sizes, strict=True))
    maps, references = _rows(module, theta, phi, position)
    rank = _rank(module, math.prod(grid), math.prod(phi.shape[1:]))
    return Attention(name, module.kernel, rank, at, position, sizes, maps, references, theta, phi, output)


def read_position(at: Any) -> tuple[float, ...]:
    """The numbers of a reference position; raise for anything else."""
    try:
        if isinstance(at, str):
            raise TypeError
        return tuple(float(a) for a in at)
    except (TypeError, ValueError):
        raise ValueError(f"at must be numbers, as in (x, y), got {at!r}") from None


def as_grid(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Tokens [C, N] of an image, row by row, as a map [C, h, w] of square patches, if they are that many."""
    if values.ndim != 2 or len(sizes) != 2:
        return values
    rows = round(math.sqrt(values.shape[1] * sizes[0] / sizes[1]))
    fits = rows > 0 and values.shape[1] % rows == 0 and rows * sizes[1] == values.shape[1] // rows * sizes[0]
    return values.unflatten(1, (rows, -1)) if fits else values


def check_input(x: Tensor) -> tuple[int, ...]:
    """Return the positions of one sample, [1, channels, *positions]; raise for anything else."""
    if not isinstance(x, Tensor) or not 3 <= x.ndim <= 5 or x.shape[0] != 1:
        what = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"expected one sample, [1, channels, *positions], got {what}")
    return tuple(x.shape[2:])


def find_blocks(model: nn.Module) -> dict[str, CGNL | NonLocal]:
    """The NL and CGNL blocks of a model, by dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, CGNL | NonLocal)}


def shows_head(model: nn.Module) -> bool:
    """Whether a second-order head is all there is to explain."""
    return bool(second_order_pools(model)) and not find_blocks(model)


def find_module(known: Mapping[str, nn.Module], name: str | None, kind: str = "NL or CGNL block") -> str:
    """Return the name if there is such a module; without a name, that of the last one."""
    if not known:
        raise ValueError(f"the network has no {kind}")
    if name is not None and name not in known:
        raise ValueError(f"there is no {kind.split()[-1]} {name!r}{nearest(name, known)}")
    return name or list(known)[-1]


def unit_range(maps: Tensor, axes: int) -> Tensor:
    """Scale each map to [0, 1] by its own range, and constant maps to 0: [..., *positions] -> the same.

    Args:
        maps: [..., *positions].
        axes: number of position axes, which are the last ones.
    """
    over = tuple(range(-axes, 0))
    low, high = maps.amin(over, keepdim=True), maps.amax(over, keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low), 0.0)


def _rows(
    block: CGNL | NonLocal, theta: Tensor, phi: Tensor, position: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """Maps [G, C', *P], and the channel of each group's reference element."""
    if isinstance(block, NonLocal):
        row = ops.non_local_affinity(theta[None], phi[None], position, kernel=block.kernel, scale=block.scale)
        return row[None], ()  # [1, 1, *P]
    size = theta[(slice(None), *position)].unflatten(0, (block.groups, -1)).abs()  # [G, C']
    references = tuple(group * size.shape[1] + int(best) for group, best in enumerate(size.argmax(1)))
    options = {"kernel": block.kernel, "groups": block.groups}
    rows = [ops.affinity(theta[None], phi[None], (channel, *position), **options) for channel in references]
    return torch.cat(rows), references


def _rank(block: CGNL | NonLocal, positions: int, keys: int) -> int:
    if isinstance(block, NonLocal):
        return min(positions, keys, block.inner_channels if block.kernel == "dot" else positions)
    return min(sum(a > 0 for a in block.kernel.coefficients()), positions * block.inner_channels // block.groups)


def grad_cam(model: nn.Module, x: Tensor, target: int | None = None, layer: str | None = None) -> Tensor:
    """Compute Grad-CAM of one sample at the output of a layer, [*positions], at least 0.

    Args:
        model: a classifier, [1, channels, *positions] -> [1, K].
        x: one sample, [1, channels, *positions].
        target: the class; the predicted one unless given.
        layer: dotted name of any module; unless given the last NL or CGNL block or, without blocks, the input of the
            second-order head.
    """
    sizes = check_input(x)
    blocks, heads = find_blocks(model), second_order_pools(model)
    before_head = layer is None and not blocks and bool(heads)
    layer = layer or (list(heads)[-1] if before_head else find_module(blocks, None))
    captum = need("captum.attr", "explain")
    with in_eval_mode(model), torch.enable_grad():
        if target is None:
            target = int(model(x.detach()).float().softmax(1).argmax(1))
        cam = captum.LayerGradCam(model, model.get_submodule(layer))
        options = {"target": target, "relu_attributions": True, "attribute_to_layer_input": before_head}
        heat = cam.attribute(x.detach().requires_grad_(), **options)  # [1, 1, *P]
    return as_grid(heat[0].detach().float().cpu(), sizes)[0]


def eager(model: nn.Module) -> Any:
    """The uncompiled model: a compiled one may not call hooks."""
    model = getattr(model, "_orig_mod", model)
    return model._call_impl if getattr(model, "_compiled_call_impl", None) else model


@contextmanager
def entered(contexts: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter several contexts, such as the handles of hooks, and leave them all."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def patched(target: object, **attributes: Any) -> Iterator[None]:
    """Set attributes of an object for a while; methods of its class are shadowed."""
    own = vars(target)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            own.pop(name)
        own.update(before)
