"""Image ResNets: torchvision's, and the Caffe variant whose stride sits on the 1 x 1 convolution."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..extras import need


class Classifier(nn.Linear):
    """A linear layer with dropout before it, whose weights keep the names of a plain one.

    What it is given is multiplied by ``gain``.
    """

    def __init__(self, in_features: int, out_features: int, dropout: float = 0.5, gain: float = 1.0):
        super().__init__(in_features, out_features)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got dropout = {dropout}")
        self.dropout, self.gain = dropout, gain

    def forward(self, input: Tensor) -> Tensor:  # [B, in_features] -> [B, out_features]
        features = F.dropout(input, self.dropout, self.training)
        return super().forward(features if self.gain == 1 else self.gain * features)

    def extra_repr(self) -> str:
        gain = "" if self.gain == 1 else f", gain={self.gain:.4g}"
        return f"{super().extra_repr()}, dropout={self.dropout}{gain}"


def resnet(depth: int, num_classes: int, dropout: float, caffe: bool = False, **options) -> nn.Module:
    """torchvision's ResNet with dropout before its classifier. [B, 3, H, W] -> [B, num_classes]."""
    model = getattr(need("torchvision.models", "vision"), f"resnet{depth}")(weights=None, **options)
    model.fc = Classifier(model.fc.in_features, num_classes, dropout)
    if caffe:
        for stage in (model.layer2, model.layer3, model.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride
    return model
