"""How kernels are launched."""

import pytest
import torch

from cgnl.ops.fused import launch
from cgnl.ops.fused.attention import total_fwd_kernel
from tests.ops.fused.conftest import set_hardware
from tests.ops.fused.helpers import DEVICE


@pytest.mark.parametrize(("a", "b", "quotient"), [(0, 4, 0), (1, 4, 1), (8, 4, 2), (9, 4, 3)])
def test_cdiv_rounds_up(a, b, quotient):
    assert launch.cdiv(a, b) == quotient


@pytest.mark.parametrize(("number", "least", "power"), [(1, 1, 1), (3, 1, 4), (8, 16, 16), (17, 16, 32), (64, 16, 64)])
def test_power_of_two_is_the_next(number, least, power):
    assert launch.power_of_two(number, least) == power


def test_aligned_copies_what_begins_elsewhere():
    whole = torch.arange(65.0, device=DEVICE)
    assert launch.aligned(whole) is whole
    copied = launch.aligned(whole[1:])
    assert copied.data_ptr() % 16 == 0
    assert torch.equal(copied, whole[1:])


def test_launch_runs_again_with_other_tensors():
    run = launch.Launch(total_fwd_kernel, (2, 1), 4, 1, 3, 2, (2.0,), 1, 4, 2)
    for _ in range(2):
        sums, out = torch.randn(2, 3, 2, 1, device=DEVICE), torch.empty(2, 1, 1, device=DEVICE)
        run(sums, out)
        torch.testing.assert_close(out.flatten(), 4 * sums.sum((1, 2, 3)))


def test_launch_refuses_tensors_that_are_not_aligned():
    run = launch.Launch(total_fwd_kernel, (2, 1), 4, 1, 3, 2, (2.0,), 1, 4, 2)
    with pytest.raises(ValueError, match="16 bytes"):
        run(torch.randn(13, device=DEVICE)[1:], torch.empty(2, 1, 1, device=DEVICE))


def test_source_of_pointers_knows_its_strides(monkeypatch):
    set_hardware(monkeypatch, tma=False)
    x = torch.empty(3, 5, 16, device=DEVICE)[..., :8]
    case = launch.find_case(x, x, 8, 8, 1, 1, 1, 0.0)
    assert case.source(x, 1, 16, 16) == launch.Pointers(x, 5, 8, 16, 80)
    assert case.source(sample := x[0], 16, 16) == launch.Pointers(sample, 5, 8, 16, 0)
