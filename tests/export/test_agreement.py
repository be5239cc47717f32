"""When an export counts as the same as its network."""

import pytest
import torch
from torch import nn

from cgnl.export.agreement import BAR, CLIPS, IMAGES, agree, difference, example_inputs, run_network
from tests.export.conftest import Small, stir

X = [torch.randn(1, 3, 8, 8), torch.randn(2, 3, 9, 12)]


def test_agree_tells_the_difference_for_each_shape():
    model = stir(Small(4, 2))
    found = agree(model, lambda x: run_network(model, x) if len(x) == 1 else [1.00001 * model(x).detach()], X)
    assert found.shapes == ((1, 3, 8, 8), (2, 3, 9, 12))
    assert found.differences[0] == 0 < found.differences[1] == found.largest < BAR


@pytest.mark.parametrize(
    ("exported", "message"),
    [
        (
            lambda y: [1.001 * y],
            r"differs from the network by 1\.0e-03 .* more than 1e-04, for an input of 1 x 3 x 8 x 8",
        ),
        (lambda y: [y[:, :2]], "differs from the network by inf"),
        (lambda y: [y * torch.nan], "differs from the network by nan"),
        (lambda y: y.missing, "does not take an input of 1 x 3 x 8 x 8: "),
    ],
    ids=["value", "shape", "nan", "error"],
)
def test_agree_refuses(exported, message):
    model = stir(Small(4, 2))
    with pytest.raises(ValueError, match=message):
        agree(model, lambda x: exported(model(x).detach()), X)


def test_difference_of_nothing_but_zeros():
    assert difference(torch.zeros(3), torch.zeros(3)) == 0


@pytest.mark.parametrize(("ndim", "shapes", "size"), [(2, IMAGES, (57, 44)), (3, CLIPS, (9, 40, 33))])
def test_example_inputs_end_with_the_networks_own_size(ndim, shapes, size):
    model = nn.Sequential(nn.Flatten(), Small(4, ndim))
    assert [(len(x), *x.shape[2:]) for x in example_inputs(model)] == list(shapes)
    *before, last = example_inputs(model, size)
    assert [(len(x), *x.shape[2:]) for x in before] == list(shapes[:-1])
    assert last.shape == (1, 3, *size)
    assert len(example_inputs(model, shapes[0][1:])) == len(shapes)
