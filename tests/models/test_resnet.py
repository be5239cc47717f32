"""torchvision's ResNets with another classifier, and the Caffe variant."""

from typing import Any

import pytest
import torch

from cgnl.models.resnet import resnet


@pytest.mark.parametrize("caffe", [False, True])
def test_stride_is_on_the_first_or_the_second_convolution(caffe):
    model = resnet(50, 3, 0.5, caffe)
    for stage in ("layer2", "layer3", "layer4"):
        strides = [model.get_submodule(f"{stage}.0.conv{i}").stride for i in (1, 2)]
        assert strides == [(2, 2), (1, 1)] if caffe else strides == [(1, 1), (2, 2)]


def test_classifier_has_dropout_in_training_alone():
    model = resnet(18, 3, 0.9)
    fc: Any = model.get_submodule("fc")
    x = torch.randn(4, 512)
    assert not torch.equal(fc(x), fc(x))
    fc.eval()
    assert torch.equal(fc(x), torch.nn.functional.linear(x, fc.weight, fc.bias))
    with pytest.raises(ValueError, match=r"got dropout = 1\.0"):
        resnet(18, 3, 1.0)
