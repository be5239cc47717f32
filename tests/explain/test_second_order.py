"""Contributions of pairs are the gradient times the products, and their maps add up to them."""

import pytest
import torch
from torch import Tensor, nn

import cgnl
from cgnl.explain import grad_cam, pairs
from cgnl.heads import KINDS
from tests.conftest import EXACT, relative_error


class Net(nn.Module):
    """[B, 3, *positions] -> [B, 4]."""

    def __init__(self, kind: str, ndim: int = 2):
        super().__init__()
        self.conv = (nn.Conv2d if ndim == 2 else nn.Conv3d)(3, 8, 2, stride=2)
        self.head = cgnl.SecondOrderPool(8, 5, kind=kind, ndim=ndim)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(self.head.features, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.head(self.conv(x))))


@pytest.fixture(params=KINDS)
def net(request) -> Net:
    return Net(request.param).double().eval()


def draw() -> Tensor:
    return torch.randn(1, 3, 12, 10, dtype=torch.float64)


def compute_slope(net: Net, x: Tensor, target: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """d logit / d products, the products, and the maps that are multiplied."""
    maps = net.head.factors(net.conv(x))
    pooled = net.head.pool(*maps).detach().requires_grad_()
    logits = net.fc(net.head.vectorize(pooled))
    return torch.autograd.grad(logits[0, target], pooled)[0][0], pooled[0].detach(), maps


def test_maps_add_up_to_the_contribution_of_their_pair(net):
    found = pairs(net, draw(), target=2, count=15)
    total = found.maps.flatten(1).sum(1) if found.kind == "bilinear" else found.maps.flatten(1).mean(1)
    assert found.maps.shape[1:] == (6, 5)
    assert relative_error(total, torch.tensor(found.contributions, dtype=torch.float64)) < EXACT
    assert list(found.contributions) == sorted(found.contributions, reverse=True)


def test_pairs_are_all_of_the_gradient_times_the_products(net):
    x = draw()
    slope, pooled, maps = compute_slope(net, x, target=1)
    found = pairs(net, x, target=1, count=100)
    assert len(set(found.channels)) == len(found.channels) == net.head.features
    assert sum(found.contributions) == pytest.approx(float((slope * pooled).sum()), rel=1e-9)
    assert found.positive == pytest.approx(sum(s for s in found.contributions if s > 0), rel=1e-9)
    (i, j), shown = found.channels[0], found.maps[0]
    phi, g = (m[0].detach() for m in maps)
    if net.head.kind == "compact":
        truth = slope[i] * phi[i] * g[i]
    else:
        mean = phi.mean((1, 2), keepdim=True) if net.head.kind == "covariance" else 0.0
        centred = phi - mean
        truth = (slope[i, j] + slope[j, i] * (i != j)) * centred[i] * centred[j]
    assert relative_error(shown, truth) < EXACT


def test_the_predicted_class_is_asked_for_and_the_network_is_left_as_it_was(net):
    x = draw()
    net.train()
    found = pairs(net, x)
    assert net.training
    assert "pool" not in vars(net.head)
    with torch.no_grad():
        logits = net.eval()(x)
    assert found.target == int(logits.argmax())
    assert torch.equal(found.output, logits)
    assert len(found.channels) == 5
    assert all(p.grad is None for p in net.parameters())


def test_pairs_of_clips_have_frames():
    found = pairs(Net("covariance", ndim=3), torch.randn(1, 3, 4, 8, 6), count=2)
    assert found.maps.shape == (2, 2, 4, 3)


def test_names_and_arrays(net):
    found = pairs(net, draw(), count=3)
    i, j = found.channels[0]
    wanted = f"product {i}" if net.head.kind == "compact" else f"channel{'s' if i != j else ''} {i}"
    assert found.named[0].name.startswith(wanted)
    arrays = found.arrays()
    assert arrays["maps"].shape == (3, 6, 5)
    assert len(arrays["said"]) == len(arrays["channels"]) == 3
    assert net.head.kind in found.caption


def test_grad_cam_is_of_what_the_head_is_given(net):
    x = draw()
    given: list[Tensor] = []
    handle = net.conv.register_forward_hook(lambda _m, _i, y: given.append(y))
    net.zero_grad()
    logits = net(x)
    handle.remove()
    (slope,) = torch.autograd.grad(logits[0, 3], given[0])
    truth = (slope.mean((2, 3), keepdim=True) * given[0]).sum(1).relu()[0]
    assert relative_error(grad_cam(net, x, 3), truth) < 1e-5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": 4}, "target = 4.*4 classes"),
        ({"target": -1}, "target = -1"),
        ({"count": 0}, "count = 0"),
        ({"head": "haed"}, "haed.*head"),
    ],
)
def test_pairs_refuse_arguments(options, says):
    with pytest.raises(ValueError, match=says):
        pairs(Net("covariance"), torch.randn(1, 3, 8, 8), **options)


def test_pairs_need_a_second_order_head():
    with pytest.raises(ValueError, match="no second-order head"):
        pairs(nn.Conv2d(3, 4, 1), torch.randn(1, 3, 8, 8))
