"""Mask R-CNN on a ResNet-50: with a feature pyramid, or with res4's features and res5 as its head (C4).

It is torchvision's: a list of images [3, H, W] of any size, from 0 to 1 -> a list of ``boxes``, ``labels``,
``scores`` and ``masks``; in training, with a list of targets, a dictionary of losses. Class 0 is the background.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..extras import need
from .resnet import resnet

detection = need("torchvision.models.detection", "vision")
faster_rcnn = need("torchvision.models.detection.faster_rcnn", "vision")
mask_rcnn = need("torchvision.models.detection.mask_rcnn", "vision")
misc = need("torchvision.ops.misc", "vision")

PROPOSALS, DETECTIONS = 1000, 100
"""Boxes per image that reach the box head and the mask head in a test."""
EPS = 1e-5


class FrozenBatchNorm2d(misc.FrozenBatchNorm2d):
    """torchvision's frozen norm, which also equals a trainable one in eval mode, to the last bit.

    Weights of a trainable norm count the batches it has seen; with those, one kernel computes what it would.
    """

    was_trainable = False

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        if not self.was_trainable and x.dtype == self.weight.dtype:
            return super().forward(x)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.was_trainable:
            destination[f"{prefix}num_batches_tracked"] = torch.tensor(0)
        if self.eps != EPS:  # torchvision's weights for COCO were trained without it
            destination[f"{prefix}eps"] = torch.tensor(self.eps, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.was_trainable = f"{prefix}num_batches_tracked" in state_dict
        self.eps = float(state_dict.pop(f"{prefix}eps", EPS))
        super()._load_from_state_dict(state_dict, prefix, *rest)


# Boxes are predicted in float32: bfloat16 resolves a position to eight pixels.


class RPNHead(faster_rcnn.RPNHead):
    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, deltas = super().forward(x)
        return [s.float() for s in scores], [d.float() for d in deltas]


class BoxPredictor(faster_rcnn.FastRCNNPredictor):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, deltas = super().forward(x)
        return scores.float(), deltas.float()


class MaskPredictor(mask_rcnn.MaskRCNNPredictor):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class Shared(nn.Module):
    """Calls a module that is registered elsewhere, so that its weights are not listed twice."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._other = (module,)

    def forward(self, x: Tensor) -> Tensor:
        return self._other[0](x)


class Body(nn.Module):
    """A backbone without a pyramid, with the weight names of one that has it."""

    def __init__(self, body: nn.Module, out_channels: int):
        super().__init__()
        self.body, self.out_channels = body, out_channels

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.body(x)


def maskrcnn_fpn(num_classes: int, dropout: float = 0.0, caffe: bool = False) -> nn.Module:  # noqa: ARG001
    """Mask R-CNN with a feature pyramid; its weights have the names of torchvision's ``maskrcnn_resnet50_fpn``."""
    body = resnet(50, 1, 0.0, caffe, norm_layer=FrozenBatchNorm2d)
    stages = {f"layer{k + 1}": str(k) for k in range(4)}
    backbone = detection.backbone_utils.BackboneWithFPN(body, stages, [256, 512, 1024, 2048], out_channels=256)
    anchors = detection.anchor_utils.AnchorGenerator(((32,), (64,), (128,), (256,), (512,)), ((0.5, 1.0, 2.0),) * 5)
    return detection.MaskRCNN(
        backbone,
        rpn_anchor_generator=anchors,
        rpn_head=RPNHead(backbone.out_channels, anchors.num_anchors_per_location()[0]),
        box_predictor=BoxPredictor(1024, num_classes),
        mask_predictor=MaskPredictor(256, 256, num_classes),
    )


def maskrcnn_c4(num_classes: int, dropout: float = 0.0, caffe: bool = False) -> nn.Module:  # noqa: ARG001
    """Mask R-CNN with regions of res4, 14 x 14, that go through res5, which boxes and masks share."""
    ops = need("torchvision.ops", "vision")
    body = resnet(50, 1, 0.0, caffe, norm_layer=FrozenBatchNorm2d)
    res5 = body.get_submodule("layer4")
    getter = need("torchvision.models._utils", "vision").IntermediateLayerGetter
    backbone = Body(getter(body, {"layer3": "0"}), out_channels=1024)
    anchors = detection.anchor_utils.AnchorGenerator(((32, 64, 128, 256, 512),), ((0.5, 1.0, 2.0),))
    pool = ops.MultiScaleRoIAlign(["0"], output_size=14, sampling_ratio=0)
    return detection.MaskRCNN(
        backbone,
        rpn_anchor_generator=anchors,
        rpn_head=RPNHead(1024, anchors.num_anchors_per_location()[0]),
        rpn_pre_nms_top_n_train=12000,
        rpn_pre_nms_top_n_test=6000,
        rpn_post_nms_top_n_test=PROPOSALS,
        box_roi_pool=pool,
        box_head=nn.Sequential(OrderedDict(layer4=res5, pool=nn.AdaptiveAvgPool2d(1))),
        box_predictor=BoxPredictor(2048, num_classes),
        mask_roi_pool=pool,
        mask_head=Shared(res5),
        mask_predictor=MaskPredictor(2048, 256, num_classes),
    )


def dense_pass(model: nn.Module, pixels: Tensor) -> None:
    """Run everything that costs multiply-adds for one image, with as many proposals and detections as there can be."""
    features = model.get_submodule("backbone")(pixels)
    model.get_submodule("rpn").get_submodule("head")(list(features.values()))
    heads, channels = model.get_submodule("roi_heads"), next(iter(features.values())).shape[1]
    for kind, count in (("box", PROPOSALS), ("mask", DETECTIONS)):
        size = getattr(heads, f"{kind}_roi_pool").output_size
        regions = pixels.new_empty(count, channels, *size)
        heads.get_submodule(f"{kind}_predictor")(heads.get_submodule(f"{kind}_head")(regions))
