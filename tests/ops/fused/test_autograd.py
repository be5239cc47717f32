"""What a training loop can do to a block: freezing, repeating, watching memory, asking for more than there is."""

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from cgnl import CGNL
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, Case, assert_exact, fill, reference_of, run

CASES = {
    "dot": Case(),
    "dot-recompute": Case(recompute=True),
    "constant-term": Case(kernel="rbf-exact"),
    "norm-constant-recompute": Case(kernel="rbf-norm", recompute=True),
    "group-norm": Case(norm="group", kernel="embedded_gaussian"),
    "no-norm": Case(norm=None, scale="sqrt", kernel="taylor"),
    "wide": Case((2, 32, 3, 3), groups=1, inner=136, kernel="rbf-exact"),
    "eval": Case(train=False, kernel="rbf-exact"),
    "eval-wide": Case((2, 32, 3, 3), groups=1, inner=136, train=False, kernel="embedded_gaussian"),
    "positions-shared-out": Case((1, 32, 200), groups=1, norm=None, scale="sqrt", kernel="embedded_gaussian"),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def results(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(1)
    block, (x, gradient) = case.block().to(dtype), case.inputs()
    return run(block, x.to(dtype), gradient.to(dtype))


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def assert_close(block: CGNL, x: Tensor, gradient: Tensor, tolerance: float = 5e-6) -> None:
    """To the reference, where sums are not so short that rounding would show."""
    found, expected = run(block, x, gradient), run(reference_of(block), x, gradient)
    assert {name: e for name in expected if (e := relative_error(found[name], expected[name])) > tolerance} == {}


@each_case
def test_block_reads_nothing_that_it_has_not_written(case, monkeypatch):
    """Memory that is new holds NaN, as it may. float16, in which padding is read too where y is scaled by its peak."""
    dtype = torch.float16
    expected = results(case, dtype)
    made = []

    def poisoned(function):
        def fill_with_nan(*args, **kwargs):
            out = function(*args, **kwargs)
            made.append(out)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return fill_with_nan

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
    found = results(case, dtype)
    monkeypatch.undo()
    assert made
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["dot", "norm-constant-recompute", "wide", "eval", "positions-shared-out"])
def test_block_gives_the_same_bits_again(name):
    first, second = (results(CASES[name], torch.float32) for _ in range(2))
    assert_same(first, second)


@pytest.fixture
def _deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["dot", "norm-constant-recompute", "group-norm", "eval-wide"])
@pytest.mark.usefixtures("_deterministic")
def test_block_obeys_deterministic_algorithms(name):
    """Nothing raises; and what torch then fills with NaN, new memory, is not read."""
    assert all(t.isfinite().all() for t in results(CASES[name], torch.float32).values())


@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "keep"])
@pytest.mark.parametrize("kernel", ["dot", "rbf-exact"])
def test_block_keeps_x_and_unless_recomputing_theta(kernel, recompute):
    case = Case((2, 32, 12, 12), kernel=kernel, recompute=recompute)
    block, (x, _) = case.block(), case.inputs()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    kept: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (kept.__setitem__(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()), t)[1], lambda t: t
    ):
        block(x)
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}
    large = [size for place, size in kept.items() if place not in own and size >= x.nbytes // 2]
    assert sorted(large) == ([] if recompute else [x.nbytes // 2]) + [x.nbytes]
    assert kept[x.untyped_storage().data_ptr()] == x.nbytes


def make(**options) -> CGNL:
    return fill(CGNL(32, groups=2, backend="fused", **options)).to(DEVICE)


def draw_pair(batch: int = 4) -> tuple[Tensor, Tensor]:
    x, gradient = torch.randn(2, batch, 32, 4, 4, device=DEVICE)
    return x, gradient


def test_norm_with_momentum_none_keeps_the_plain_mean():
    block = make(kernel="embedded_gaussian")
    block.norm.momentum = None
    twin = reference_of(block)
    for i in range(3):
        x, _ = draw_pair()
        block((i + 1) * x)
        twin((i + 1) * x)
    for name, buffer in twin.norm.named_buffers():
        assert relative_error(block.norm.get_buffer(name), buffer) < 1e-5, name
    assert int(block.norm.num_batches_tracked) == 3


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_norm_without_running_statistics_takes_those_of_the_batch(train):
    block = make(kernel="embedded_gaussian")
    block.norm = nn.BatchNorm2d(32, track_running_stats=False, device=DEVICE)
    fill(block)
    assert_close(block.train(train), *draw_pair())


def test_frozen_norm_in_a_training_block_keeps_its_statistics():
    block = Case(kernel="rbf-exact", train=False).block().train()
    block.norm.eval()
    before = copy.deepcopy(block.norm.state_dict())
    assert_close(block, *draw_pair())
    block(draw_pair()[0])
    assert all(torch.equal(block.norm.state_dict()[name], value) for name, value in before.items())


def test_norm_tracks_without_gradients_too():
    block, (x, _) = make(), draw_pair()
    twin = reference_of(block)
    with torch.no_grad():
        block(x)
        twin(x)
    for name in ("running_mean", "running_var"):
        assert relative_error(block.norm.get_buffer(name), twin.norm.get_buffer(name)) < 1e-5
    assert int(block.norm.num_batches_tracked) == 1


@pytest.mark.filterwarnings("ignore:.*single sample")
def test_norm_refuses_one_number_a_channel_as_torch_does():
    block, x = make(), torch.randn(1, 32, 1, 1, device=DEVICE)
    for each in (block, reference_of(block)):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            each(x)


def freeze(block: CGNL, *names: str) -> CGNL:
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(name not in names)
    return block


ALL = ("theta.weight", "phi.weight", "g.weight", "z.weight", "norm.weight", "norm.bias")


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("frozen", "of_x"), [
    ((), False),
    (ALL, True),
    (ALL[:3], True),
    (ALL[1:], False),
    (("norm.weight",), True),
    (ALL[:5], False),
], ids=["x", "all-parameters", "projections", "all-but-theta-and-x", "norm-weight", "all-but-the-bias"])  # fmt: skip
def test_frozen_tensors_get_no_gradient_and_others_the_right_one(frozen, of_x, train):
    block, (x, gradient) = freeze(Case(kernel="rbf-exact", train=train).block(), *frozen), draw_pair()
    twin, found = reference_of(block), []
    for each in (block, twin):
        mine = x.clone().requires_grad_(of_x)
        each(mine).backward(gradient)
        found.append({"x": mine.grad, **{name: p.grad for name, p in each.named_parameters()}})
    for name, expected in found[1].items():
        actual = found[0][name]
        assert (actual is None) == (expected is None), name
        if expected is not None:
            assert relative_error(actual, expected) < 1e-5, name


def test_backward_twice_gives_the_same():
    for recompute in (True, False):
        block, (x, gradient) = make(kernel="rbf", recompute=recompute), draw_pair()
        x.requires_grad_()
        y = block(x)
        inputs = (x, *block.parameters())
        first = torch.autograd.grad(y, inputs, gradient, retain_graph=True)
        second = torch.autograd.grad(y, inputs, gradient)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_gradients_add_up():
    block, (x, gradient) = make(), draw_pair()
    for _ in range(2):
        block(x).backward(gradient)
    twice = [p.grad for p in block.parameters()]
    once = torch.autograd.grad(block(x), tuple(block.parameters()), gradient)
    for a, b in zip(twice, once, strict=True):
        assert a is not None
        assert relative_error(a, 2 * b) < 1e-6


PENALTIES: dict[str, Any] = {
    "of-the-gradient-alone": lambda _, slope: slope.square().sum(),
    "beside-a-loss": lambda y, slope: y.sum() + slope.square().sum(),
}
LOSSES: dict[str, Any] = {"square": lambda y: y.square().sum(), "sum": lambda y: y.sum()}


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("how", ["backward", "grad"])
def test_second_derivatives_raise(penalty, loss, how):
    """A gradient penalty must not be silently left out."""
    block, (x, _) = make(), draw_pair()
    x.requires_grad_()

    def penalise():
        y = block(x)
        (slope,) = torch.autograd.grad(loss(y), x, create_graph=True)
        total = penalty(y, slope)
        if how == "backward":
            total.backward()
        else:
            torch.autograd.grad(total, (x, *block.parameters()))

    with pytest.raises(RuntimeError):
        penalise()


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_tensors_need_not_be_aligned(train):
    """Descriptors ask for 16 bytes: a view may begin anywhere, as one of a flat buffer of parameters does."""

    def shifted(t: Tensor) -> Tensor:
        return torch.empty(t.numel() + 1, device=t.device)[1:].view(t.shape).copy_(t)

    block = Case(train=train, kernel="rbf-exact").block()
    x, gradient = draw_pair()
    expected = run(reference_of(block), x, gradient)
    x, gradient = (shifted(t.movedim(1, -1).contiguous()).movedim(-1, 1) for t in (x, gradient))
    for name in ("theta", "phi", "g", "z", "norm"):
        module = getattr(block, name)
        module.weight = nn.Parameter(shifted(module.weight.detach()))
    x.requires_grad_()
    y = block(x)
    found = torch.autograd.grad(y, (x, *(block.get_parameter(name) for name in ALL)), gradient)
    assert relative_error(y - x, expected["output"]) < 1e-5
    for name, actual in zip(("x", *ALL), found, strict=True):
        assert relative_error(actual, expected[name]) < 1e-5, name
    with torch.no_grad():
        assert relative_error(block(x) - x, expected["output"]) < 1e-5


@pytest.mark.parametrize("amplitude", [1, 10, 30])
@pytest.mark.parametrize("case", [
    Case(kernel="embedded_gaussian", scale="sqrt"),
    Case(kernel="taylor", scale="sqrt"),
    Case((2, 64, 3, 3), groups=1, inner=136, kernel="embedded_gaussian", scale="sqrt"),
], ids=["narrow-from-0", "narrow-from-2", "wide-from-0"])  # fmt: skip
def test_block_in_float16_bears_large_inputs(case, amplitude, monkeypatch):
    """y is beyond float16's reach, and its gradient below: the reference divides its peak out before W_z."""
    inputs = Case.inputs
    monkeypatch.setattr(Case, "inputs", lambda self: (amplitude * inputs(self)[0], inputs(self)[1]))
    assert_exact(case, torch.float16)


class Unused(torch.autograd.Function):
    """Knows no gradient of its input."""

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, _grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def test_an_output_without_a_gradient_gives_none():
    block, (x, _) = make(), draw_pair()
    x.requires_grad_()
    cast(Any, Unused.apply(block(x))).sum().backward()
    assert x.grad is None
