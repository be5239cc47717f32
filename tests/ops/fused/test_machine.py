"""What kernels ask of the machine."""

import pytest
import torch

from cgnl.ops.fused import machine
from tests.ops.fused.helpers import DEVICE


@pytest.mark.parametrize(("a", "b", "quotient"), [(0, 4, 0), (1, 4, 1), (8, 4, 2), (9, 4, 3)])
def test_cdiv_rounds_up(a, b, quotient):
    assert machine.cdiv(a, b) == quotient


@pytest.mark.parametrize(("number", "least", "power"), [(1, 1, 1), (3, 1, 4), (8, 16, 16), (17, 16, 32), (64, 16, 64)])
def test_power_of_two_is_the_next(number, least, power):
    assert machine.power_of_two(number, least) == power


@pytest.mark.parametrize(("one", "other"), [(1, 2), (16, 17), (5, 2**31 + 5), (1e-5, 1e-3), ((1, 2), (1, 3))])
def test_kind_tells_values_apart(one, other):
    assert machine._kind(one) != machine._kind(other)


def test_kind_sees_dtype_and_alignment_and_no_sizes():
    whole = torch.zeros(64, 64, device=DEVICE)
    assert machine._kind(whole) == machine._kind(whole[:16])
    assert machine._kind(whole) != machine._kind(whole.half())
    assert machine._kind(whole) != machine._kind(whole.flatten()[1:])
    assert machine._kind(machine.descriptor(whole, 16, 16)) != machine._kind(machine.descriptor(whole.half(), 16, 16))


def test_descriptor_begins_where_the_hardware_can_begin():
    shifted = torch.arange(65.0, device=DEVICE)[1:].view(8, 8)
    made = machine.descriptor(shifted, 8, 8)
    assert made.base.data_ptr() % 16 == 0
    assert torch.equal(made.base, shifted)
    aligned = torch.zeros(8, 8, device=DEVICE)
    assert machine.descriptor(aligned, 8, 8).base is aligned
