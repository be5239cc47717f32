"""The paper's networks by name."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path

from torch import nn

from ..extras import need
from ..surgery import STAGES, Factory, insert, placement
from .resnet import resnet
from .video import c2d_resnet, i3d_resnet
from .weights import LoadReport, load_reference_checkpoint, load_weights

__all__ = ["NETWORKS", "LoadReport", "create_model", "load_reference_checkpoint", "load_weights"]

NETWORKS: dict[str, Callable[[int, float], nn.Module]] = {
    **{f"resnet{depth}": functools.partial(resnet, depth) for depth in STAGES},
    **{f"resnet{depth}_caffe": functools.partial(resnet, depth, caffe=True) for depth in (50, 101, 152)},
    **{f"c2d_resnet{depth}": functools.partial(c2d_resnet, depth) for depth in (18, 34, 50, 101)},
    **{f"c2d_resnet{depth}_caffe": functools.partial(c2d_resnet, depth, caffe=True) for depth in (50, 101)},
    **{f"i3d_resnet{depth}": functools.partial(i3d_resnet, depth) for depth in (50, 101)},
}
"""Name -> function of the number of classes and the dropout."""


def create_model(
    name: str,
    *,
    block: str | Factory | None = None,
    blocks: int = 1,
    num_classes: int = 1000,
    weights: str | Path | None = None,
    dropout: float = 0.5,
    after: list[str] | None = None,
    **block_options,
) -> nn.Module:
    """Build a network, with blocks where the paper puts them.

    Args:
        name: one of ``cgnl.models.NETWORKS``: ``resnet{18,34,50,101,152}``, ``resnet{50,101,152}_caffe``,
            ``c2d_resnet{18,34,50,101}``, ``c2d_resnet{50,101}_caffe``, ``i3d_resnet{50,101}``.
        block: ``"cgnl"``, ``"cgnlx"``, ``"nl"``, ``"residual"``, or what else ``insert`` takes; None for none.
        blocks: 1 (in res4) or 5 (2 in res3, 3 in res4), placed by ``placement``.
        num_classes: outputs of the classifier.
        weights: a file with a state dict (an image network's is inflated for video), or the name of torchvision's
            weights, such as ``"IMAGENET1K_V1"``. What was loaded, new and ignored goes to the log.
        dropout: before the classifier.
        after: names of modules to put blocks behind, instead of ``blocks``.
        block_options: arguments of the block, such as ``groups=4`` or ``norm="group"``.

    Returns:
        [B, 3, H, W] (images) or [B, 3, T, H, W] (video) -> [B, num_classes].
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}: choose one of {', '.join(NETWORKS)}")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got num_classes = {num_classes}")
    if block is None and (after or block_options):
        raise ValueError(f"no block is asked for, but options of one are given: {', '.join(block_options) or 'after'}")
    model = NETWORKS[name](num_classes, dropout)
    if block is not None:
        insert(model, block, after or placement(name, blocks), **block_options)
    if weights is not None:
        report = load_weights(model, weights if Path(weights).exists() else _torchvision_weights(name, str(weights)))
        logging.getLogger("cgnl").info("%s from %s: %s", name, weights, report)
    return model


def _torchvision_weights(name: str, weights: str) -> dict:
    image_network = name.removeprefix("c2d_").removeprefix("i3d_").removesuffix("_caffe")
    if name.endswith("_caffe"):
        raise ValueError(f"there is no file {weights}, and torchvision has no weights for {name}")
    known = need("torchvision.models", "vision").get_model_weights(image_network)
    if weights not in known.__members__:
        raise ValueError(
            f"{weights} is neither a file nor one of torchvision's weights: {', '.join(known.__members__)}"
        )
    try:
        return known[weights].get_state_dict(progress=False, check_hash=True)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(
            f"torchvision's {weights} cannot be downloaded ({reason}): give a file of weights, or none"
        ) from None
