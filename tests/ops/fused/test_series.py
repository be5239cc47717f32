"""The Taylor series of a tile, against the polynomial in float64."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from cgnl.ops.fused.series import slope, value
from tests.conftest import INTERPRETED, relative_error
from tests.ops.fused.helpers import DEVICE, FORMS, powers

SIZE = 64


@(InterpretedFunction if INTERPRETED else triton.jit)
def series_kernel(x_ptr, c_ptr, value_ptr, slope_ptr, FIRST: tl.constexpr, TERMS: tl.constexpr, GAMMA: tl.constexpr):
    place = tl.arange(0, 64)
    ok = place < 64
    x = tl.load(x_ptr + place)
    tl.store(value_ptr + place, value(x, c_ptr + place * 0, ok, FIRST, TERMS, GAMMA))
    tl.store(slope_ptr + place, slope(x, c_ptr + place * 0, ok, FIRST, TERMS, GAMMA))


@pytest.mark.parametrize("name", FORMS)
def test_value_and_slope_are_those_of_the_polynomial(name):
    form = FORMS[name]
    x = torch.linspace(-2, 2, SIZE, device=DEVICE)
    c = torch.linspace(0.5, 1.5, form.terms, device=DEVICE)
    found = torch.full((2, SIZE), torch.nan, device=DEVICE)
    kernel: Any = series_kernel
    kernel[(1,)](x, c, found[0], found[1], form.first, form.terms, form.gamma)
    exact = x.double().requires_grad_()
    whole = (powers(exact, form) * c.double()).sum(-1)
    (derivative,) = torch.autograd.grad(whole.sum(), exact)
    less = c[0].double() if form.first == 0 else 0.0
    assert relative_error(found[0].double() + less, whole.detach()) < 1e-6
    if form.first + form.terms > 1 or form.gamma:
        assert relative_error(found[1], derivative) < 1e-6
    else:
        assert not found[1].any()
