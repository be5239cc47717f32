"""Tiles hold the same numbers whether the hardware copies them or kernels read them through pointers."""

import pytest
import torch

from cgnl.ops.fused import attention, backward, branch, output
from tests.ops.fused.conftest import set_hardware
from tests.ops.fused.helpers import SIZES, draw


def coefficients(sizes, dtype):
    x, weight = draw(2, sizes.positions, sizes.channels, dtype=dtype), draw(2, sizes.inner, sizes.channels, dtype=dtype)
    return lambda: attention.fused_coefficients(x, weight, sizes.groups, 0, [1.0, 0.5], 0.0)


def project_output(sizes, dtype):
    x, theta = draw(2, sizes.positions, sizes.channels, dtype=dtype), draw(sizes.inner, sizes.channels, dtype=dtype)
    z_weight, c = draw(sizes.channels, sizes.width, dtype=dtype), draw(2, sizes.groups, 1)
    return lambda: output.fused_output(x, x, theta, z_weight, None, c, [], 0.0, 1, 0.0)


def apply_branch(sizes, dtype):
    rows = draw(2, sizes.positions, sizes.channels, dtype=dtype)
    theta = draw(2, sizes.positions, 3 * sizes.inner, dtype=dtype)[..., : sizes.inner]  # others lie beside it
    z_weight, c = draw(sizes.channels, sizes.width, dtype=dtype), draw(2, sizes.groups, 1)
    affine = draw(2, 2, sizes.channels)
    return lambda: branch.fused_apply(rows, theta, z_weight, c, affine, 1, 0.0)


def go_back(sizes, dtype):
    grad, theta = (draw(2, sizes.positions, n, dtype=dtype) for n in (sizes.channels, sizes.inner))
    z_weight, c = draw(sizes.channels, sizes.width, dtype=dtype), draw(2, sizes.groups, 1)
    factors = draw(2, 3, sizes.channels)
    return lambda: backward.branch_backward(grad, theta, z_weight, c, factors, torch.empty_like(theta), None, 1, 0.0)[0]


RUNS = {"coefficients": coefficients, "output": project_output, "apply": apply_branch, "backward": go_back}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("sizes", [SIZES["groups-left-over"], SIZES["beyond-a-power-of-two"]], ids=["few", "many"])
def test_tiles_through_pointers_hold_the_same_numbers(make, sizes, two_precisions, monkeypatch):
    run, found = make(sizes, two_precisions.dtype), []
    for tma in (True, False):
        set_hardware(monkeypatch, tma=tma)
        found.append(run())
    assert found[0].isfinite().all()
    assert torch.equal(*found)
