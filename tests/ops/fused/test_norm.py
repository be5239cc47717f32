"""The norm from moments of z, against torch's own norm of the whole of s z + constant in float64."""

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cgnl.ops.fused import norm as norms
from cgnl.ops.fused.launch import Series
from cgnl.ops.fused.norm import Norm
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, draw, expand_groups

pytestmark = pytest.mark.usefixtures("without_kernels_of_batch_norm")
BATCH, POSITIONS, CHANNELS, GROUPS, EPS = 3, 11, 16, 2, 1e-3
KINDS = ("fixed", "batch", "group")
SERIES = {"dot": (True, False), "constant": (False, True), "neither": (False, False)}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_series = pytest.mark.parametrize(("dot", "constant"), SERIES.values(), ids=SERIES)


class Truth(NamedTuple):
    """z and what else is differentiated, in float64."""

    z: Tensor
    c: Tensor
    """The dot kernel's coefficient, or the p = 0 one. [B, G]"""
    row_sums: Tensor
    weight: Tensor
    bias: Tensor
    fixed: tuple[Tensor, Tensor]

    def output(self, kind: str, dot: bool, constant: bool) -> Tensor:
        s = expand_groups(self.c, CHANNELS)[:, None]  # [B, 1, C]
        z = (s * self.z if dot else self.z) + (s * self.row_sums if constant else 0)
        rows = z.transpose(1, 2)  # [B, C, N]
        if kind == "group":
            return F.group_norm(rows, GROUPS, self.weight, self.bias, EPS).transpose(1, 2)
        mean, variance = (t.clone() for t in self.fixed)
        return F.batch_norm(rows, mean, variance, self.weight, self.bias, kind == "batch", eps=EPS).transpose(1, 2)


def make() -> Truth:
    tensors = draw(BATCH, POSITIONS, CHANNELS), draw(BATCH, GROUPS), *(draw(CHANNELS) for _ in range(3))
    z, c, row_sums, weight, bias = (t.double().requires_grad_() for t in tensors)
    return Truth(z, c, row_sums, weight, bias, (draw(CHANNELS).double(), draw(CHANNELS).double().square() + 0.5))


def moments_of(z: Tensor) -> Tensor:
    return torch.stack((z.mean(1), (z - z.mean(1, keepdim=True)).square().sum(1))).detach().float()


def make_series(dot: bool, constant: bool) -> Series:
    return Series(GROUPS, 0 if constant else 1, (1.0,), 0.0, 0.0, dot)


def forward(truth: Truth, kind: Any, dot: bool, constant: bool) -> norms.Standard:
    c, row_sums, weight, bias = (t.detach().float() for t in truth[1:5])
    return norms.standardise(
        Norm(kind, EPS), truth.fixed, None if kind == "fixed" else moments_of(truth.z), c.unsqueeze(2),
        row_sums if constant else None, weight, bias, POSITIONS, make_series(dot, constant),
    )  # fmt: skip


@each_kind
@each_series
def test_standardise_is_the_norm(kind, dot, constant):
    truth = make()
    found = forward(truth, kind, dot, constant)
    scale, shift = found.affine.double().unsqueeze(2)
    assert relative_error(truth.z * scale + shift, truth.output(kind, dot, constant)) < 1e-6


@each_series
def test_standardise_finds_the_statistics_of_the_batch(dot, constant):
    truth = make()
    found = forward(truth, "batch", dot, constant)
    mean, variance = (torch.zeros(CHANNELS, dtype=torch.float64, device=DEVICE) for _ in range(2))
    s = expand_groups(truth.c, CHANNELS)[:, None]
    z = (s * truth.z if dot else truth.z) + (s * truth.row_sums if constant else 0)
    F.batch_norm(z.transpose(1, 2), mean, variance, training=True, momentum=1.0)
    assert relative_error(found.mean, mean) < 1e-6
    assert relative_error(found.variance, variance) < 1e-6


@each_kind
@each_series
def test_backward_is_the_gradient(kind, dot, constant):
    truth, grad = make(), draw(BATCH, POSITIONS, CHANNELS)
    exact = torch.autograd.grad(truth.output(kind, dot, constant), truth[:5], grad.double(), allow_unused=True)
    standard = forward(truth, kind, dot, constant)
    z, c, row_sums, weight, _ = (t.detach() for t in truth[:5])
    means = torch.zeros_like(z.mean(1)) if kind == "fixed" else z.mean(1)
    sums = torch.stack((grad.double().sum(1), (grad.double() * (z - means[:, None])).sum(1))).float()
    found = norms.standardise_backward(
        Norm(kind, EPS), standard.number, sums, None if kind == "fixed" else moments_of(z), c.float().unsqueeze(2),
        row_sums.float() if constant else None, weight.float(), standard.p, standard.q, POSITIONS,
        make_series(dot, constant),
    )  # fmt: skip
    a, u, v = found.factors.double().unsqueeze(2).unbind(1)
    assert relative_error(a * grad.double() + u + v * z, exact[0]) < 2e-6
    if dot or constant:
        size = exact[1].norm() + (grad.double() * z).norm()  # a group norm leaves next to nothing of the dot kernel's
        difference = found.coefficient.double().unflatten(1, (GROUPS, -1)).sum(2) - exact[1]
        assert float(difference.norm() / size) < 2e-6
    if constant:
        assert relative_error(found.row_sums, exact[2]) < 5e-6
    assert relative_error(found.weight, exact[3]) < 2e-6
    assert relative_error(found.bias, exact[4]) < 2e-6
