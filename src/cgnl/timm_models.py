"""timm's ResNets with blocks in the paper's places: ``import cgnl.timm_models``, then ``timm.create_model``.

``cgnl_resnet50``, ``cgnlx_resnet50``, ``nl_resnet50`` and so on take the arguments of timm's own ResNets (num_classes,
in_chans, features_only, drop_rate, ...), ``blocks=5`` or ``after``, the names of modules to put blocks behind, and
``block_options``, a dictionary of arguments of the block.
``pretrained=True`` loads timm's weights of the plain ResNet, among whose layers new blocks are an identity.

timm's scripts see them through ``python -m cgnl.timm_models train.py --model cgnl_resnet50 ...``.
"""

import dataclasses
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from .extras import need
from .surgery import STAGES, insert, inserted, placement

timm = need("timm", "timm")
registry = need("timm.models", "timm")
resnets = need("timm.models.resnet", "timm")

BLOCKS = ("cgnl", "cgnlx", "nl")

__all__ = ["run_script"]


def resnet(
    depth: int,
    block: str,
    blocks: int = 1,
    after: Sequence[str] | None = None,
    block_options: Mapping[str, Any] | None = None,
    **options: Any,
):
    """timm's ResNet, with blocks."""
    kind = resnets.BasicBlock if depth < 50 else resnets.Bottleneck
    model = resnets.ResNet(kind, STAGES[depth], **options)
    return insert(
        model, block, placement(f"resnet{depth}", blocks) if after is None else after, **(block_options or {})
    )


def keep_blocks(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights of a plain ResNet, and the blocks as they are."""
    if any(name.startswith(tuple(f"{block}." for block in inserted(model))) for name in state):
        return dict(state)
    new = {f"{block}.{name}": value for block, m in inserted(model).items() for name, value in m.state_dict().items()}
    return {**state, **new}


def _register(depth: int, block: str) -> None:
    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        return registry.build_model_with_cfg(
            partial(resnet, depth, block), name, pretrained, pretrained_filter_fn=keep_blocks, **options
        )

    name = entry.__name__ = entry.__qualname__ = f"{block}_resnet{depth}"
    entry.__doc__ = f"ResNet-{depth} with {block} blocks."
    globals()[name] = entry
    default_cfgs[name] = _config(depth)
    registry.register_model(entry)


def _config(depth: int) -> Any:
    """Input, normalisation and weights are those of timm's plain ResNet."""
    plain = registry.get_pretrained_cfg(f"resnet{depth}")
    config = dataclasses.asdict(plain) if plain is not None else {}
    return {name: value for name, value in config.items() if name not in ("architecture", "tag")}


default_cfgs: dict[str, Any] = {}
for _depth in STAGES:
    for _block in BLOCKS:
        _register(_depth, _block)


def run_script(*arguments: str) -> None:
    """Run somebody's script with its arguments, as Python does, after the networks were registered."""
    if not arguments:
        sys.exit("usage: python -m cgnl.timm_models SCRIPT [ARGUMENT ...]")
    sys.argv = list(arguments)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    run_script(*sys.argv[1:])
