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


@pytest.mark.parametrize(("name", "head"), [("resnet18", "covariance"), ("c2d_resnet18", "bilinear")])
def test_fold_folds_the_norm_of_a_head(name, head):
    model = cgnl.create_model(name, head=head, reduced=16, num_classes=4)
    x = torch.randn(2, 3, *(() if name == "resnet18" else (8,)), 64, 80)
    model(x)  # the norms have seen something
    folded = fold(model)
    assert norms(folded) == []
    ours, theirs = (m.get_submodule("avgpool") for m in (folded, model))
    assert isinstance(ours, cgnl.SecondOrderPool)
    assert isinstance(theirs, cgnl.SecondOrderPool)
    scale = theirs.norm.weight / (theirs.norm.running_var + theirs.norm.eps).sqrt()
    expected = theirs.get_parameter("reduce.weight") * scale.view(-1, *[1] * theirs.ndim, 1)
    torch.testing.assert_close(ours.get_parameter("reduce.weight"), expected)
    torch.testing.assert_close(ours.get_parameter("reduce.bias"), theirs.norm.bias - scale * theirs.norm.running_mean)
    with torch.no_grad():
        assert relative_error(folded(x), model.eval()(x)) < 1e-4
        assert folded(x[:0]).shape == (0, 4)


def test_fold_leaves_the_norm_of_a_compact_head():
    model, x = cgnl.create_model("resnet18", head="compact", reduced=16, num_classes=4), torch.randn(2, 3, 40, 48)
    model(x)
    folded = fold(model)
    assert isinstance(folded.get_submodule("avgpool.norm"), nn.BatchNorm1d)
    with torch.no_grad():
        assert relative_error(folded(x), model.eval()(x)) < 1e-4


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
