"""The paper's networks by name."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ..heads import KINDS, Classifier, SecondOrderPool
from ..ops.reference import check_whole
from ..surgery import STAGES, Factory, insert, placement
from .backbones import build_backbone, is_backbone, place_block, read_pretrained
from .resnet import resnet
from .video import c2d_resnet, i3d_resnet
from .weights import BODY, LoadReport, load_reference_checkpoint, load_weights

__all__ = [
    "NETWORKS",
    "LoadReport",
    "create_model",
    "is_backbone",
    "is_detector",
    "is_video",
    "load_reference_checkpoint",
    "load_weights",
]


def _detector(form: str, num_classes: int, dropout: float, caffe: bool = False) -> nn.Module:
    """Mask R-CNN; imports torchvision's detection only when needed."""
    from . import detection

    return getattr(detection, f"maskrcnn_{form}")(num_classes, dropout, caffe)


NETWORKS: dict[str, Callable[[int, float], nn.Module]] = {
    **{f"resnet{depth}": functools.partial(resnet, depth) for depth in STAGES},
    **{f"resnet{depth}_caffe": functools.partial(resnet, depth, caffe=True) for depth in (50, 101, 152)},
    **{f"c2d_resnet{depth}": functools.partial(c2d_resnet, depth) for depth in (18, 34, 50, 101)},
    **{f"c2d_resnet{depth}_caffe": functools.partial(c2d_resnet, depth, caffe=True) for depth in (50, 101)},
    **{f"i3d_resnet{depth}": functools.partial(i3d_resnet, depth) for depth in (50, 101)},
    **{f"i3d_resnet{depth}_caffe": functools.partial(i3d_resnet, depth, caffe=True) for depth in (50, 101)},
    **{f"maskrcnn_resnet50_{form}": functools.partial(_detector, form) for form in ("fpn", "c4")},
    **{f"maskrcnn_resnet50_{form}_caffe": functools.partial(_detector, form, caffe=True) for form in ("fpn", "c4")},
}
"""Name -> function of the number of classes and the dropout."""


def is_detector(name: str) -> bool:
    """Whether the network of this name is a detector."""
    return name.startswith("maskrcnn_")


def is_video(name: str) -> bool:
    """Whether the network of this name takes clips."""
    return name.startswith(("c2d_", "i3d_"))


def create_model(
    name: str,
    *,
    block: str | Factory | None = None,
    blocks: int = 1,
    head: str = "average",
    reduced: int = 256,
    num_classes: int | None = None,
    weights: str | Path | None = None,
    dropout: float = 0.5,
    after: list[str] | None = None,
    **block_options,
) -> nn.Module:
    """Build a network, with blocks where the paper places them.

    Args:
        name: one of ``cgnl.models.NETWORKS``: ``resnet{18,34,50,101,152}``, ``resnet{50,101,152}_caffe``,
            ``c2d_resnet{18,34,50,101}``, ``c2d_resnet{50,101}_caffe``, ``i3d_resnet{50,101}``,
            ``i3d_resnet{50,101}_caffe``, ``maskrcnn_resnet50_{fpn,c4}``, ``maskrcnn_resnet50_{fpn,c4}_caffe``; or an
            image network of timm or torchvision, such as ``timm/convnext_tiny`` or ``torchvision/swin_t``.
        block: ``"cgnl"``, ``"cgnlx"``, ``"nl"``, ``"residual"``, or anything else that ``insert`` takes, or None.
        blocks: 1 (in res4) or 5 (2 in res3, 3 in res4), placed by ``placement``; in other libraries' networks 1, before
            the last residual block of the last stage but one.
        head: what pools the last map: ``"average"``, or a kind of ``SecondOrderPool``: ``"covariance"``,
            ``"bilinear"``, ``"compact"``. Mask R-CNN has none.
        reduced: channels whose products a second-order head takes, default 256.
        num_classes: outputs of the classifier; None means 1000, or 91 for Mask R-CNN, with the background.
        weights: a file with a state dict (an image network's is inflated for video, and becomes the backbone of
            Mask R-CNN, whose first layers are then frozen), or the name of torchvision's weights, such as
            ``"IMAGENET1K_V1"`` or ``"DEFAULT"``, or the tag of timm's; None initialises at random. The loading report
            is logged.
        dropout: before the classifier, default 0.5; Mask R-CNN has none, and other libraries' networks keep their own
            unless another number is given.
        after: names of modules to insert blocks after; None means the usual places for ``blocks``.
        block_options: arguments of the block, such as ``groups=4`` or ``norm="group"``.

    Returns:
        [B, 3, H, W] (images) or [B, 3, T, H, W] (video, of 7 frames or more) -> [B, num_classes]; for Mask R-CNN see
        ``models.detection``.
    """
    if not isinstance(name, str) or (name not in NETWORKS and not is_backbone(name)):
        raise ValueError(f"unknown network {name!r}: choose one of {', '.join(NETWORKS)}, timm/..., torchvision/...")
    default, least, background = (91, 2, ", with the background") if is_detector(name) else (1000, 1, "")
    num_classes = default if num_classes is None else num_classes
    check_whole(num_classes=num_classes, blocks=blocks)
    if num_classes < least:
        raise ValueError(f"num_classes must be at least {least}{background}, got num_classes = {num_classes}")
    if block is None and (after is not None or blocks != 1 or block_options):
        given = [*block_options, *(["after"] if after is not None else []), *(["blocks"] if blocks != 1 else [])]
        raise ValueError(f"no block is asked for, but options of one are given: {', '.join(given)}")
    _check_head(name, head, reduced)
    model = build_backbone(name, num_classes, dropout) if is_backbone(name) else NETWORKS[name](num_classes, dropout)
    if head != "average":
        set_head(model, name, head, reduced)
    if block is not None:
        insert(model, block, find_places(model, name, blocks) if after is None else after, **block_options)
    if weights is not None:
        report = load_weights(model, weights if Path(weights).exists() else read_pretrained(name, str(weights)))
        for line in f"{name} from {weights}: {report}".splitlines():
            logging.getLogger("cgnl").info("%s", line)
        freeze_early(name, model)
    arguments: Any = {"network": name, "num_classes": num_classes, "dropout": dropout}
    if head != "average":
        arguments |= {"head": head, "reduced": reduced}
    if block is not None:
        arguments |= {"block": block, **({"after": after} if after else {"blocks": blocks}), **block_options}
    model.arguments = arguments  # for models.arguments, which builds it again
    return model


def _check_head(name: str, head: str, reduced: int) -> None:
    if head not in ("average", *KINDS):
        raise ValueError(f"unknown head {head!r}: choose one of average, {', '.join(KINDS)}")
    if head == "average" and reduced != 256:
        raise ValueError(f"reduced = {reduced} is an option of a second-order head, but head is average")
    if head != "average" and is_detector(name):
        raise ValueError(f"head = {head!r}: {name} is a detector, and has no pooling to replace")


def find_places(model: nn.Module, name: str, blocks: int) -> list[str]:
    """Where blocks go by default: as in the paper, and in other libraries' networks one in the last stage but one."""
    if not is_backbone(name):
        return placement(name, blocks)
    if blocks != 1:
        raise ValueError(f"blocks = {blocks}: {name} has a place for one by default; name others with after=")
    return place_block(model, name)


def set_head(model: nn.Module, name: str, head: str, reduced: int) -> None:
    """Replace a ResNet's average by second-order pooling, with a new classifier of its size."""
    modules = dict(model.named_modules())
    average, old = next((key for key in ("avgpool", "global_pool") if key in modules), None), modules.get("fc")
    if average is None or not isinstance(old, nn.Linear):
        raise ValueError(f"head = {head!r}: {name} does not end in an average and a layer fc, as ResNets do")
    ndim = 3 if isinstance(modules[average], nn.AdaptiveAvgPool3d) else 2
    pool = SecondOrderPool(old.in_features, reduced, kind=head, ndim=ndim)
    model.set_submodule(average, pool)
    model.set_submodule("fc", Classifier(pool.features, old.out_features, getattr(old, "dropout", 0.0), pool.gain))


def freeze_early(name: str, model: nn.Module) -> None:
    """Freeze the first layers of a Mask R-CNN, up to res2; other networks are trained whole."""
    for key, parameter in model.named_parameters():
        if is_detector(name) and key.startswith((f"{BODY}conv1.", f"{BODY}layer1.")):
            parameter.requires_grad_(False)
