import pytest
import torch

from cgnl.ops.fused import backward
from tests.conftest import relative_error
from tests.ops.fused.helpers import FORMS, SIZES, Form, Sizes, draw, grouped, make_case, powers, project, response

NARROW = {
    "one-position": SIZES["one-position"],
    "several-groups-a-tile": SIZES["several-groups-a-tile"],
    "groups-left-over": SIZES["groups-left-over"],
    "beyond-a-power-of-two": SIZES["beyond-a-power-of-two"],
    "as-large-as-can-be": Sizes(1, 9, 1, 128, 128),
}
WIDE = {
    "by-inner-channels": SIZES["more-inner-than-outer"],
    "by-channels": Sizes(2, 9, 1, 16, 320),
    "by-both": Sizes(2, 9, 1, 128, 136),
    "two-groups": Sizes(1, 20, 2, 136, 40),
}


def check_branch(sizes: Sizes, form: Form, precision, residual: bool = True) -> None:
    dtype = precision.dtype
    theta = draw(sizes.batch, sizes.positions, sizes.inner, dtype=dtype, scale=0.3)  # whose gradient float16 holds
    z_weight = draw(sizes.channels, sizes.width, dtype=dtype, scale=sizes.width**-0.5)
    c, factors = draw(sizes.batch, sizes.groups, form.terms), draw(sizes.batch, 3, sizes.channels)
    grad = draw(sizes.batch, sizes.positions, sizes.channels, dtype=dtype)

    exact = [t.double().requires_grad_() for t in (theta, z_weight, c)]
    z = project(response(exact[0], exact[2], form), exact[1])
    a, u, v = factors.double().unsqueeze(2).unbind(1)
    wanted = torch.autograd.grad(z, exact, (a * grad.double() + u + v * z).detach(), allow_unused=True)

    # theta is overwritten by its gradient; what lies beside it must be neither read nor written.
    space = torch.full((*theta.shape[:2], 3 * sizes.inner), torch.nan, dtype=dtype, device=theta.device)
    mine = space[..., : sizes.inner]
    mine.copy_(theta)
    grad_x = torch.full_like(grad, torch.nan) if residual else None
    grad_z, grad_c = backward.branch_backward(grad, mine, z_weight, c, factors, mine, grad_x, form.first, form.gamma)
    assert space[..., sizes.inner :].isnan().all()
    assert relative_error(mine, wanted[0]) < 2 * precision.tolerance
    assert grad_z.dtype == torch.float32
    assert relative_error(grad_z, wanted[1]) < 2 * precision.tolerance
    if grad_x is not None:
        assert torch.equal(grad_x, grad)
    if form == FORMS["dot"]:
        assert grad_c is None
    else:
        assert grad_c is not None
        size = torch.einsum("bngik->bgk", (powers(grouped(theta.double(), sizes.groups), form)).square()).sqrt()
        assert float((grad_c - wanted[2]).norm()) < 4 * precision.tolerance * float(wanted[2].norm() + size.norm())


@pytest.mark.parametrize("sizes", [SIZES["groups-left-over"], WIDE["two-groups"]], ids=["narrow", "wide"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_branch_backward_is_the_gradient(sizes, form, precision):
    check_branch(sizes, form, precision)


@pytest.mark.parametrize("sizes", [*NARROW.values(), *WIDE.values()], ids=[*NARROW, *WIDE])
def test_branch_backward_of_any_size(sizes, two_precisions):
    check_branch(sizes, FORMS["envelope"], two_precisions)


@pytest.mark.usefixtures("eight_processors")
@pytest.mark.parametrize("form", ["dot", "from-0"])
@pytest.mark.parametrize("sizes", [Sizes(2, 200, 2, 16, 32), Sizes(1, 70, 1, 136, 16)], ids=["narrow", "wide"])
def test_branch_backward_shares_positions_out(sizes, form, two_precisions):
    check_branch(sizes, FORMS[form], two_precisions)


@pytest.mark.parametrize("sizes", [SIZES["groups-left-over"], WIDE["by-both"]], ids=["narrow", "wide"])
def test_branch_backward_without_a_residual(sizes, two_precisions):
    check_branch(sizes, FORMS["from-2"], two_precisions, residual=False)


@pytest.mark.parametrize("sizes", [Sizes(1, 9, 1, 16, 32), Sizes(1, 9, 1, 136, 32)], ids=["narrow", "wide"])
def test_branch_backward_holds_a_response_that_float16_cannot(sizes):
    theta = draw(1, sizes.positions, sizes.inner, dtype=torch.float16, scale=10)
    z_weight = draw(sizes.channels, sizes.width, dtype=torch.float16)
    c, factors = torch.full((1, 1, 1), 1e4), torch.zeros(1, 3, sizes.channels)
    c, factors = c.to(theta.device), factors.to(theta.device)
    factors[:, 0] = 1e-3
    grad = draw(1, sizes.positions, sizes.channels, dtype=torch.float16)
    y = 1e4 * theta.double().square()
    assert float(y.max()) > 65504
    dz = 1e-3 * grad.double()
    grad_z, _ = backward.branch_backward(grad, theta, z_weight, c, factors, torch.empty_like(theta), None, 2, 0.0)
    assert relative_error(grad_z, torch.einsum("bno,bni->oi", dz, y)) < 2**-8


@pytest.mark.parametrize(("sizes", "expected"), [
    *((s, True) for s in NARROW.values()), *((s, False) for s in WIDE.values()),
], ids=[*NARROW, *WIDE])  # fmt: skip
def test_is_narrow(sizes, expected):
    assert backward.is_narrow(make_case(sizes, torch.float16, "tf32x3")) == expected


@pytest.mark.parametrize(("precision", "expected"), [("tf32x3", False), ("ieee", True)])
def test_is_narrow_leaves_room_for_operands_in_three_parts(precision, expected):
    assert backward.is_narrow(make_case(Sizes(1, 9, 2, 64, 128), torch.float32, precision)) == expected


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("squares", [True, False], ids=["squares", "no-squares"])
def test_factors_backward_is_the_gradient(form, squares, two_precisions):
    sizes, dtype = SIZES["beyond-a-power-of-two"], two_precisions.dtype
    phi, g = (draw(sizes.batch, sizes.positions, sizes.inner, dtype=dtype, scale=0.5) for _ in range(2))
    grad_sums, grad_squares = draw(sizes.batch, sizes.groups, form.terms), draw(sizes.batch, sizes.groups)
    exact = [t.double().requires_grad_() for t in (phi, g)]
    phi_, g_ = (grouped(t, sizes.groups) for t in exact)
    loss = (torch.einsum("bngik,bngi->bgk", powers(phi_, form), g_) * grad_sums.double()).sum()
    if squares:
        loss = loss + (phi_.square().sum((1, 3)) * grad_squares.double()).sum()
    wanted = torch.autograd.grad(loss, exact, allow_unused=True)
    space = torch.full((*phi.shape[:2], 3 * sizes.inner), torch.nan, dtype=dtype, device=phi.device)
    space[..., sizes.inner :] = torch.cat((phi, g), 2)
    _, mine, weight = space.split(sizes.inner, 2)
    backward.factors_backward(mine, weight, grad_sums, grad_squares if squares else None, form.first, form.gamma)
    assert space[..., : sizes.inner].isnan().all()
    assert relative_error(weight, wanted[1]) < two_precisions.tolerance
    if wanted[0] is None or not wanted[0].any():  # the p = 0 term alone
        assert not mine.any()
    else:
        assert relative_error(mine, wanted[0]) < two_precisions.tolerance


@pytest.mark.parametrize("sizes", [Sizes(5, 1, 2, 8, 8), Sizes(2, 33, 3, 136, 8)], ids=["small", "large"])
def test_factors_backward_of_any_size(sizes):
    form = FORMS["dot"]
    phi, g = (draw(sizes.batch, sizes.positions, sizes.inner) for _ in range(2))
    grad_sums = draw(sizes.batch, sizes.groups, 1)
    each = grad_sums.double().repeat_interleave(sizes.width, 1).transpose(1, 2)  # [B, 1, I]
    wanted = each * g.double(), each * phi.double()
    backward.factors_backward(phi, g, grad_sums, None, form.first, form.gamma)
    assert relative_error(phi, wanted[0]) < 1e-6
    assert relative_error(g, wanted[1]) < 1e-6
