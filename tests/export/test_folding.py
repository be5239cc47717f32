import pytest
import torch
from torch import nn

import cgnl
from cgnl.export import fold
from tests.conftest import relative_error
from tests.export.conftest import Small, stir

NORMS = nn.BatchNorm2d | nn.BatchNorm3d


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, NORMS)]


@pytest.mark.parametrize("name", ["resnet18", "i3d_resnet50"])
def test_fold_gives_the_same(name):
    model = cgnl.create_model(name, block="cgnl", num_classes=4, zero_init=False)
    for module in model.modules():
        if isinstance(module, NORMS):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    x = torch.randn(2, 3, *(() if name.startswith("resnet") else (8,)), 40, 48)
    folded = fold(model)
    assert norms(folded) == [f"{cgnl.placement(name)[0]}_cgnl.norm"]
    assert model.training
    with torch.no_grad():
        assert relative_error(folded(x), model.eval()(x)) < 1e-5


class Twice(Small):
    """Its convolution is used twice, once without the norm."""

    def forward(self, x):
        return self.fc((self.norm1(self.conv1(x)) + self.conv1(x)).flatten(2).mean(2))


def test_fold_leaves_alone_what_is_used_elsewhere_too():
    model, x = stir(Twice(4, 2)), torch.randn(2, 3, 16, 16)
    folded = fold(model)
    assert norms(folded) == ["norm1"]
    assert torch.equal(folded(x), model(x))


class ByValue(Small):
    """Its path depends on its input."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


def test_fold_refuses_what_it_cannot_follow():
    with pytest.raises(ValueError, match="the order of the layers cannot be followed"):
        fold(ByValue(4, 2))
