import pytest
import torch
from torch import Tensor, nn

import cgnl
from cgnl.explain import grad_cam
from tests.conftest import relative_error


class Net(nn.Module):
    """[B, 3, H, W] -> [B, 4]."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2, stride=2)
        self.block = cgnl.CGNL(8, 4, groups=2)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.block(self.conv(x)).relu().mean((2, 3))))


@pytest.mark.parametrize("target", [None, 1])
@pytest.mark.parametrize("layer", [None, "conv"])
def test_grad_cam_is_the_weighted_sum_of_its_paper(target, layer):
    model, x = Net().train(), torch.randn(1, 3, 8, 6)
    nn.init.ones_(model.get_parameter("block.norm.weight"))
    with torch.no_grad():
        heat = grad_cam(model, x, target, layer)
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    kept = {}
    model.get_submodule(layer or "block").register_forward_hook(lambda _m, _i, out: kept.update(out=out))
    scores = model(x)
    score = scores[0, int(scores.argmax()) if target is None else target]
    (slope,) = torch.autograd.grad(score, kept["out"])
    truth = (slope.mean((2, 3), keepdim=True) * kept["out"]).sum(1)[0].relu()
    assert heat.shape == (4, 3)
    assert relative_error(heat, truth) < 1e-5


def test_grad_cam_needs_a_block_or_a_layer():
    with pytest.raises(ValueError, match="no NL or CGNL block"):
        grad_cam(nn.Conv2d(3, 2, 1), torch.zeros(1, 3, 4, 4))
