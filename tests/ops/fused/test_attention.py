import pytest
import torch

from cgnl.ops.fused import attention
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, FORMS, SIZES, draw, grouped, powers

ALPHAS = [1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01]


def check(sizes, form, dtype, tolerance):
    x = draw(sizes.batch, sizes.positions, sizes.channels, dtype=dtype)
    phi, g = (draw(sizes.inner, sizes.channels, dtype=dtype, scale=sizes.channels**-0.5) for _ in range(2))
    alphas = ALPHAS[: form.terms]
    found = attention.fused_coefficients(x, torch.stack((phi, g)), sizes.groups, form.first, alphas, form.gamma)
    phi_, g_ = (grouped(x.double() @ w.double().t(), sizes.groups) for w in (phi, g))
    sums = torch.einsum("bngik,bngi->bgk", powers(phi_, form), g_)
    truth = sums * torch.tensor(alphas, device=x.device).double() ** 2
    assert found.dtype == torch.float32
    # Sums of random signs are small beside their terms, which is what rounding is measured by.
    size = torch.einsum("bngik,bngi->bgk", powers(phi_, form).abs(), g_.abs()) * (truth / sums)
    assert float((found - truth).norm() / size.norm()) < tolerance


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_coefficients_are_weighted_power_sums(form, precision):
    check(SIZES["beyond-a-power-of-two"], form, precision.dtype, precision.tolerance)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_coefficients_of_any_size(sizes, two_precisions):
    check(sizes, FORMS["from-0"], two_precisions.dtype, two_precisions.tolerance)


@pytest.mark.usefixtures("eight_processors", "small_tiles")
def test_coefficients_are_shared_out_over_processors():
    """7 x 3 tiles for 8 programs."""
    check(SIZES["groups-left-over"]._replace(positions=200), FORMS["from-2"], torch.float16, 2**-10)


def test_coefficients_in_float32_are_of_some_samples_at_a_time(monkeypatch):
    sizes = SIZES["groups-left-over"]
    monkeypatch.setattr(attention, "WRITTEN", 1)
    check(sizes._replace(batch=3), FORMS["from-2"], torch.float32, 2e-6)


def test_coefficients_keep_weights_whose_square_float32_cannot_hold():
    x, weight = torch.full((1, 1, 16), 1e3, device=DEVICE), torch.eye(16, device=DEVICE).expand(2, 16, 16).contiguous()
    found = attention.fused_coefficients(x, weight, 2, 1, [1e-23], 0.0)
    assert (
        relative_error(found, torch.full((1, 2, 1), 8e6 * 1e-46, device=DEVICE)) < 1e-2
    )  # a float32 with few bits left
