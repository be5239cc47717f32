import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cgnl.ops import compact_generalized_non_local, series
from cgnl.ops.series import polynomial, power_sums
from tests.conftest import EXACT, ROUNDING, relative_error

SHAPE = (2, 2, 3, 4, 5)  # [B, G, C', *positions]
LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.movedim((1, 2), (3, 4)).contiguous().movedim((3, 4), (1, 2)),
    "transposed": lambda x: x.transpose(3, 4).contiguous().transpose(3, 4),
    "sliced": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[..., :1].expand_as(x),
}
# terms, first, gamma
SERIES = {
    "one-term": (1, 0, 0.0),
    "dot": (1, 1, 0.0),
    "from-0": (4, 0, 0.0),
    "from-2": (3, 2, 0.0),
    "envelope": (3, 0, 0.5),
    "envelope-from-1": (2, 1, 0.5),
    "envelope-one-term": (1, 0, 0.5),
}
every_series = pytest.mark.parametrize(("terms", "first", "gamma"), SERIES.values(), ids=SERIES)
both_weights = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def draw(terms, weighted, layout=LAYOUTS["contiguous"], dtype=torch.float64, shape=SHAPE) -> tuple:
    """x, coefficients, weight or None."""
    x, weight = (layout(torch.randn(shape, dtype=dtype)) for _ in range(2))
    return x, torch.randn(*shape[:2], terms, dtype=torch.float64), weight if weighted else None


def powers(x, weight, terms, first, gamma):
    """weight exp(-gamma x^2) x^p for each p, [B, G, C', *P, K], the stack that the operators avoid."""
    x = x.double()
    weight = torch.ones_like(x) if weight is None else weight.double()
    return torch.stack([weight * torch.exp(-gamma * x * x) * x**p for p in range(first, first + terms)], -1)


@every_series
@both_weights
@every_layout
def test_power_sums_equals_the_stack_of_powers(terms, first, gamma, weighted, layout):
    x, _, weight = draw(terms, weighted, layout)
    truth = powers(x, weight, terms, first, gamma).sum((2, 3, 4))
    assert relative_error(power_sums(x, weight, terms, first, gamma), truth) < EXACT


@every_series
@both_weights
@every_layout
def test_polynomial_equals_the_stack_of_powers(terms, first, gamma, weighted, layout):
    x, c, weight = draw(terms, weighted, layout)
    truth = torch.einsum("bgchwk,bgk->bgchw", powers(x, weight, terms, first, gamma), c)
    y = polynomial(x, c, weight, first, gamma)
    assert relative_error(y, truth) < EXACT
    assert y.stride() == torch.empty_like(x).stride()


@every_series
@both_weights
def test_series_leave_their_inputs_alone(terms, first, gamma, weighted):
    x, c, weight = draw(terms, weighted)
    inputs = [t for t in (x, c, weight) if t is not None]
    before = [t.clone() for t in inputs]
    power_sums(x, weight, terms, first, gamma)
    polynomial(x, c, weight, first, gamma)
    assert all(map(torch.equal, inputs, before))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@every_series
@both_weights
def test_series_of_half_precision_are_float32(dtype, terms, first, gamma, weighted):
    x, c, weight = draw(terms, weighted, dtype=dtype)
    stack = powers(x, weight, terms, first, gamma)
    sums, values = power_sums(x, weight, terms, first, gamma), polynomial(x, c.float(), weight, first, gamma)
    assert sums.dtype == values.dtype == torch.float32
    assert relative_error(sums, stack.sum((2, 3, 4))) < ROUNDING[torch.float32]
    assert relative_error(values, torch.einsum("bgchwk,bgk->bgchw", stack, c)) < ROUNDING[torch.float32]


@pytest.mark.parametrize("double", ["x", "coefficients", "weight"])
@every_series
def test_polynomial_is_float64_when_one_input_is(double, terms, first, gamma):
    tensors = dict(zip(("x", "coefficients", "weight"), draw(terms, weighted=True, dtype=torch.float32), strict=True))
    inputs = {name: t.to(torch.float64 if name == double else torch.float32) for name, t in tensors.items()}
    assert polynomial(**inputs, first=first, gamma=gamma).dtype == torch.float64


@every_series
@both_weights
def test_series_have_first_and_second_gradients(terms, first, gamma, weighted):
    x, c, *weight = (t.requires_grad_() for t in draw(terms, weighted, shape=(1, 2, 2, 1, 2)) if t is not None)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x, w=None: power_sums(x, w, terms, first, gamma), (x, *weight))
        assert check(lambda x, c, w=None: polynomial(x, c, w, first, gamma), (x, c, *weight))


@every_series
@pytest.mark.parametrize(
    ("layout", "weight_layout"),
    [
        pytest.param("contiguous", None, id="contiguous"),
        pytest.param("channels_last", None, id="channels_last"),
        pytest.param("sliced", "sliced", id="sliced-weighted"),
        pytest.param("channels_last", "contiguous", id="channels_last-weighted"),
    ],
)
def test_operators_pass_opcheck(terms, first, gamma, layout, weight_layout):
    x, c, weight = draw(terms, weighted=True)
    x = LAYOUTS[layout](x).requires_grad_()
    weight = weight_layout and LAYOUTS[weight_layout](weight).requires_grad_()
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if first and gamma:
        tests.append("test_aot_dispatch_dynamic")  # the slow one
    for operator, inputs in (
        (torch.ops.cgnl.power_sums.default, (x, weight, terms, first, gamma)),
        (torch.ops.cgnl.polynomial.default, (x, c.requires_grad_(), weight, first, gamma)),
    ):
        torch.library.opcheck(operator, inputs, test_utils=tests)


class Allocations(TorchDispatchMode):
    """What operations allocate: the largest tensor, and the storages of at least ``numel`` elements."""

    def __init__(self, numel):
        super().__init__()
        self.numel, self.largest, self.storages = numel, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            self.largest = max(self.largest, t.numel())
            if t.untyped_storage().nbytes() >= self.numel * t.element_size():
                self.storages[t.untyped_storage()._cdata] = t
        return out


@pytest.mark.parametrize("gamma", [0.0, 0.5], ids=["plain", "envelope"])
@pytest.mark.parametrize("operator", ["power_sums", "polynomial"])
def test_series_make_no_stack_of_powers(operator, gamma):
    def allocations(order, in_place):
        x, c, weight = draw(order + 1, weighted=True)
        with Allocations(x.numel()) as seen:
            if operator == "power_sums":
                series._power_sums(x, weight, order + 1, 0, gamma, in_place)
            else:
                series._polynomial(x, c, weight, 0, gamma, in_place)
        return seen.largest / x.numel(), len(seen.storages)

    assert allocations(3, in_place=True) == allocations(8, in_place=True)
    assert all(allocations(order, in_place)[0] <= 1 for order in (1, 8) for in_place in (False, True))


def test_flops_are_one_multiply_add_for_each_element_and_power():
    x = torch.randn(2, 4, 3, 5)
    with FlopCounterMode(display=False) as counter:
        compact_generalized_non_local(x, x, x, kernel="rbf", groups=2)
    assert counter.get_total_flops() == 2 * 2 * math.prod(x.shape) * 4


def test_power_sums_needs_no_position_axis():
    x, weight = torch.rand(2, 2, 3, 5, dtype=torch.float64).unbind()  # [B, G, C']
    expected = torch.stack([(weight * x**p).sum(-1) for p in range(3)], -1)
    assert relative_error(power_sums(x, weight, terms=3), expected) < EXACT


def test_a_constant_polynomial_can_be_mapped_over_its_coefficients():
    x, c = torch.randn(2, 3, 4, 5), torch.randn(6, 2, 3, 1)
    mapped = torch.vmap(lambda each: polynomial(x, each))(c)
    assert torch.equal(mapped, c[..., None].expand(6, 2, 3, 4, 5))
