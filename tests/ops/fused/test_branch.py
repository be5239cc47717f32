import pytest
import torch

from cgnl.ops.fused import branch
from cgnl.ops.fused.launch import Launch
from tests.conftest import relative_error
from tests.ops.fused.helpers import FORMS, SIZES, Form, Sizes, draw, make_case, project, response


class Inputs:
    """Of one call, and the z that it should see."""

    def __init__(self, sizes: Sizes, form: Form, dtype: torch.dtype):
        self.form = form
        inner = draw(sizes.batch, sizes.positions, 3 * sizes.inner, dtype=dtype)
        self.theta = inner[..., : sizes.inner]  # lies between phi and g, as in the backward pass
        self.z_weight = draw(sizes.channels, sizes.width, dtype=dtype, scale=sizes.width**-0.5)
        self.c = draw(sizes.batch, sizes.groups, form.terms)
        self.rows = draw(sizes.batch, sizes.positions, sizes.channels, dtype=dtype)
        self.z = project(response(self.theta.double(), self.c.double(), form), self.z_weight.double())

    def call(self, function, *before, after=()):
        return function(*before, self.theta, self.z_weight, self.c, *after, self.form.first, self.form.gamma)


def check_moments(sizes, form, precision):
    inputs = Inputs(sizes, form, precision.dtype)
    mean, squares = inputs.call(branch.fused_moments)
    z = inputs.z
    assert float((mean - z.mean(1)).norm()) <= precision.tolerance * float(z.abs().mean(1).norm())
    expected = (z - z.mean(1, keepdim=True)).square().sum(1)
    assert float((squares - expected).norm()) <= 4 * precision.tolerance * float(z.square().sum(1).norm())


def check_apply(sizes, form, precision):
    inputs = Inputs(sizes, form, precision.dtype)
    scale, shift = draw(sizes.batch, sizes.channels), draw(sizes.batch, sizes.channels)
    found = inputs.call(branch.fused_apply, inputs.rows, after=(torch.stack((scale, shift)),))
    expected = inputs.rows.double() + inputs.z * scale.double()[:, None] + shift.double()[:, None]
    assert found.dtype == precision.dtype
    assert relative_error(found, expected) < precision.tolerance


def check_gradient_sums(sizes, form, precision):
    inputs = Inputs(sizes, form, precision.dtype)
    means, grad = draw(sizes.batch, sizes.channels), inputs.rows.double()
    plain, along = inputs.call(branch.fused_gradient_sums, inputs.rows, after=(means,))
    assert float((plain - grad.sum(1)).norm()) < 2e-6 * float(grad.abs().sum(1).norm())
    terms = grad * (inputs.z - means.double()[:, None])
    assert float((along - terms.sum(1)).norm()) <= precision.tolerance * float(terms.abs().sum(1).norm())


CHECKS = {"moments": check_moments, "apply": check_apply, "gradient_sums": check_gradient_sums}
each = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@each
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_branch_with_every_form(check, form, precision):
    check(SIZES["groups-left-over"], form, precision)


@each
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_branch_of_any_size(check, sizes, two_precisions):
    check(sizes, FORMS["from-0"], two_precisions)


@each
@pytest.mark.usefixtures("processors")
@pytest.mark.parametrize("positions", [64, 300])
def test_branch_shares_positions_out(check, positions, two_precisions):
    check(Sizes(2, positions, 2, 16, 32), FORMS["from-2"], two_precisions)


def test_moments_do_not_cancel():
    """A mean of a thousand standard deviations: sums of squares less the square of the sum would be noise."""
    theta = draw(1, 300, 16, scale=1e-3) + 1
    z_weight, c = draw(16, 16).abs(), torch.ones(1, 1, 1, device=theta.device)
    z = project(theta.double().unsqueeze(2), z_weight.double())
    _, squares = branch.fused_moments(theta, z_weight, c, 1, 0.0)
    assert relative_error(squares, (z - z.mean(1, keepdim=True)).square().sum(1)) < 1e-3


def test_apply_keeps_a_small_response_beside_a_large_constant():
    """exp(-gamma x^2) - 1 for a small gamma: what is left of c_0 when c_0 itself is taken away."""
    theta, z_weight, c = draw(2, 9, 16), draw(16, 16), 1e4 * draw(2, 1, 1)
    affine = torch.stack((theta.new_ones(2, 16), theta.new_zeros(2, 16)))
    found = branch.fused_apply(torch.zeros_like(theta), theta, z_weight, c, affine, 0, 1e-4)
    y = c.double() * torch.expm1(-1e-4 * theta.double().square())
    assert relative_error(found, project(y.unsqueeze(2), z_weight.double())) < 2e-6 * (1 if theta.is_cpu else 1000)


def test_apply_holds_a_response_that_float16_cannot():
    theta, z_weight = draw(1, 9, 16, dtype=torch.float16, scale=10), draw(16, 16, dtype=torch.float16)
    c = 1e4 * draw(1, 1, 1)
    affine = torch.tensor([1e-7, 0.0], device=theta.device)[:, None, None].expand(2, 1, 16).contiguous()
    found = branch.fused_apply(torch.zeros_like(theta), theta, z_weight, c, affine, 2, 0.0)
    z = project((c.double() * theta.double().square()).unsqueeze(2), z_weight.double())
    assert float(z.abs().max()) > 65504
    assert relative_error(found, 1e-7 * z) < 2**-9


@pytest.mark.parametrize("last", [1, 5, 20], ids="last part has {}".format)
def test_merge_gives_the_moments_of_the_whole(last):
    z = 100 + draw(3, 40 + last, 300).double()
    parts = z.split((20, 20, last), 1)
    means = torch.stack([p.mean(1) for p in parts], 1)  # [B, parts, C]
    squares = torch.stack([p.var(1, correction=0) * p.shape[1] for p in parts], 1)
    mean, square = merged = torch.empty(2, 3, 300, device=z.device)
    merge = Launch(branch.merge_moments_fwd_kernel, (2, 3), 4, 1, 40 + last, 20, 300, 3, 256)
    merge(torch.stack((means, squares)).float(), merged)
    assert relative_error(mean, z.mean(1)) < 1e-6
    assert relative_error(square, z.var(1, correction=0) * z.shape[1]) < 1e-5


@pytest.mark.parametrize("positions", [1, 64, 65, 1000])
@pytest.mark.parametrize("count", [1, 7, 132])
def test_choose_grid_covers_every_position_and_wastes_no_program(positions, count):
    sizes = SIZES["groups-left-over"]._replace(batch=2, positions=positions)
    case = make_case(sizes, torch.float16, "tf32x3", count)
    cut = branch.choose_cut(case)
    (blocks, parts, batch), steps = branch.choose_grid(cut, case, 3)
    assert batch == 2
    assert parts * steps * cut.rows >= positions > (parts - 1) * steps * cut.rows
    assert blocks * cut.together >= sizes.groups > (blocks - 1) * cut.together
