import math
from itertools import pairwise

import pytest
import torch

from cgnl.ops import bilinear_pool, compact_pool, covariance_pool, matrix_square_root
from cgnl.ops.pooling import FLATTEST, MOST_ITERATIONS, signed_square_root
from tests.conftest import EXACT, ROUNDING, relative_error

HALF = (torch.float16, torch.bfloat16)
POOLS = {"bilinear": bilinear_pool, "covariance": covariance_pool, "compact": lambda x: compact_pool(x, x.flip(1))}
every_pool = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
every_ndim = pytest.mark.parametrize("positions", [(5,), (2, 3), (2, 1, 2)], ids=["1d", "2d", "3d"])


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def matrices(size: int, condition: float, count: int = 2) -> torch.Tensor:
    """Random symmetric matrices with eigenvalues from 1 to 1 / condition."""
    rotation, _ = torch.linalg.qr(draw(count, size, size))
    values = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    return rotation @ torch.diag(values) @ rotation.mT


def exact_root(a: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(a)
    return vectors @ torch.diag_embed(values.clamp_min(0).sqrt()) @ vectors.mT


@every_ndim
def test_bilinear_pool_is_the_pairwise_dot_product_of_x_transposed(positions):
    x = draw(2, 4, *positions)
    truth = [[[sum(a * b for a, b in zip(p, q, strict=True)) for q in s] for p in s] for s in x.flatten(2).tolist()]
    assert relative_error(bilinear_pool(x), torch.tensor(truth, dtype=torch.float64)) < EXACT


@every_ndim
def test_covariance_pool_is_that_of_torch(positions):
    x = draw(3, 4, *positions) + 5
    truth = torch.stack([torch.cov(sample.flatten(1), correction=0) for sample in x])
    assert relative_error(covariance_pool(x), truth) < EXACT


@every_ndim
def test_compact_pool_is_the_mean_of_products(positions):
    phi, g = draw(2, 4, *positions), draw(2, 4, *positions)
    pairs = zip(phi.flatten(2).tolist(), g.flatten(2).tolist(), strict=True)
    truth = [
        [sum(a * b for a, b in zip(p, q, strict=True)) / len(p) for p, q in zip(s, t, strict=True)] for s, t in pairs
    ]
    assert relative_error(compact_pool(phi, g), torch.tensor(truth, dtype=torch.float64)) < EXACT


def test_compact_pool_is_the_diagonal_of_bilinear_pooling():
    x = draw(2, 4, 3, 5)
    assert relative_error(15 * compact_pool(x, x), bilinear_pool(x).diagonal(dim1=1, dim2=2)) < EXACT


@every_pool
def test_pools_have_gradients(pool):
    assert torch.autograd.gradcheck(pool, (draw(2, 4, 2, 3).requires_grad_(),))


@every_pool
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_pools_round_once(pool, dtype):
    x = draw(2, 4, 35, dtype=dtype)
    assert pool(x).dtype == dtype
    assert relative_error(pool(x), pool(x.double())) < 2 * ROUNDING[dtype]


@every_pool
def test_pools_keep_their_precision_under_autocast(pool):
    x = draw(2, 4, 35, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = pool(x)
    assert y.dtype == torch.float32
    assert relative_error(y, pool(x.double())) < 2 * ROUNDING[torch.float32]


def test_pools_sum_in_float32():
    many = 70_000  # more than the largest float16
    x = torch.full((1, 2, many), 0.5, dtype=torch.float16)
    assert relative_error(bilinear_pool(x), torch.full((1, 2, 2), many / 4)) < ROUNDING[torch.float16]
    assert relative_error(compact_pool(x, x), torch.full((1, 2), 0.25)) < ROUNDING[torch.float16]


def test_covariance_does_not_lose_small_differences_beside_a_large_mean():
    x = draw(2, 4, 50, dtype=torch.float32)
    far = x + 2.0**12
    assert relative_error(covariance_pool(far), covariance_pool(far.double())) < 1e-5


@pytest.mark.parametrize("value", [0.0, 0.1, 1e3])
def test_covariance_of_a_constant_map_is_exactly_zero(value):
    x = torch.full((2, 3, 7, 7), value, requires_grad=True)
    root = matrix_square_root(covariance_pool(x))
    root.sum().backward()
    assert x.grad is not None
    assert root.count_nonzero() == x.grad.count_nonzero() == 0


def test_covariance_of_one_position_is_zero():
    assert covariance_pool(draw(2, 3, 1, 1)).count_nonzero() == 0


@every_pool
def test_pools_take_a_batch_of_zero(pool):
    x = torch.zeros(0, 4, 3, requires_grad=True)
    y = pool(x)
    y.sum().backward()
    assert y.shape[0] == 0
    assert x.grad is not None
    assert x.grad.shape == x.shape


@every_pool
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 0), (2, 0, 6), (2, 6, 1, 1, 1, 1)], ids=str)
def test_pools_refuse_what_is_no_map(pool, shape):
    with pytest.raises(ValueError, match=rf"\[{', '.join(map(str, shape))}\]"):
        pool(torch.zeros(shape))


def test_compact_pool_refuses_maps_of_other_shapes():
    with pytest.raises(ValueError, match=r"\[2, 4, 3\].*\[2, 4, 2\]"):
        compact_pool(torch.zeros(2, 4, 3), torch.zeros(2, 4, 2))


@pytest.mark.parametrize("condition", [1, 1e2, 1e4])
@pytest.mark.parametrize("size", [2, 16, 64])
def test_square_root_converges_to_that_of_eigh(size, condition):
    a = matrices(size, condition)
    errors = [relative_error(matrix_square_root(a, k), exact_root(a)) for k in range(1, 26)]
    assert errors[-1] < 1e-8
    assert all(after < before or before < 1e-12 for before, after in pairwise(errors))


def test_square_root_of_five_iterations_is_what_they_come_to():
    a = matrices(5, 30)
    trace = a.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    y, z = a / trace, torch.eye(5, dtype=a.dtype).expand_as(a)
    for _ in range(5):
        w = 1.5 * torch.eye(5, dtype=a.dtype) - 0.5 * z @ y
        y, z = y @ w, w @ z
    assert relative_error(matrix_square_root(a), trace.sqrt() * y) < EXACT


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 8])
def test_square_root_has_the_gradient_of_its_iterations(iterations):
    x = draw(2, 4, 6).requires_grad_()

    def root(x):
        return matrix_square_root(x @ x.mT, iterations)

    assert torch.autograd.gradcheck(root, (x,))
    assert torch.autograd.gradgradcheck(root, (x,))


def test_square_root_has_the_gradient_of_each_entry_on_its_own():
    a = matrices(4, 10).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: matrix_square_root(a, 4), (a,))


def test_square_root_keeps_its_input_alone():
    a = matrices(16, 10).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        matrix_square_root(a)
    assert kept == [a.shape]


def test_square_root_of_forward_mode_and_vmap():
    a = matrices(4, 10, count=3)
    direction = matrices(4, 3, count=3)
    slope = torch.func.jvp(matrix_square_root, (a,), (direction,))[1]
    step = 1e-6
    numeric = (matrix_square_root(a + step * direction) - matrix_square_root(a - step * direction)) / (2 * step)
    assert relative_error(slope, numeric) < 1e-6
    stacked = torch.stack([a, 2 * a])
    assert (
        relative_error(torch.vmap(matrix_square_root)(stacked), torch.stack([*map(matrix_square_root, stacked)]))
        < EXACT
    )


@pytest.mark.parametrize("iterations", [5, MOST_ITERATIONS])
def test_square_root_in_float32_with_fewer_positions_than_channels(iterations):
    x = draw(2, 64, 20, dtype=torch.float32).relu()
    a = covariance_pool(x)
    root = matrix_square_root(a, iterations)
    assert root.dtype == torch.float32
    assert relative_error(root, matrix_square_root(a.double(), iterations)) < 1e-3


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_square_root_is_float32_at_least(dtype):
    a = matrices(8, 10).to(dtype)
    root = matrix_square_root(a)
    assert root.dtype == torch.float32
    assert relative_error(root, matrix_square_root(a.double())) < 1e-5
    x = matrices(8, 10).float().requires_grad_()
    with torch.autocast("cpu", dtype):
        inside = matrix_square_root(x)
        (gradient,) = torch.autograd.grad(inside, x, torch.ones_like(inside))
    wide = x.detach().double().requires_grad_()
    truth = matrix_square_root(wide)
    (expected,) = torch.autograd.grad(truth, wide, torch.ones_like(truth))
    assert relative_error(inside, truth) < 1e-5
    assert relative_error(gradient, expected) < 1e-5


def test_square_root_scales_with_the_root_of_the_scale():
    a = matrices(6, 50)
    for factor in (1e-20, 1e20):
        assert relative_error(matrix_square_root(factor * a), math.sqrt(factor) * matrix_square_root(a)) < EXACT


@pytest.mark.parametrize("exponent", [64, 100, 126])
def test_square_root_of_matrices_whose_trace_overflows(exponent):
    """Beside an ordinary one; and scaled by a power of four, so that the result is the same to the last bit."""
    a = torch.cat([matrices(6, 50, count=1), torch.eye(6, dtype=torch.float64)[None]]).float()
    a /= a.abs().amax((1, 2), keepdim=True)
    power = torch.tensor([2.0**exponent, 1.0])[:, None, None]
    large = (power * a).requires_grad_()
    root, ordinary = matrix_square_root(large), matrix_square_root(a.requires_grad_())
    assert torch.equal(root, power.sqrt() * ordinary)
    (gradient,) = torch.autograd.grad(root, large, torch.arange(72.0).view_as(a))
    (expected,) = torch.autograd.grad(ordinary, a, torch.arange(72.0).view_as(a))
    assert torch.equal(gradient, expected / power.sqrt())
    vectors = torch.func.vmap(matrix_square_root)(large.detach()[:, None])
    assert torch.equal(vectors[:, 0], root)


def test_square_root_of_large_matrices_has_the_gradient_of_its_iterations():
    def root(a):
        return matrix_square_root(a * 2.0**80) / 2.0**40

    a = matrices(4, 10).requires_grad_()
    assert torch.autograd.gradcheck(root, (a,))
    assert torch.autograd.gradgradcheck(root, (a,))


def test_square_root_of_zero_beside_others_is_zero():
    a = torch.cat([matrices(4, 10, count=1), torch.zeros(1, 4, 4, dtype=torch.float64)]).requires_grad_()
    root = matrix_square_root(a)
    (gradient,) = torch.autograd.grad(root.sum(), a)
    assert root[1].count_nonzero() == gradient[1].count_nonzero() == 0
    assert relative_error(root[:1], matrix_square_root(a[:1])) < EXACT
    assert gradient.isfinite().all()
    assert matrix_square_root(a[:0]).shape == (0, 4, 4)


def test_square_root_compiles():
    a = matrices(8, 10).requires_grad_()
    compiled = torch.compile(matrix_square_root, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(matrix_square_root(a).square().sum(), a)
    (gradient,) = torch.autograd.grad(compiled(a).square().sum(), a)
    assert relative_error(gradient, expected) < EXACT


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4, 4), (2, 0, 0), (1, 2, 3, 3)], ids=str)
def test_square_root_refuses_what_is_not_square(shape):
    with pytest.raises(ValueError, match=rf"square.*\[{', '.join(map(str, shape))}\]"):
        matrix_square_root(torch.zeros(shape))


@pytest.mark.parametrize(
    ("iterations", "dtype"),
    [(0, torch.float64), (-1, torch.float32), (21, torch.float32), (21, torch.bfloat16), (2.0, torch.float64)],
)
def test_square_root_refuses_numbers_of_iterations(iterations, dtype):
    with pytest.raises(ValueError, match=f"iterations.*{iterations}"):
        matrix_square_root(torch.eye(3, dtype=dtype)[None], iterations)


def test_square_root_refuses_whole_numbers():
    with pytest.raises(ValueError, match="int64"):
        matrix_square_root(torch.eye(3, dtype=torch.int64)[None])


def test_signed_square_root_is_exact():
    x = torch.tensor([[-4.0, 0.0, 9.0, 1e-12]])
    assert signed_square_root(x).tolist() == [[-2.0, 0.0, 3.0, pytest.approx(1e-6)]]


def test_signed_square_root_has_the_gradient_of_entries_that_are_not_small():
    x = (draw(3, 8).sign() * (0.5 + draw(3, 8).abs())).requires_grad_()
    assert torch.autograd.gradcheck(signed_square_root, (x,))
    assert torch.autograd.gradgradcheck(signed_square_root, (x,))


def test_signed_square_root_has_no_steep_slope_at_zero():
    x = torch.tensor([[0.0, 1e-30, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(signed_square_root(x).sum(), x)
    steepest = 0.5 / math.sqrt(FLATTEST * 1.0)  # the mean size is 1
    assert slope[0].tolist() == pytest.approx([steepest, steepest, 0.5 / math.sqrt(2), 0.5 / math.sqrt(2)])
    assert slope.isfinite().all()


@pytest.mark.parametrize("operation", [matrix_square_root, signed_square_root])
def test_compiled_gradients_are_those_of_the_operations(operation):
    """Also where autograd alone would find an infinite slope."""
    a = torch.diag_embed(torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 4.0]])).requires_grad_()
    (expected,) = torch.autograd.grad(operation(a).sum(), a)
    compiled = torch.compile(operation, fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(a).sum(), a)
    assert expected.isfinite().all()
    torch.testing.assert_close(gradient, expected)
