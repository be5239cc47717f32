import pytest
import torch

from cgnl.ops.fused.output import fused_output, fused_wide_output
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, FORMS, SIZES, Sizes, draw, grouped, powers, project

EPS = 1e-5


def check(sizes, form, dtype, tolerance, normed=True, residual_dtype=None):
    x = draw(sizes.batch, sizes.positions, sizes.channels, dtype=dtype)
    residual = x if residual_dtype is None else draw(*x.shape, dtype=residual_dtype)
    theta = draw(sizes.inner, sizes.channels, dtype=dtype, scale=sizes.channels**-0.5)
    z_weight = draw(sizes.channels, sizes.width, dtype=dtype, scale=sizes.width**-0.5)
    row_sums = z_weight.sum(1, dtype=torch.float32) if form.first == 0 else None
    c = draw(sizes.batch, sizes.groups, form.terms)
    norm = [draw(sizes.channels), draw(sizes.channels).square() + 0.5, *(draw(sizes.channels) for _ in range(2))]
    found = fused_output(x, residual, theta, z_weight, row_sums, c, norm if normed else [], EPS, form.first, form.gamma)
    y = torch.einsum(
        "bngik,bgk->bngi", powers(grouped(x.double() @ theta.double().t(), sizes.groups), form), c.double()
    )
    z = project(y, z_weight.double())
    if normed:
        mean, variance, weight, bias = (t.double() for t in norm)
        z = (z - mean) / (variance + EPS).sqrt() * weight + bias
    assert found.dtype == residual.dtype
    assert relative_error(found, residual.double() + z) < tolerance


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_output_is_the_norm_of_the_projected_response(form, precision):
    check(SIZES["beyond-a-power-of-two"]._replace(positions=9), form, precision.dtype, precision.tolerance)


@pytest.mark.parametrize("name", ["one-position", "several-groups-a-tile", "groups-left-over", "wide"])
def test_output_of_any_size(name, two_precisions):
    sizes = {**SIZES, "wide": SIZES["one-wide-group"]._replace(width=128)}[name]
    check(sizes, FORMS["envelope"], two_precisions.dtype, two_precisions.tolerance)


def test_output_without_a_norm(two_precisions):
    check(SIZES["groups-left-over"], FORMS["from-0"], two_precisions.dtype, two_precisions.tolerance, normed=False)


def test_output_does_not_round_a_residual_of_its_own():
    sizes, form = SIZES["groups-left-over"], FORMS["dot"]
    x, theta = draw(1, 7, sizes.channels, dtype=torch.float16), draw(sizes.inner, sizes.channels, dtype=torch.float16)
    residual, z_weight = draw(*x.shape), torch.zeros(sizes.channels, sizes.width, dtype=torch.float16).to(x.device)
    found = fused_output(x, residual, theta, z_weight, None, draw(1, sizes.groups, 1), [], 0.0, form.first, form.gamma)
    assert torch.equal(found, residual)


@pytest.mark.parametrize("normed", [True, False], ids=["norm", "no-norm"])
def test_output_of_a_new_block_is_its_input_to_the_sign_of_zero(normed):
    sizes, form = SIZES["groups-left-over"], FORMS["dot"]
    x = draw(1, 7, sizes.channels)
    x[:, ::2] = x[:, ::2] * 0.0
    assert x.signbit()[:, ::2].any()
    theta, z_weight = draw(sizes.inner, sizes.channels), draw(sizes.channels, sizes.width) * (1.0 if normed else 0.0)
    zero, one = torch.zeros(sizes.channels, device=x.device), torch.ones(sizes.channels, device=x.device)
    norm = [zero, one, zero, zero] if normed else []
    found = fused_output(x, x, theta, z_weight, None, draw(1, sizes.groups, 1), norm, EPS, form.first, form.gamma)
    assert torch.equal(found.view(torch.int32), x.view(torch.int32))


@pytest.mark.parametrize("sizes", [Sizes(2, 9, 1, 136, 256), Sizes(2, 9, 2, 136, 256), Sizes(2, 9, 1, 72, 256)],
                         ids=["one-group", "two-groups", "few-inner-channels"])  # fmt: skip
@pytest.mark.parametrize("normed", [True, False], ids=["norm", "no-norm"])
def test_wide_output_is_the_norm_of_s_times_the_projection(sizes, normed, two_precisions):
    dtype = two_precisions.dtype
    x, residual = (draw(sizes.batch, sizes.positions, sizes.channels, dtype=dtype) for _ in range(2))
    theta = draw(sizes.inner, sizes.channels, dtype=dtype, scale=sizes.channels**-0.5)
    z_weight = draw(sizes.channels, sizes.width, dtype=dtype, scale=sizes.width**-0.5)
    c, (mean, weight, bias) = draw(sizes.batch, sizes.groups, 1), draw(3, sizes.channels)
    variance = draw(sizes.channels).square() + 0.5
    found = fused_wide_output(x, residual, theta, z_weight, c, [mean, variance, weight, bias] if normed else [], EPS)
    y = grouped(x.double() @ theta.double().t(), sizes.groups) * c.double().unsqueeze(1)
    z = project(y, z_weight.double())
    if normed:
        z = (z - mean.double()) / (variance.double() + EPS).sqrt() * weight.double() + bias.double()
    assert relative_error(found, residual.double() + z) < two_precisions.tolerance


def test_wide_output_bears_weights_whose_product_float16_cannot_hold():
    sizes = Sizes(1, 9, 1, 136, 256)
    x, residual = draw(1, 9, 256, dtype=torch.float16), torch.zeros(1, 9, 256, device=DEVICE)
    theta, z_weight = (1e-5 * draw(*shape) for shape in ((sizes.inner, 256), (256, sizes.width)))
    found = fused_wide_output(x, residual, theta.half(), z_weight.half(), torch.ones(1, 1, 1, device=DEVICE), [], EPS)
    truth = x.double() @ theta.half().double().t() @ z_weight.half().double().t()
    assert relative_error(found, truth) < 2**-9
