"""Tensors of more than 2^31 elements, whose places no 32-bit number can hold."""

import pytest
import torch

from cgnl import CGNL
from tests.conftest import INTERPRETED, relative_error

pytestmark = pytest.mark.skipif(
    INTERPRETED or torch.cuda.get_device_properties(0).total_memory < 60 * 2**30, reason="needs a GPU with 60 GiB"
)


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
def test_a_sample_of_a_large_batch_is_as_it_is_alone(kernel, groups):
    block = CGNL(512, groups=groups, kernel=kernel, norm=None, zero_init=False, backend="fused").cuda().bfloat16()
    shape = (24, 424, 424, 512)
    x, gradient = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).movedim(-1, 1) for _ in range(2))
    assert x.numel() > 2**31
    found, expected = [], []
    for results, (some, slope) in ((found, (x, gradient)), (expected, (x[-1:], gradient[-1:]))):
        with torch.no_grad():
            results.append(block(some)[-1])
        some = some.detach().requires_grad_()
        y = block(some)
        results += [y[-1].detach(), torch.autograd.grad(y, some, slope)[0][-1]]
    branch = expected[0] - x[-1]
    assert float(branch.norm()) > 0
    for actual, wanted in zip(found, expected, strict=True):
        assert (
            relative_error(actual, wanted) < 1e-3
        )  # sums are shared out otherwise, and now and then rounded otherwise
