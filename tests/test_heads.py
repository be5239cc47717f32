import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cgnl
from cgnl.heads import KINDS, second_order_pools
from tests.conftest import EXACT, ROUNDING, relative_error

every_kind = pytest.mark.parametrize("kind", KINDS)
every_ndim = pytest.mark.parametrize("ndim", [1, 2, 3])


def head(kind: str, channels: int = 16, reduced: int = 6, **options) -> cgnl.SecondOrderPool:
    return cgnl.SecondOrderPool(channels, reduced, kind=kind, **options)


def plain(pool: cgnl.SecondOrderPool, x: torch.Tensor) -> torch.Tensor:
    """What the docstring says, one sample after the other, by other functions of torch."""
    if pool.kind == "compact":
        weights = (pool.state_dict()[f"{name}.weight"].flatten(1) for name in ("phi", "g"))
        phi, g = (torch.einsum("oc,bcn->bon", weight, x.flatten(2)) for weight in weights)
        y = torch.einsum("bon,bon->bo", phi, g) / phi.shape[2]
        return pool.norm(y.sign() * y.abs().sqrt())
    rows = F.relu(pool.norm(pool.reduce(x))).flatten(2)
    i, j = torch.triu_indices(pool.reduced, pool.reduced)
    if pool.kind == "bilinear":
        y = torch.einsum("bin,bjn->bij", rows, rows)[:, i, j]
        y = y.sign() * y.abs().sqrt()
        return y / y.norm(dim=1, keepdim=True)
    cov = torch.stack([torch.cov(sample, correction=0) for sample in rows])
    values, vectors = torch.linalg.eigh(cov)
    return (vectors @ torch.diag_embed(values.clamp_min(0).sqrt()) @ vectors.mT)[:, i, j]


@every_kind
@every_ndim
@pytest.mark.parametrize("training", [True, False])
def test_head_is_what_it_says(kind, ndim, training):
    pool = head(kind, ndim=ndim, iterations=25, dtype=torch.float64).train(training)
    x = torch.randn(3, 16, *(5, 4, 3)[:ndim], dtype=torch.float64)
    y = pool(x)
    assert y.shape == (3, pool.features)
    assert relative_error(y, plain(pool, x)) < EXACT ** (0.6 if kind == "covariance" else 1)


@pytest.mark.parametrize(("kind", "features"), [("covariance", 21), ("bilinear", 21), ("compact", 6)])
def test_features_are_the_products(kind, features):
    assert head(kind).features == features


def test_bilinear_has_unit_length():
    assert head("bilinear")(torch.randn(3, 16, 4, 4)).norm(dim=1).tolist() == pytest.approx([1, 1, 1])


@every_kind
def test_every_parameter_learns(kind):
    pool = head(kind)
    (pool(torch.randn(4, 16, 5, 5)) * torch.randn(pool.features)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.count_nonzero() for p in pool.parameters())


@every_kind
def test_gradients(kind):
    x = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    pool = head(kind, channels=4, reduced=3, ndim=1, dtype=torch.float64)
    assert torch.autograd.gradcheck(pool, (x,))


@every_kind
@pytest.mark.parametrize("value", [0.0, 0.1, 1e3])
@pytest.mark.parametrize("training", [True, False])
def test_constant_maps_have_finite_outputs_and_gradients(kind, value, training):
    pool = head(kind).train(training)
    x = torch.full((2, 16, 3, 3), value, requires_grad=True)
    y = pool(x)
    y.sum().backward()
    assert x.grad is not None
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    if kind == "covariance" and value < 1e3:  # there, the norm makes much of how the convolution rounds
        assert y.abs().max() < 1e-3


@every_kind
def test_fewer_positions_than_channels(kind):
    pool = head(kind, 64, 32).eval()
    for size in (1, 2):
        x = torch.randn(2, 64, size, size, requires_grad=True)
        y = pool(x)
        y.square().sum().backward()
        assert x.grad is not None
        assert y.isfinite().all()
        assert x.grad.isfinite().all()


@every_kind
def test_batch_of_zero_has_all_parameters_in_its_graph(kind):
    pool = head(kind)
    y = pool(torch.zeros(0, 16, 3, 3))
    y.sum().backward()
    assert y.shape == (0, pool.features)
    assert all(p.grad is not None for p in pool.parameters())


@pytest.mark.parametrize(("kind", "size"), [("covariance", 1), ("bilinear", 1), ("compact", 1), ("compact", 3)])
def test_single_value_cannot_train_a_norm(kind, size):
    pool = head(kind)
    x = torch.randn(1, 16, size, size)
    with pytest.raises(ValueError, match=r"BatchNorm.*SyncBatchNorm"):
        pool(x)
    assert pool.eval()(x).isfinite().all()


@pytest.mark.parametrize("kind", ["covariance", "bilinear"])
def test_one_sample_with_many_positions_trains(kind):
    assert head(kind)(torch.randn(1, 16, 3, 3)).isfinite().all()


@every_kind
def test_autocast_with_large_values(kind):
    """From the reduced channels on in float32; the whole no worse than plain code in the same dtype."""
    pool = head(kind, 64, 24).train()
    x = 1e3 * torch.randn(4, 64, 14, 14)
    wide = copy.deepcopy(pool).double()
    truth = wide(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        y, theirs = pool(x), plain(copy.deepcopy(pool), x)
        maps = pool.factors(x)
        rest = pool.pool(*maps)
        after = rest if kind == "compact" else pool.vectorize(rest)
    assert y.dtype == torch.float32
    assert y.isfinite().all()
    exact = wide.pool(*(m.double() for m in maps))
    exact = exact if kind == "compact" else wide.vectorize(exact)
    assert maps[0].dtype == torch.bfloat16
    assert relative_error(after, exact) < 1e-3
    reference = plain(copy.deepcopy(wide), x.double())
    assert relative_error(y, truth) <= 2 * relative_error(theirs, reference) + 1e-6


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_weights_give_half_precision(kind, dtype):
    pool = head(kind).eval()
    x = torch.randn(2, 16, 5, 5).to(dtype)
    low = copy.deepcopy(pool).to(dtype)(x)
    assert low.dtype == dtype
    assert relative_error(low, pool(x.float())) < 16 * ROUNDING[dtype]


@every_kind
def test_compiled_head_is_the_same(kind):
    pool = head(kind).eval()
    x = torch.randn(2, 16, 5, 5)
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    assert relative_error(compiled(x), pool(x)) < 1e-5


@every_kind
@pytest.mark.parametrize("size", [1, 4])
def test_compiled_head_has_the_same_gradients(kind, size):
    """Those of the Functions, and not what autograd makes of a square root at zero."""
    torch.compiler.reset()  # or so many heads are too many for it
    pool, gradients = head(kind), []
    drawn = torch.cat([torch.zeros(1, 16, size, size), torch.randn(2, 16, size, size)])
    for call in (pool, torch.compile(pool, fullgraph=True, backend="aot_eager")):
        x = drawn.clone().requires_grad_()
        found = torch.autograd.grad(call(x).square().sum(), [x, *pool.parameters()])
        gradients.append(torch.cat([gradient.flatten() for gradient in found]))
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


@every_kind
def test_fx_takes_a_head_for_one_layer(kind):
    model = nn.Sequential(nn.Conv2d(3, 16, 1), head(kind)).eval()
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(2, 3, 4, 4)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1"]
    assert torch.equal(traced(x), model(x))


def test_second_order_pools_are_found_by_name():
    model = nn.ModuleDict({"a": nn.Conv2d(3, 4, 1), "b": nn.Sequential(head("compact"))})
    assert list(second_order_pools(model)) == ["b.0"]


def test_sync_batch_norm_takes_the_place_of_the_norm():
    pool = nn.SyncBatchNorm.convert_sync_batchnorm(head("compact"))
    assert isinstance(pool.norm, nn.SyncBatchNorm)
    assert pool.eval()(torch.randn(1, 16, 3, 3)).shape == (1, 6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "trilinear"}, "trilinear.*covariance, bilinear, compact"),
        ({"kind": "average"}, "average.*covariance"),
        ({"reduced": 1}, "reduced = 1"),
        ({"reduced": 17}, "reduced = 17.*16"),
        ({"reduced": 17, "kind": "bilinear"}, "reduced = 17.*16"),
        ({"reduced": 2.0}, r"reduced.*2\.0"),
        ({"channels": 0}, "channels = 0"),
        ({"ndim": 4}, "ndim = 4"),
        ({"iterations": 0}, "iterations = 0"),
        ({"iterations": 21}, "iterations = 21"),
    ],
    ids=str,
)
def test_head_refuses_arguments(options, says):
    with pytest.raises(ValueError, match=says):
        cgnl.SecondOrderPool(**({"channels": 16, "reduced": 6} | options))


def test_compact_may_have_more_products_than_channels():
    assert head("compact", 16, 100)(torch.randn(2, 16, 3, 3)).shape == (2, 100)


@every_kind
@pytest.mark.parametrize("shape", [(2, 16, 3), (2, 8, 3, 3), (2, 16, 0, 3), (2, 16, 1, 1, 1)], ids=str)
def test_head_refuses_inputs(kind, shape):
    with pytest.raises(ValueError, match=r"\[B, 16, H, W\].*\["):
        head(kind)(torch.zeros(shape))


def test_repr_says_what_it_is():
    assert "reduced=6, kind='covariance', iterations=5, features=21" in repr(head("covariance"))


def test_kaiming_weights_keep_the_size_of_a_map():
    pool = cgnl.SecondOrderPool(512, 256)
    y = pool.reduce(torch.randn(2, 512, 9, 9))
    assert float(y.detach().std()) == pytest.approx(math.sqrt(2), rel=0.1)
