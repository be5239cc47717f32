"""Video ResNets: an image ResNet with every layer given a temporal axis. [B, 3, T, H, W] -> [B, num_classes].

C2D is the paper's baseline: all kernels are 1 x k x k, and time is only pooled. I3D makes some of them longer in time.
Both take 32 x 224 x 224 -> conv1 16 x 112 x 112 -> pool1 8 x 56 x 56 -> pool2 4 x 56 x 56 -> res3 4 x 28 x 28
-> res4 4 x 14 x 14 -> res5 4 x 7 x 7.
Time is halved three times: clips have at least 7 frames.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..surgery import STAGES
from .resnet import resnet

FEWEST = 7
"""Frames, of which pool2 leaves one."""


def c2d_resnet(depth: int, num_classes: int, dropout: float, caffe: bool = False) -> nn.Module:
    """Kernels 1 x k x k throughout."""
    return _video_resnet(resnet(depth, num_classes, dropout, caffe), temporal_width={})


def i3d_resnet(depth: int, num_classes: int, dropout: float, caffe: bool = False) -> nn.Module:
    """conv1 is 5 x 7 x 7, and the first 1 x 1 of some residual blocks is 3 x 1 x 1."""
    res2, res3, res4, _ = STAGES[depth]
    wide = {"layer1": range(res2), "layer2": range(0, res3, 2), "layer3": range(0, res4, 2), "layer4": [1]}
    widths = {f"{stage}.{block}.conv1": 3 for stage, blocks in wide.items() for block in blocks}
    return _video_resnet(resnet(depth, num_classes, dropout, caffe), {"conv1": 5} | widths)


def inflate_weight(weight: Tensor, temporal_width: int) -> Tensor:
    """Repeat a 2-D kernel over time and divide it by its width: a still clip then gives the image's output."""
    return weight.unsqueeze(2).repeat(1, 1, temporal_width, 1, 1) / temporal_width  # [O, I, T, kH, kW]


def _video_resnet(model: nn.Module, temporal_width: dict[str, int]) -> nn.Module:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Conv2d):
            stride = 2 if name == "conv1" else 1
            model.set_submodule(name, _inflate_conv(module, temporal_width.get(name, 1), stride))
        elif isinstance(module, nn.BatchNorm2d):
            model.set_submodule(name, nn.BatchNorm3d(module.num_features))
    model.maxpool = nn.MaxPool3d((2, 3, 3), stride=(2, 2, 2), padding=(0, 1, 1))
    model.get_submodule("layer1").add_module("pool2", nn.MaxPool3d((2, 1, 1), stride=(2, 1, 1)))
    model.avgpool = nn.AdaptiveAvgPool3d(1)
    model.register_forward_pre_hook(_check_frames)
    return model


def _check_frames(_module: nn.Module, args: tuple[Any, ...]) -> None:
    clip = args[0] if args else None
    if isinstance(clip, Tensor) and clip.ndim == 5 and clip.shape[2] < FEWEST:
        raise ValueError(f"a clip must have at least {FEWEST} frames, got {clip.shape[2]}: {list(clip.shape)}")


def _inflate_conv(conv: nn.Conv2d, width: int, temporal_stride: int) -> nn.Conv3d:
    inflated = nn.Conv3d(
        conv.in_channels,
        conv.out_channels,
        (width, conv.kernel_size[0], conv.kernel_size[1]),
        stride=(temporal_stride, conv.stride[0], conv.stride[1]),
        padding=(width // 2, int(conv.padding[0]), int(conv.padding[1])),
        bias=False,
        device=conv.weight.device,
    )
    with torch.no_grad():
        inflated.weight.copy_(inflate_weight(conv.weight, width))
    return inflated
