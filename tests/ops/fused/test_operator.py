"""The operator's kernels against the exact sums in float64."""

import pytest
import torch

from cgnl import kernels, ops
from cgnl.ops import fused, series
from cgnl.ops.fused import operator
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, KERNELS, LAYOUTS, draw


def call(inputs, backend, **options):
    return ops.compact_generalized_non_local(*inputs, backend=backend, **options)


def check(shape, layouts, kernel, dtype=torch.float32, groups=2, **more):
    """Output and gradients: at most 2 and 3 times the errors of plain PyTorch in the same dtype."""
    inputs = [(0.7 * LAYOUTS[layout](shape)).to(DEVICE, dtype).requires_grad_() for layout in layouts]
    gradient, options = draw(*shape, dtype=dtype), {"kernel": kernel, "groups": groups, **more}
    exact = [t.detach().double().requires_grad_() for t in inputs]
    found = {}
    for name, tensors, backend in (
        ("true", exact, "reference"), ("plain", inputs, "reference"), ("fused", inputs, "fused")
    ):  # fmt: skip
        y = call(tensors, backend, **options)
        assert y.dtype == tensors[2].dtype
        found[name] = (y, *torch.autograd.grad(y, tensors, gradient.to(y.dtype)))
    for i, (true, plain, mine) in enumerate(zip(*found.values(), strict=True)):
        allowed = (3 if i else 2) * relative_error(plain, true) + 4 * torch.finfo(dtype).eps
        assert relative_error(mine, true) <= allowed, i


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_operator_is_as_exact_as_the_reference(kernel, dtype):
    check((3, 16, 5, 7), ["contiguous"] * 3, kernel, dtype)


@pytest.mark.parametrize("kernel", ["embedded_gaussian", "rbf-exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_operator_normalises_rows(kernel, dtype, layout):
    positive = {"embedded_gaussian": kernels.EmbeddedGaussian(2)}.get(kernel, KERNELS[kernel])
    check((3, 16, 5, 7), [layout] * 3, positive, dtype, normalize=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operator_takes_any_strides(layout):
    check((4, 12, 4, 6), [layout] * 3, KERNELS["embedded_gaussian"])
    check((4, 12, 4, 6), [layout, "contiguous", "channels-last"], KERNELS["dot"])


@pytest.mark.parametrize(("shape", "groups"), [
    ((2, 3, 1), 1), ((1, 10, 7), 2), ((2, 7, 3, 3), 7), ((1, 6, 2, 3, 4), 3), ((5, 1, 9), 1),
], ids=str)  # fmt: skip
def test_operator_takes_any_width(shape, groups):
    check(shape, ["contiguous"] * 3, KERNELS["taylor"], groups=groups, scale="sqrt")
    check(shape, ["channels-last"] * 3, KERNELS["rbf-exact"], groups=groups, scale="resolution")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(("terms", "first", "gamma"), [(1, 1, 0.0), (4, 0, 0.0), (3, 2, 0.0), (2, 1, 0.5)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_series_by_kernels(terms, first, gamma, weighted, dtype, layout, monkeypatch):
    """Sums, values, gradients and second derivatives are those of plain PyTorch in float64."""
    called = []
    for name in ("power_sums", "polynomial"):
        kernel = getattr(operator, name)
        monkeypatch.setattr(operator, name, lambda *a, kernel=kernel, name=name: (called.append(name), kernel(*a))[1])
    x, weight = ((0.7 * LAYOUTS[layout]((2, 6, 4, 5))).to(DEVICE, dtype).unflatten(1, (2, 3)) for _ in range(2))
    c, found = draw(2, 2, terms), []
    for kind, mine in ((dtype, True), (torch.float64, False)):
        inputs = [t.detach().to(kind).requires_grad_() for t in (x, weight)]
        coefficients = c.to(torch.float32 if mine else kind).requires_grad_()
        w = inputs[1] if weighted else None
        sums = series.power_sums(inputs[0], w, terms, first, gamma, mine)
        values = series.polynomial(inputs[0], coefficients, w, first, gamma, mine)
        leaves = [inputs[0], coefficients, *([w] if weighted else [])]
        loss = 0.01 * sums.square().mean() + values.square().mean()
        once = torch.autograd.grad(loss, leaves, create_graph=True)
        twice = torch.autograd.grad(torch.stack([g.double().square().mean() for g in once]).sum(), leaves)
        found.append((sums, values, *once, *twice))
    for mine, true in zip(*found, strict=True):
        assert relative_error(mine, true) < (1e-5 if dtype == torch.float32 else 5e-3)
    assert set(called) == {"power_sums", "polynomial"}


@pytest.mark.parametrize("size", [1e-4, 0.5, 5.0, 12.0])
def test_envelope_of_any_size(size):
    x = torch.full((1, 1, 2, 8), size, device=DEVICE)
    sums = series.power_sums(x, None, 2, 0, 0.5, True)
    assert relative_error(sums, series.power_sums(x.double(), None, 2, 0, 0.5)) < 1e-5  # exp rounds what is large


@pytest.mark.parametrize("most", [64, 4], ids=["added up by each program", "added up once"])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_operator_shares_a_group_out(most, layout, monkeypatch):
    monkeypatch.setattr(operator, "BLOCK", 32)
    monkeypatch.setattr(operator, "PARTS", most)
    operator.make_plan.cache_clear()
    check((2, 8, 9, 9), [layout] * 3, KERNELS["rbf-paper"])
    operator.make_plan.cache_clear()


def test_operator_gives_the_same_bits_each_time():
    inputs = [draw(2, 16, 40, 40, dtype=torch.float16) for _ in range(3)]
    first, *others = (call(inputs, "fused", kernel="rbf", groups=2) for _ in range(3))
    assert all(torch.equal(first, other) for other in others)


def test_operator_has_derivatives_of_higher_order():
    inputs = [draw(2, 4, 3, 3).requires_grad_() for _ in range(3)]
    found = []
    for backend in ("fused", "reference"):
        y = call(inputs, backend, kernel="embedded_gaussian")
        once = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(torch.stack([t.square().sum() for t in once]).sum(), inputs))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_operator_keeps_weights_whose_square_float32_cannot_hold():
    inputs = [torch.full((1, 1, 4), value, device=DEVICE) for value in (1e3, 1e10, 1e20)]
    y = call(inputs, "fused", kernel=kernels.Taylor([0, 1e-46]))
    torch.testing.assert_close(y, torch.full_like(y, 4e-13), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kernel": kernels.EmbeddedGaussian(9)}, "order 9"),
    ],
)
def test_operator_says_why_it_takes_the_reference(options, says):
    inputs = [draw(2, 4, 3) for _ in range(3)]
    assert torch.equal(call(inputs, "auto", **options), call(inputs, "reference", **options))
    with pytest.raises(ValueError, match=rf'backend="fused" is not possible: .*{says}'):
        call(inputs, "fused", **options)


def test_operator_in_float64_takes_the_reference():
    inputs = [draw(2, 4, 3, dtype=torch.float64) for _ in range(3)]
    assert torch.equal(call(inputs, "auto"), call(inputs, "reference"))
    with pytest.raises(ValueError, match=r"no kernels for torch\.float64"):
        call(inputs, "fused")


def test_auto_takes_the_kernels(monkeypatch):
    called = []
    monkeypatch.setattr(fused, "compact_generalized_non_local", lambda theta, *_, **__: (called.append(1), theta)[1])
    inputs = [draw(2, 4, 3) for _ in range(3)]
    assert call(inputs, "auto") is inputs[0]
    assert call(inputs, "reference") is not inputs[0]
    assert len(called) == 1
