"""Image ResNets: torchvision's, and the Caffe variant with its stride on the 1 x 1 convolution."""

from torch import nn

from ..extras import need
from ..heads import Classifier


def resnet(depth: int, num_classes: int, dropout: float, caffe: bool = False, **options) -> nn.Module:
    """torchvision's ResNet with dropout before its classifier. [B, 3, H, W] -> [B, num_classes]."""
    model = getattr(need("torchvision.models", "vision"), f"resnet{depth}")(weights=None, **options)
    model.fc = Classifier(model.fc.in_features, num_classes, dropout)
    if caffe:
        for stage in (model.layer2, model.layer3, model.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = stage[0].conv2.stride, stage[0].conv1.stride
    return model
