import math
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cgnl.kernels import Dot, EmbeddedGaussian, GaussianRBF, Kernel, Taylor
from cgnl.ops import (
    affinity,
    compact_generalized_non_local,
    generalized_non_local,
    non_local,
    non_local_affinity,
)
from tests.conftest import EXACT, ROUNDING, relative_error

ORDER, GAMMA = 2, 0.3
HALF = (torch.float16, torch.bfloat16)
POSITIONS = {"1d": (3,), "2d": (2, 3), "3d": (2, 1, 2)}

KERNELS: dict[str, Kernel] = {
    "dot": Dot(),
    "embedded_gaussian": EmbeddedGaussian(ORDER),
    **{f"rbf-{beta}": GaussianRBF(ORDER, GAMMA, beta) for beta in ("paper", "norm", "exact")},
    "taylor": Taylor([0.5, 0, 2]),
    "taylor-from-2": Taylor([0, 0, 1.5, 1]),
    "taylor-constant": Taylor([2]),
}
# Series that have converged to the float64 floor where |theta|, |phi| <= 1.
CONVERGED: dict[str, Kernel] = {
    "dot": Dot(),
    "embedded_gaussian": EmbeddedGaussian(18),
    **{f"rbf-{beta}": GaussianRBF(18, 0.5, beta) for beta in ("paper", "norm", "exact")},
    "taylor": Taylor([0.5, 0, 2]),
    "taylor-from-2": Taylor([0, 0, 1.5, 1]),
}


def can_normalize(kernel: Kernel) -> bool:
    return kernel.coefficients()[0] > 0


def draw(shape, dtype=torch.float64):
    """theta, phi, g between -1 and 1."""
    return [(2 * torch.rand(shape, dtype=torch.float64) - 1).to(dtype) for _ in range(3)]


def truncated_exp(x):
    return sum(x**p / math.factorial(p) for p in range(ORDER + 1))


def f(name, exp, t, p, norms):
    """f(theta_i, phi_j) of a kernel, with ``exp`` the function itself or its series; norms = |theta|^2 + |phi|^2."""
    match name:
        case "dot":
            return t * p
        case "embedded_gaussian":
            return exp(t * p)
        case "rbf-paper":
            return math.exp(-2 * GAMMA) * exp(2 * GAMMA * t * p)
        case "rbf-norm":
            return math.exp(-GAMMA * norms) * exp(2 * GAMMA * t * p)
        case "rbf-exact":
            return math.exp(-GAMMA * (t * t + p * p)) * exp(2 * GAMMA * t * p)
        case "taylor":
            return 0.5 + 2 * (t * p) ** 2
        case "taylor-from-2":
            return 1.5 * (t * p) ** 2 + (t * p) ** 3
        case "taylor-constant":
            return 2.0


def pairwise_matrices(theta, phi, name, exp, groups):
    """f of every theta_i and phi_j of a group, one at a time: [B, G, NC', NC']."""
    theta, phi = (x.reshape(len(x) * groups, -1).tolist() for x in (theta, phi))
    matrices = []
    for t, p in zip(theta, phi, strict=True):
        norms = sum(v * v for v in t + p)
        matrices.append([[f(name, exp, ti, pj, norms) for pj in p] for ti in t])
    return torch.tensor(matrices, dtype=torch.float64).unflatten(0, (-1, groups))


def with_gradients(operator, *inputs) -> list[torch.Tensor]:
    """The output, and the gradients of a fixed linear function of it."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = operator(*leaves)
    weight = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, weight)]


def worst_error(actual, expected) -> float:
    return max(relative_error(a, e) for a, e in zip(actual, expected, strict=True))


def cases(kernels):
    """Every kernel, without and where allowed with normalize."""
    return pytest.mark.parametrize(
        ("name", "normalize"),
        [
            pytest.param(name, normalize, id=f"{name}-normalized" if normalize else name)
            for name, kernel in kernels.items()
            for normalize in ((False, True) if can_normalize(kernel) else (False,))
        ],
    )


every_kernel = pytest.mark.parametrize("name", KERNELS)
every_ndim = pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
every_groups = pytest.mark.parametrize("groups", [1, 2], ids="groups={}".format)
every_normalize = pytest.mark.parametrize("normalize", [False, True], ids=["sums", "normalized"])


@pytest.mark.parametrize("kernel", ["embedded_gaussian", "dot"])
@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("fewer", [False, True], ids=["same-positions", "fewer-positions"])
@every_ndim
def test_non_local_equals_its_formula(kernel, scale, fewer, positions):
    theta, phi, g = draw((2, 4, *positions))
    if fewer:
        phi, g = phi[..., :-1], g[..., 1:]
    logits = torch.einsum("bcn,bcm->bnm", theta.flatten(2), phi.flatten(2))
    if kernel == "embedded_gaussian":
        weights = torch.exp(logits / (math.sqrt(4) if scale else 1))
        weights = weights / weights.sum(-1, keepdim=True)
    else:
        weights = logits / (math.prod(phi.shape[2:]) if scale else 1)
    truth = torch.einsum("bnm,bcm->bcn", weights, g.flatten(2)).view(theta.shape)
    assert relative_error(non_local(theta, phi, g, kernel=kernel, scale=scale), truth) < EXACT


@pytest.mark.parametrize("kernel", ["embedded_gaussian", "dot"])
def test_non_local_gradients(kernel):
    theta, phi, g = (x.requires_grad_() for x in draw((1, 2, 3)))
    assert torch.autograd.gradcheck(
        lambda t, p, v: non_local(t, p[..., :2], v[..., :2], kernel=kernel), (theta, phi, g)
    )


@pytest.mark.parametrize(
    ("form", "exp"), [(generalized_non_local, math.exp), (compact_generalized_non_local, truncated_exp)]
)
@pytest.mark.parametrize("scale", [None, "sqrt", "resolution"])
@cases(KERNELS)
@every_ndim
@every_groups
def test_both_forms_equal_the_explicit_matrix(form, exp, scale, name, positions, groups, normalize):
    theta, phi, g = draw((2, 4, *positions))
    n, matrices = math.prod(positions), pairwise_matrices(theta, phi, name, exp, groups)
    if normalize:
        matrices = matrices / matrices.sum(-1, keepdim=True)
    factor = {None: 1, "sqrt": 1 / math.sqrt(n * 4 / groups), "resolution": 784 / n}[scale]
    truth = factor * (matrices @ g.reshape(2, groups, -1, 1)).view(theta.shape)
    y = form(theta, phi, g, kernel=KERNELS[name], groups=groups, scale=scale, normalize=normalize)
    assert relative_error(y, truth) < EXACT


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 3),
    groups=st.integers(1, 3),
    positions=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    name=st.sampled_from(list(CONVERGED)),
    normalize=st.booleans(),
    scale=st.sampled_from([None, "sqrt", "resolution"]),
    seed=st.integers(0, 99),
)
def test_compact_equals_exact(batch, channels, groups, positions, name, normalize, scale, seed):
    torch.manual_seed(seed)
    inputs = draw((batch, channels * groups, *positions))
    kernel = CONVERGED[name]
    options = {"kernel": kernel, "groups": groups, "scale": scale, "normalize": normalize and can_normalize(kernel)}
    exact = with_gradients(lambda *x: generalized_non_local(*x, **options), *inputs)
    compact = with_gradients(lambda *x: compact_generalized_non_local(*x, **options), *inputs)
    assert relative_error(compact[0], exact[0]) < EXACT
    assert all((a - e).norm() <= EXACT * max(1, e.norm()) for a, e in zip(compact, exact, strict=True))


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda x: x.to(memory_format=torch.channels_last), id="channels_last"),
        pytest.param(lambda x: x.transpose(1, 3).contiguous().transpose(1, 3), id="transposed"),
        pytest.param(lambda x: x.repeat_interleave(2, -1)[..., ::2], id="sliced"),
        pytest.param(lambda x: x.repeat_interleave(2, 1)[:, ::2], id="sliced-channels"),
        pytest.param(lambda x: x[:, :, :1].expand_as(x), id="expanded"),
        pytest.param(lambda x: x[:1, :1].expand_as(x), id="expanded-channels"),
    ],
)
@pytest.mark.parametrize("name", ["dot", "rbf-exact", "rbf-norm"])
def test_compact_takes_any_strides(layout, name):
    inputs, options = draw((2, 4, 3, 2)), {"kernel": CONVERGED[name], "groups": 2}
    exact = with_gradients(lambda *x: generalized_non_local(*(layout(t).contiguous() for t in x), **options), *inputs)
    compact = with_gradients(lambda *x: compact_generalized_non_local(*(layout(t) for t in x), **options), *inputs)
    assert worst_error(compact, exact) < EXACT


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("positions", [(3, 5), (2, 3, 5)], ids=["2d", "3d"])
@cases(KERNELS)
def test_compact_keeps_channels_last(name, dtype, positions, normalize):
    format = torch.channels_last if len(positions) == 2 else torch.channels_last_3d
    theta, phi, g = (x.to(memory_format=format) for x in draw((2, 4, *positions), dtype))
    y = compact_generalized_non_local(theta, phi, g, kernel=KERNELS[name], groups=2, normalize=normalize)
    assert y.is_contiguous(memory_format=format)


@pytest.mark.parametrize(
    "of_order",
    [
        pytest.param(EmbeddedGaussian, id="embedded_gaussian"),
        pytest.param(lambda order: GaussianRBF(order, 0.5, "exact"), id="rbf-exact"),
        pytest.param(lambda order: GaussianRBF(order, 0.5, "paper"), id="rbf-paper"),
        pytest.param(lambda order: GaussianRBF(order, 0.5, "norm"), id="rbf-norm"),
    ],
)
@every_normalize
def test_compact_error_falls_with_the_order(of_order, normalize):
    inputs, orders = draw((2, 4, 3, 3)), range(0, 17, 2 if normalize else 1)
    exact = generalized_non_local(*inputs, kernel=of_order(2), groups=2, normalize=normalize)
    errors = [
        relative_error(
            compact_generalized_non_local(*inputs, kernel=of_order(order), groups=2, normalize=normalize), exact
        )
        for order in orders
    ]
    assert all(b < a or a < ROUNDING[torch.float64] for a, b in pairwise(errors))
    assert errors[0] > 1e-3
    assert errors[-1] < ROUNDING[torch.float64]


@cases(KERNELS)
@every_ndim
@every_groups
def test_compact_gradients(name, positions, groups, normalize):
    inputs = [x.requires_grad_() for x in draw((1, 2, *positions[:-1], 2))]
    assert torch.autograd.gradcheck(
        lambda *x: compact_generalized_non_local(*x, kernel=KERNELS[name], groups=groups, normalize=normalize), inputs
    )


@pytest.mark.parametrize(
    ("name", "normalize"), [("dot", False), ("rbf-exact", True), ("rbf-norm", False), ("taylor", True)]
)
def test_compact_second_gradients(name, normalize):
    inputs = [x.requires_grad_() for x in draw((1, 2, 2))]
    assert torch.autograd.gradgradcheck(
        lambda *x: compact_generalized_non_local(*x, kernel=KERNELS[name], normalize=normalize), inputs
    )


@cases(CONVERGED)
@pytest.mark.parametrize("scale", [None, "sqrt"])
@every_groups
def test_compact_gradients_equal_those_of_the_exact_form(name, scale, groups, normalize):
    options = {"kernel": CONVERGED[name], "groups": groups, "scale": scale, "normalize": normalize}
    inputs = draw((2, 4, 2, 3))
    exact = with_gradients(lambda *x: generalized_non_local(*x, **options), *inputs)
    assert worst_error(with_gradients(lambda *x: compact_generalized_non_local(*x, **options), *inputs), exact) < EXACT


OPERATORS = {
    "non_local-softmax": non_local,
    "non_local-dot": partial(non_local, kernel="dot"),
    "generalized": partial(generalized_non_local, kernel=GaussianRBF(gamma=0.5), groups=2),
    "compact-dot": partial(compact_generalized_non_local, groups=2),
    **{
        f"compact-rbf-{beta}": partial(compact_generalized_non_local, kernel=GaussianRBF(3, 0.1, beta), groups=2)
        for beta in ("paper", "norm", "exact")
    },
    "compact-normalized": partial(
        compact_generalized_non_local, kernel=GaussianRBF(3, 0.5, "exact"), groups=2, normalize=True
    ),
}
WITHOUT_G = {
    "affinity": lambda t, p, g: affinity(torch.cat([t, g]), torch.cat([p, g]), (2,), kernel=GaussianRBF(beta="norm")),
}
every_operator = pytest.mark.parametrize("operator", (OPERATORS | WITHOUT_G).values(), ids=OPERATORS | WITHOUT_G)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@every_operator
def test_operators_round_once_or_twice(operator, dtype):
    inputs = draw((2, 4, 35), dtype)
    results = with_gradients(operator, *inputs)
    assert all(r.dtype == dtype for r in results)
    truth = with_gradients(operator, *(x.double() for x in inputs))
    assert relative_error(results[0], truth[0]) < 2 * ROUNDING[dtype]
    assert worst_error(results[1:], truth[1:]) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operators_return_the_dtype_of_g(operator):
    theta, phi, g = draw((2, 4, 3))
    inputs = theta.float(), phi.half(), g.bfloat16()
    y = operator(*inputs)
    assert y.dtype == torch.bfloat16
    assert relative_error(y, operator(*(x.double() for x in inputs))) < 2 * ROUNDING[torch.bfloat16]


@every_operator
def test_operators_keep_their_precision_under_autocast(operator):
    inputs = draw((2, 4, 9), torch.float32)
    truth = operator(*(x.double() for x in inputs))
    with torch.autocast("cpu", torch.bfloat16):
        y = operator(*inputs)
    assert y.dtype == torch.float32
    softmax = operator is non_local  # scaled_dot_product_attention follows autocast, as in any other network
    assert relative_error(y, truth) < 2 * ROUNDING[torch.bfloat16 if softmax else torch.float32]


MANY = 70_000  # more than the largest float16, 65504


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        pytest.param(lambda x: compact_generalized_non_local(x, x, x, scale="sqrt"), math.sqrt(MANY), id="sqrt"),
        pytest.param(lambda x: compact_generalized_non_local(x, x, x, scale="resolution"), 784, id="resolution"),
        pytest.param(lambda x: compact_generalized_non_local(x / 64, x, x), MANY / 64, id="small-theta"),
        pytest.param(
            lambda x: compact_generalized_non_local(x, x, x, kernel=EmbeddedGaussian(2), normalize=True),
            1,
            id="normalized",
        ),
        pytest.param(
            lambda x: compact_generalized_non_local(x, x, x, kernel=EmbeddedGaussian(2), scale="sqrt"),
            2.5 * math.sqrt(MANY),
            id="embedded_gaussian",
        ),
        pytest.param(lambda x: non_local(x[..., :3], x, x, kernel="dot"), 1, id="non_local-dot"),
        pytest.param(lambda x: non_local(x[..., :3], x, x), 1, id="non_local-softmax"),
    ],
)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_sums_accumulate_in_float32(operator, value, dtype):
    y = operator(torch.ones(1, 1, MANY, dtype=dtype))
    assert relative_error(y, torch.full(y.shape, value, dtype=torch.float64)) < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_gradients_accumulate_in_float32(dtype):
    ones = [torch.ones(1, 1, MANY, dtype=dtype, requires_grad=True) for _ in range(3)]
    compact_generalized_non_local(*ones, scale="sqrt").backward(torch.ones_like(ones[0]))
    for x in ones:
        assert x.grad is not None
        assert relative_error(x.grad, torch.full(x.shape, math.sqrt(MANY))) < ROUNDING[dtype]


def saved_bytes(kernel: Kernel, inputs) -> int:
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        compact_generalized_non_local(*inputs, kernel=kernel, groups=2)
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}.values())


@pytest.mark.parametrize("beta", ["paper", "norm", "exact"])
@pytest.mark.parametrize("order", [3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compact_saves_no_stack_of_powers(beta, order, dtype):
    inputs = [x.requires_grad_() for x in draw((2, 4, 16, 16), dtype)]
    dot = saved_bytes(Dot(), inputs)
    assert dot <= 1.1 * sum(x.nbytes for x in inputs)
    assert saved_bytes(GaussianRBF(order, 0.5, beta), inputs) <= 2 * dot


@every_kernel
@every_ndim
@every_groups
def test_affinity_rows_are_those_of_the_explicit_matrix(name, positions, groups):
    theta, phi, g = draw((2, 4, *positions))
    options = {"kernel": KERNELS[name], "groups": groups}
    matrices = pairwise_matrices(theta, phi, name, truncated_exp, groups)
    matrices = matrices.view(2, 4, *positions, 4 // groups, *positions)
    at = tuple(n - 1 for n in positions)
    rows = matrices[(slice(None), slice(None), *at)]
    assert relative_error(affinity(theta, phi, at, **options), rows) < EXACT
    for channel in range(4):
        assert relative_error(affinity(theta, phi, (channel, *at), **options), rows[:, channel]) < EXACT
    y = compact_generalized_non_local(theta, phi, g, **options)[(..., *at)]
    per_group = g.unflatten(1, (groups, -1)).repeat_interleave(4 // groups, 1)
    from_rows = (affinity(theta, phi, at, **options) * per_group).flatten(2).sum(2)
    assert relative_error(from_rows, y) < EXACT


@pytest.mark.parametrize("at", [(1, 0), (3, 1, 0)], ids=["position", "channel"])
@pytest.mark.parametrize("name", ["dot", "rbf-norm", "rbf-exact"])
def test_affinity_gradients(at, name):
    theta, phi, _ = (x.requires_grad_() for x in draw((1, 4, 2, 1)))
    assert torch.autograd.gradcheck(lambda t, p: affinity(t, p, at, kernel=KERNELS[name], groups=2), (theta, phi))


@every_kernel
@every_ndim
def test_empty_batches_pass_through(name, positions):
    kernel, x = KERNELS[name], torch.zeros(0, 4, *positions, requires_grad=True)
    at = (0,) * len(positions)
    y = compact_generalized_non_local(x, x, x, kernel=kernel, groups=2)
    (gradient,) = torch.autograd.grad(y, x, torch.zeros_like(y))
    assert y.shape == gradient.shape == x.shape
    assert generalized_non_local(x, x, x, kernel=kernel, groups=2).shape == x.shape
    assert non_local(x, x[..., :1], x[..., :1], kernel="dot").shape == x.shape
    assert non_local(x, x[..., :1], x[..., :1]).shape == x.shape
    assert affinity(x, x, at, kernel=kernel, groups=2).shape == (0, 4, 2, *positions)
    assert affinity(x, x, (3, *at), kernel=kernel, groups=2).shape == (0, 2, *positions)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


FORMS = {
    "non_local": non_local,
    "generalized": generalized_non_local,
    "compact": compact_generalized_non_local,
    "affinity": lambda t, p, g, **options: affinity(t, p, (0,) * (t.ndim - 2), **options),  # noqa: ARG005
}
X = zeros(2, 6, 4)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        pytest.param([zeros(2, 6)] * 3, r"1, 2 or 3 position axes.*theta \[2, 6\]", id="2-D"),
        pytest.param([zeros(1, 2, 1, 1, 1, 1)] * 3, r"theta \[1, 2, 1, 1, 1, 1\]", id="6-D"),
        pytest.param([X.int()] * 3, "floating-point.*torch.int32", id="integers"),
        pytest.param([X.numpy()] * 3, "expected tensors, got ndarray, ndarray, ndarray", id="arrays"),
        pytest.param([X, *[zeros(3, 6, 4)] * 2], r"theta \[2, 6, 4\], phi \[3, 6, 4\]", id="batches"),
        pytest.param([X, *[zeros(2, 4, 4)] * 2], r"theta \[2, 6, 4\], phi \[2, 4, 4\]", id="channels"),
        pytest.param([X, *[zeros(2, 6, 4, 1)] * 2], r"theta \[2, 6, 4\], phi \[2, 6, 4, 1\]", id="axes"),
        pytest.param([zeros(2, 6, 0)] * 3, r"at least one channel and one position.*\[2, 6, 0\]", id="no-positions"),
        pytest.param([zeros(2, 0, 4)] * 3, r"at least one channel and one position.*\[2, 0, 4\]", id="no-channels"),
    ],
)
def test_operators_refuse_inputs(form, inputs, says):
    with pytest.raises(ValueError, match=rf"\A.*{says}.*\Z"):
        form(*inputs)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        *(
            pytest.param(
                lambda form=form, groups=groups: form(X, X, X, groups=groups),
                f"channels = 6 is not divisible by groups = {groups}",
                id=f"{name}-groups={groups}",
            )
            for name, form in FORMS.items()
            if name != "non_local"
            for groups in (4, 0, -2)
        ),
        *(
            pytest.param(lambda form=form: form(X, X, X, kernel="gaussian"), "unknown kernel 'gaussian'", id=name)
            for name, form in FORMS.items()
        ),
        *(
            pytest.param(lambda form=form: form(X, X, X, scale="mean"), "scale must be.*got 'mean'", id=f"{name}-scale")
            for name, form in FORMS.items()
            if name in ("generalized", "compact")
        ),
        *(
            pytest.param(
                lambda form=form, kernel=kernel: form(X, X, X, kernel=kernel, normalize=True),
                r"normalize=True needs alpha_0\^2 > 0",
                id=f"{name}-normalize-{kernel}",
            )
            for name, form in FORMS.items()
            if name in ("generalized", "compact")
            for kernel in ("dot", Taylor([0, 1]))
        ),
        pytest.param(
            lambda: compact_generalized_non_local(X, X, X, kernel=EmbeddedGaussian(3), normalize=True),
            "needs an even order, got order = 3",
            id="normalize-odd-order",
        ),
        *(
            pytest.param(
                lambda scale=scale: non_local(X, X, X, scale=cast(Any, scale)),
                "must be True or False",
                id=f"non_local-{scale}",
            )
            for scale in ("sqrt", 0.5, None)
        ),
        *(
            pytest.param(
                lambda operation=operation: operation(X, X, X, scale="energy"),
                'scale="energy" is only for the block CGNL',
                id=f"{operation.__name__}-energy",
            )
            for operation in (compact_generalized_non_local, generalized_non_local)
        ),
        pytest.param(
            lambda: compact_generalized_non_local(X, X, X, groups=2.0),  # pyright: ignore[reportArgumentType]
            r"groups must be a whole number, got 2\.0",
            id="groups-2.0",
        ),
        *(
            pytest.param(lambda at=at: affinity(X, X, cast(Any, at)), "at must be whole numbers", id=f"at={at}")
            for at in (1, None, (1.0,))
        ),
        pytest.param(lambda: generalized_non_local(X, X[..., :2], X[..., :2]), r"\[2, 6, 4\].*\[2, 6, 2\]", id="fewer"),
        pytest.param(lambda: non_local(X, X, X[..., :2]), r"phi \[2, 6, 4\], g \[2, 6, 2\]", id="non_local-g"),
        pytest.param(lambda: non_local(X, X[..., :0], X[..., :0]), r"at least one.*phi \[2, 6, 0\]", id="non_local-0"),
        *(
            pytest.param(
                lambda at=at: affinity(X, X, at), rf"at = \({at[0] if at else ''}.*\[4\].*\[6, 4\]", id=f"at={at}"
            )
            for at in ((), (4,), (-1,), (6, 0), (-1, 0), (0, 4), (0, 0, 0))
        ),
    ],
)
def test_operators_refuse_arguments(call, says):
    with pytest.raises(ValueError, match=rf"\A.*{says}.*\Z"):
        call()


def test_generalized_normalized_rows_need_no_constant():
    """That of beta="norm" is the same for all of a row, and may be zero in float32."""
    theta, phi, g = (5 * torch.randn(3, 1, 4, 4, 4)).unbind()
    kernel = GaussianRBF(order=2, gamma=0.1, beta="norm")
    y = generalized_non_local(theta, phi, g, kernel=kernel, normalize=True)
    flat = [t.double().flatten() for t in (theta, phi, g)]
    rows = torch.softmax(0.2 * flat[0][:, None] * flat[1], -1)
    assert relative_error(y.flatten(), rows @ flat[2]) < 10 * ROUNDING[torch.float32]


def test_generalized_normalizes_the_exact_exponential_whatever_the_order():
    theta, phi, g = draw((1, 2, 3))
    odd, even = (generalized_non_local(theta, phi, g, kernel=EmbeddedGaussian(p), normalize=True) for p in (3, 2))
    assert torch.equal(odd, even)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=["float64", "float16"])
def test_non_local_on_many_positions_is_the_same_softmax(dtype):
    theta, phi, g = torch.randn(3, 2, 4, 1100, dtype=dtype).unbind()
    query, key, value = (t.double().transpose(1, 2) for t in (theta, phi, g))
    expected = torch.softmax(query @ key.transpose(1, 2) / 2, -1) @ value
    assert relative_error(non_local(theta, phi, g), expected.transpose(1, 2)) < 4 * ROUNDING[dtype]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("kernel", ["embedded_gaussian", "dot"])
def test_non_local_affinity_is_a_row_of_the_operation(kernel, scale):
    theta, phi = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 2, 5, dtype=torch.float64)
    g = torch.eye(10, dtype=torch.float64).expand(2, -1, -1).unflatten(2, (2, 5))  # y is then the matrix itself
    y = torch.stack([non_local(theta, phi, g[:, c : c + 3], kernel=kernel, scale=scale)[:, 0] for c in range(8)], 1)
    row = non_local_affinity(theta, phi, (3, 1), kernel=kernel, scale=scale)
    assert row.shape == (2, 2, 5)
    assert relative_error(row.flatten(1)[:, :8], y[..., 3, 1]) < EXACT


@pytest.mark.parametrize("at", [(4, 0), (0, -1), (0,), (0, 1, 1)])
def test_non_local_affinity_refuses_a_position(at):
    x = torch.randn(1, 3, 4, 5)
    with pytest.raises(ValueError, match=r"is no position in \[4, 5\]$"):
        non_local_affinity(x, x, at)


@pytest.mark.parametrize("form", [compact_generalized_non_local, generalized_non_local])
@pytest.mark.parametrize("value", [11.0, -30.0])
def test_normalized_exact_rbf_is_a_mean_where_its_terms_underflow(form, value):
    """exp(-121) is zero in float32."""
    theta, phi = torch.full((2, 1, 4, 3, 3), value, requires_grad=True).unbind()
    g = torch.randn(1, 4, 3, 3, requires_grad=True)
    y = form(theta, phi, g, kernel=GaussianRBF(3, gamma=1.0, beta="exact"), normalize=True)
    torch.testing.assert_close(y, g.mean().expand_as(y))
    assert all(t.isfinite().all() for t in torch.autograd.grad(y.square().sum(), (theta, phi, g)))


@pytest.mark.parametrize("kernel", [EmbeddedGaussian(2), GaussianRBF(2, 1.0, "exact"), GaussianRBF(2, 1.0)], ids=str)
def test_normalized_exact_form_is_a_softmax(kernel):
    theta, phi, g = 30 * torch.randn(3, 2, 4, 3, 3)
    y = generalized_non_local(theta, phi, g, kernel=kernel, normalize=True)
    wide = (t.double() for t in (theta, phi, g))
    torch.testing.assert_close(y, generalized_non_local(*wide, kernel=kernel, normalize=True).float())
    assert y.abs().max() <= g.abs().max()


@pytest.mark.parametrize("order", [9, 30, 80, 1000])
@pytest.mark.parametrize(("theta", "phi"), [(0.01, 20.0), (20.0, 0.01), (3.0, 3.0), (-2.0, 2.0)])
def test_long_series_are_finite_where_the_truth_is(theta, phi, order):
    """Powers of 20 leave float32 at 30."""
    kernel, values = EmbeddedGaussian(order), (theta, phi, 1.0)
    wide = with_gradients(
        partial(compact_generalized_non_local, kernel=Taylor(kernel.coefficients()[:170])),
        *(torch.full((1, 1, 4), value, dtype=torch.float64) for value in values),
    )
    found = with_gradients(
        partial(compact_generalized_non_local, kernel=kernel), *(torch.full((1, 1, 4), value) for value in values)
    )
    assert worst_error(found, wide) < 1e-5
    if order >= 80:
        assert found[0][0, 0].tolist() == pytest.approx([4 * math.exp(theta * phi)] * 4, rel=1e-5)
        row = affinity(torch.full((1, 1, 4), theta), torch.full((1, 1, 4), phi), (0, 0), kernel=kernel)
        assert row[0, 0].tolist() == pytest.approx([math.exp(theta * phi)] * 4, rel=1e-5)
