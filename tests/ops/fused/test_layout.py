"""X with positions or with channels last in memory: the same numbers, and nothing of its size is copied."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cgnl.ops.fused import backward, launch
from tests.conftest import relative_error
from tests.ops.fused.conftest import set_hardware
from tests.ops.fused.helpers import DEVICE, HALF, Case, assert_exact, draw, run

SIZE = (2, 64, 4, 8)
"""The hardware copies rows of 32 positions in every dtype, of 12 only in float32, of 63 in none."""
CASES = {
    "dot": Case(SIZE, inner=64, groups=8),
    "not-aligned": Case((2, 32, 7, 9), kernel="embedded_gaussian"),
    "aligned-in-float32": Case((3, 64, 4, 3), kernel="rbf-exact", recompute=True),
    "constant-of-the-sample": Case((4, 32, 4, 4), kernel="rbf-norm", recompute=True),
    "group-norm": Case(SIZE, groups=1, norm="group", kernel="taylor"),
    "more-than-a-tile": Case((1, 32, 136), norm=None, scale="sqrt"),
    "video": Case((2, 64, 2, 3, 5), kernel="rbf-paper"),
    "wide": Case((2, 64, 3, 4), groups=1, inner=136, kernel="rbf-exact"),
    "wide-dot": Case((2, 32, 4, 8), groups=1, inner=136),
    "groups-left-over": Case((2, 144, 3, 4), groups=3, kernel="rbf-exact"),
    "eval": Case(SIZE, groups=1, train=False, kernel="rbf-exact"),
    "eval-groups-left-over": Case((2, 144, 5, 3), groups=3, train=False),
    "eval-wide-dot": Case((2, 256, 3, 9), groups=1, inner=136, train=False),
    "eval-wide-dot-one-by-one": Case((2, 256, 4, 4), groups=1, inner=16, train=False),
    "eval-wide": Case((2, 64, 3, 4), groups=1, inner=136, train=False, kernel="taylor"),
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_layout = pytest.mark.parametrize("layout", ["contiguous", "channels-last"])


@each_case
@each_layout
def test_block_is_as_exact_as_the_reference_in_both_layouts(case, layout, two_precisions):
    assert_exact(replace(case, layout=layout), two_precisions.dtype)


@pytest.mark.usefixtures("pointers")
@pytest.mark.parametrize("name", ["constant-of-the-sample", "wide-dot", "eval-wide-dot", "eval-groups-left-over"])
def test_contiguous_block_through_pointers_is_as_exact_as_the_reference(name, two_precisions):
    assert_exact(CASES[name], two_precisions.dtype)


@pytest.mark.parametrize("name", ["dot", "not-aligned", "wide-dot"])
def test_contiguous_block_in_autocast_is_as_exact_as_the_reference(name):
    """X is float32, and what is made of it half precision: they may not be read in the same way."""
    case = CASES[name]
    block, (x, gradient) = case.block(), case.inputs()
    with torch.autocast(DEVICE, HALF):
        found = run(block, x, gradient)
    exact = run(block, x, gradient)
    assert {name: e for name in exact if (e := relative_error(found[name], exact[name])) > 0.02} == {}


def grad_of(case: Case, layout: str, of_gradient: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    block = case.block()
    x, gradient = (t.to(memory_format=torch.contiguous_format) for t in case.inputs())
    formats = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}
    x, gradient = x.contiguous(memory_format=formats[layout]), gradient.contiguous(memory_format=formats[of_gradient])
    x.requires_grad_()
    y = block(x)
    y.backward(gradient)
    assert x.grad is not None
    assert y.stride() == x.stride()
    return y.detach(), x.grad


@pytest.mark.parametrize("name", ["dot", "aligned-in-float32", "wide"])
def test_gradients_may_lie_in_memory_as_they_like(name):
    y, expected = grad_of(CASES[name], "contiguous", "contiguous")
    for layout, of_gradient in [("contiguous", "channels-last"), ("channels-last", "contiguous")]:
        also, found = grad_of(CASES[name], layout, of_gradient)
        assert relative_error(also, y) < 1e-5
        assert relative_error(found, expected) < 1e-5


def test_a_gradient_that_is_one_number_for_each_channel():
    case = CASES["dot"]
    block, (x, _) = case.block(), case.inputs()
    found = []
    for fused in (True, False):
        block.backend = "fused" if fused else "reference"
        mine = x.clone().requires_grad_()
        block(mine).mean((2, 3)).square().sum().backward()
        found.append(mine.grad)
    assert relative_error(*found) < 1e-5


@contextmanager
def copies(size: int) -> Iterator[list[str]]:
    """Names and shapes of operations that copy this many numbers; kernels do not run."""
    found: list[str] = []
    profile = torch.autograd.profiler.profile(record_shapes=True)
    with pytest.MonkeyPatch.context() as patch, profile:
        patch.setattr(launch.Launch, "__call__", lambda *_: None)
        yield found
    for event in profile.function_events or []:
        sizes = [torch.Size(s).numel() for s in event.input_shapes if all(isinstance(n, int) for n in s)]
        if event.name not in ("aten::copy_", "aten::clone", "aten::_to_copy") or max(sizes, default=0) < size:
            continue
        if event.cpu_parent is None or event.cpu_parent.name != "aten::baddbmm_":  # which copies its result to itself
            found.append(f"{event.name}{event.input_shapes}")


@each_layout
@pytest.mark.parametrize("shape", [(4, 64, 16, 16), (4, 64, 15, 15)], ids=["aligned", "not-aligned"])
@pytest.mark.parametrize("options", [
    {"groups": 8, "inner": 64}, {"kernel": "rbf-exact", "recompute": True}, {"norm": "group", "groups": 1},
    {"groups": 1, "inner": 136}, {"inner": 16, "train": False}, {"groups": 1, "inner": 136, "train": False},
], ids=["dot", "recompute", "group-norm", "wide", "eval", "eval-wide"])  # fmt: skip
def test_nothing_of_the_size_of_x_is_copied(layout, shape, options):
    case = Case(shape, layout=layout, **options)
    block, (x, gradient) = case.block(), case.inputs()
    x = x.requires_grad_()
    x.grad = torch.zeros_like(x)  # as a leaf it would keep a copy of its first gradient
    with copies(x.numel()) as found:
        torch.autograd.grad(block(x), (x, *block.parameters()), gradient)
        with torch.no_grad():
            block(x)
    assert found == []


def test_copies_are_seen():
    x = torch.zeros(4, 8)
    with copies(32) as found:
        x.t().contiguous()
    assert found


@pytest.mark.parametrize("name", ["dot", "not-aligned", "wide"])
def test_channels_last_gives_the_same_bits_again(name):
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        case = replace(CASES[name], layout="channels-last")
        results.append(run(case.block(), *case.inputs()))
    assert [n for n, t in results[0].items() if not torch.equal(t, results[1][n])] == []


# The gradient of a weight --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize(("batch", "positions", "inner", "channels"), [
    (1, 1, 8, 8), (3, 32, 24, 16), (2, 70, 136, 24), (5, 130, 8, 144), (1, 200, 72, 136),
])  # fmt: skip
def test_weight_backward_is_the_product(processors, batch, positions, inner, channels, precision, monkeypatch):
    for tma in (True, False):
        set_hardware(monkeypatch, processors=processors, tma=tma)
        grad = draw(batch, positions, inner, dtype=precision.dtype)
        x = draw(batch, channels, positions, dtype=precision.dtype).transpose(1, 2)
        found = backward.weight_backward(grad, x)
        expected = torch.einsum("bni,bnc->ic", grad.double(), x.double())
        assert found.dtype == torch.float32
        assert relative_error(found, expected) < 2e-6 + 1e-3 * (precision.tolerance > 1e-3 and x.dtype == torch.float32)
        assert torch.equal(found, backward.weight_backward(grad, x))


def test_weight_backward_shares_positions_out():
    on, half = launch.Hardware(132, True, 227), torch.bfloat16
    case = launch.make_case(16, 784, 1024, 1536, 1, 1, 1, 0.0, half, half, False, "tf32x3", on, torch.device("cpu"))
    tile, parts, run = backward.make_weight_plan(case)
    assert run.grid == (1536 // tile.rows * 1024 // tile.columns, parts) == (96, 4)
