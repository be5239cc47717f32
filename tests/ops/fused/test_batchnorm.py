"""The kernels of batch norm against ``norm``, which says the same in tensor operations, in float64."""

import pytest
import torch

from cgnl.ops.fused import batchnorm
from cgnl.ops.fused import norm as norms
from cgnl.ops.fused.launch import Series
from cgnl.ops.fused.norm import Norm
from tests.conftest import relative_error
from tests.ops.fused.helpers import draw, expand_groups

pytestmark = pytest.mark.usefixtures("without_kernels_of_batch_norm")
EPS = 1e-3
CASES = {
    # batch, positions, groups, channels, first, terms
    "dot": (4, 9, 2, 64, 1, 1),
    "constant-term": (4, 9, 2, 64, 0, 3),
    "first-power-2": (4, 9, 2, 64, 2, 2),
    "one-sample": (1, 9, 2, 48, 0, 2),
    "channels-left-over": (5, 7, 1, 40, 1, 1),
    "as-many-samples-as-it-holds": (batchnorm.MOST, 3, 2, 16, 0, 2),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def make(case):
    """Arguments of the kernel, and of ``norms.standardise`` in float64."""
    batch, positions, groups, channels, first, terms = case
    moments = torch.stack((draw(batch, channels), draw(batch, channels).square() * positions))
    c, row_sums, weight, bias = draw(batch, groups, terms), draw(channels), draw(channels), draw(channels)
    dot = (first, terms) == (1, 1)
    mine = (moments, c, row_sums, weight, bias, positions, EPS, first, dot)
    series, constant = Series(groups, first, (1.0,) * terms, 0.0, 0.0, dot), row_sums.double() if first == 0 else None
    plain = (moments.double(), c.double(), constant, weight.double(), bias.double(), positions, series)
    return mine, (Norm("batch", EPS), None, *plain)


@each_case
def test_standardise_is_that_of_norm(case):
    mine, plain = make(case)
    expected = norms.standardise(*plain)
    standard, (mean, variance, p) = batchnorm.fused_batch_norm(*mine)
    parts = {"affine": standard[:2], "q": standard[2], "mean": mean, "variance": variance, "p": p}
    for name, found in parts.items():
        assert relative_error(found, getattr(expected, name).expand(found.shape)) < 2e-6, name


@each_case
def test_backward_is_that_of_norm(case):
    (moments, c, row_sums, weight, _, positions, _, first, dot), plain = make(case)
    batch, _, _, channels, *_ = case
    standard, sums = norms.standardise(*plain), draw(2, batch, channels)
    leading = expand_groups(c[..., 0], channels).double()
    expected = norms.standardise_backward(
        plain[0], standard.number, sums.double(), *plain[2:6], standard.p, standard.q, positions, plain[-1]
    )
    p, q = torch.zeros(3, channels).to(sums), torch.zeros(3, batch, channels).to(sums)
    p[2], q[2] = standard.p, standard.q
    factors, extra, grads = batchnorm.fused_batch_norm_backward(
        sums, moments, c, row_sums, weight, q, p, positions, first, dot
    )
    assert relative_error(factors, expected.factors) < 2e-6
    assert relative_error(grads[0], expected.weight) < 2e-6
    assert relative_error(grads[1], expected.bias) < 2e-6
    # What follows are differences of larger numbers.
    a, u, v = expected.factors.abs().unbind(1)
    means, squares = moments.double().abs()
    if dot:
        assert (
            float((extra - expected.coefficient).norm() / ((a * sums[1].abs() + v * squares) / leading).norm()) < 5e-6
        )
    if first == 0:
        size = a * sums[0].abs() + positions * (u + v * means)
        assert float((extra - expected.coefficient).norm() / (size * row_sums.double()).norm()) < 5e-6
        assert float((grads[2] - expected.row_sums).norm() / (size * leading).norm()) < 5e-6


def test_standardise_keeps_the_rest_beside_a_large_constant():
    """c_0 is a million times the rest, and nearly the same in every sample."""
    batch, channels = 4, 32
    moments = torch.stack((draw(batch, channels), draw(batch, channels).square() * 9))
    c = torch.full((batch, 1, 1), 1e6, device=moments.device)
    one = moments.new_ones(channels)
    (scale, shift, _), _ = batchnorm.fused_batch_norm(moments, c, one, one, one, 9, EPS, 0, False)
    (plain, without, _), _ = batchnorm.fused_batch_norm(moments, 0 * c, one, one, one, 9, EPS, 0, False)
    assert relative_error(scale, plain) < 1e-6
    assert relative_error(shift, without) < 1e-6
