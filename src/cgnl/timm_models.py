"""timm's ResNets with blocks in the paper's places: ``import cgnl.timm_models``, then ``timm.create_model``.

``cgnl_resnet50``, ``cgnlx_resnet50``, ``nl_resnet50`` and so on take the arguments of timm's own ResNets (num_classes,
in_chans, features_only, drop_rate, ...), ``blocks=5`` or ``after``, the names of modules to insert blocks after, and
``block_options``, a dictionary of arguments of the block. ``covariance_resnet50`` and so on have no block, and
second-order pooling in place of the average; ``head`` and ``reduced`` give it to the others too.
``pretrained=True`` loads timm's weights of the plain ResNet; new blocks are an identity. A second-order head and its
classifier are new.

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
from .heads import Classifier, SecondOrderPool, second_order_pools
from .surgery import STAGES, insert, inserted, placement

timm = need("timm", "timm")
registry = need("timm.models", "timm")
resnets = need("timm.models.resnet", "timm")

BLOCKS = ("cgnl", "cgnlx", "nl")

__all__ = ["run_script"]


class SecondOrderResNet(resnets.ResNet):
    """timm's ResNet with ``SecondOrderPool`` as its ``global_pool``, which a new classifier keeps.

    ``num_features`` are the channels of the last map, ``head_hidden_size`` the features of the classifier.
    """

    def __init__(self, *arguments: Any, head: str, reduced: int, global_pool: str = "avg", **options: Any):
        _check_pool(global_pool)
        super().__init__(*arguments, global_pool=global_pool, **options)
        self.head_options: Any = {"kind": head, "reduced": reduced}
        if global_pool:
            self._set_head(self.global_pool)

    def reset_classifier(self, num_classes: int, global_pool: str = "avg") -> None:
        """Replace the classifier and keep the head; ``global_pool=""`` removes both."""
        _check_pool(global_pool)
        pool = self.global_pool
        super().reset_classifier(num_classes, global_pool)
        self.head_hidden_size = self.num_features
        if global_pool:
            self._set_head(pool)

    def _set_head(self, pool: nn.Module) -> None:
        like = next(self.parameters())
        factory: Any = {"device": like.device, "dtype": like.dtype}
        if not isinstance(pool, SecondOrderPool):
            pool = SecondOrderPool(self.num_features, **self.head_options, **factory).train(self.training)
        self.global_pool, self.head_hidden_size = pool, pool.features
        if self.num_classes > 0:
            self.fc = Classifier(pool.features, self.num_classes, 0.0, pool.gain, **factory).train(self.training)


def _check_pool(global_pool: str) -> None:
    if global_pool not in ("avg", ""):  # timm's own, and what it calls none
        raise ValueError(f"global_pool = {global_pool!r}, but a second-order head pools")


def resnet(
    depth: int,
    block: str | None,
    blocks: int = 1,
    after: Sequence[str] | None = None,
    block_options: Mapping[str, Any] | None = None,
    head: str = "average",
    reduced: int = 256,
    **options: Any,
):
    """timm's ResNet with blocks, a second-order head, or both."""
    kind = resnets.BasicBlock if depth < 50 else resnets.Bottleneck
    if head == "average" and reduced != 256:
        raise ValueError(f"reduced = {reduced} is an option of a second-order head, but head is average")
    if block is None and (blocks != 1 or after is not None or block_options):
        raise ValueError("no block is asked for, but options of one are given")
    if head == "average":
        model = resnets.ResNet(kind, STAGES[depth], **options)
    else:
        model = SecondOrderResNet(kind, STAGES[depth], head=head, reduced=reduced, **options)
    if block is None:
        return model
    return insert(
        model, block, placement(f"resnet{depth}", blocks) if after is None else after, **(block_options or {})
    )


def keep_new_parts(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Weights of a plain ResNet, completed by the model's own blocks, head and classifier."""
    own, result = model.state_dict(), dict(state)
    for parts, with_them in ((inserted(model), ()), (second_order_pools(model), ("fc.",))):
        names = tuple(f"{part}." for part in parts)
        if names and not any(name.startswith(names) for name in state):
            new = (*names, *with_them)
            result = {name: value for name, value in result.items() if not name.startswith(new)}
            result |= {name: value for name, value in own.items() if name.startswith(new)}
    return result


def _register(depth: int, kind: str) -> None:
    block, usual = (kind, {}) if kind in BLOCKS else (None, {"head": kind})

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        return registry.build_model_with_cfg(
            partial(resnet, depth, block), name, pretrained, pretrained_filter_fn=keep_new_parts, **usual | options
        )

    name = entry.__name__ = entry.__qualname__ = f"{kind}_resnet{depth}"
    entry.__doc__ = f"ResNet-{depth} with {kind} blocks." if block else f"ResNet-{depth} with a {kind} head."
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
    for _kind in (*BLOCKS, "covariance"):
        _register(_depth, _kind)


def run_script(*arguments: str) -> None:
    """Run a script with its arguments, as Python does, with the networks registered."""
    if not arguments:
        sys.exit("usage: python -m cgnl.timm_models SCRIPT [ARGUMENT ...]")
    sys.argv = list(arguments)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    run_script(*sys.argv[1:])
