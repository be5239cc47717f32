import copy
import dataclasses
import itertools
import math
import re

import pytest
import torch

import cgnl
from cgnl.kernels import Dot, EmbeddedGaussian, GaussianRBF, Kernel, Taylor
from cgnl.ops.kernels import parse, resolve, spell
from tests.conftest import EXACT, relative_error

GAMMA = 0.3
# kernel of some order, f in plain Python
LIMITS = {
    "embedded_gaussian": (EmbeddedGaussian, lambda t, p: math.exp(t * p)),
    "rbf-paper": (lambda order: GaussianRBF(order, GAMMA), lambda t, p: math.exp(2 * GAMMA * (t * p - 1))),
    "rbf-norm": (lambda order: GaussianRBF(order, GAMMA, "norm"), lambda t, p: math.exp(2 * GAMMA * t * p)),
    "rbf-exact": (lambda order: GaussianRBF(order, GAMMA, "exact"), lambda t, p: math.exp(-GAMMA * (t - p) ** 2)),
}


def series(kernel: Kernel, theta, phi):
    product = sum(c * (theta * phi) ** p for p, c in enumerate(kernel.coefficients()))
    return product * torch.exp(-kernel.envelope * (theta**2 + phi**2))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        pytest.param(Dot(), (0.0, 1.0), id="dot"),
        pytest.param(EmbeddedGaussian(), (1.0, 1.0, 1 / 2, 1 / 6), id="embedded_gaussian"),
        pytest.param(EmbeddedGaussian(order=0), (1.0,), id="order-0"),
        pytest.param(
            GaussianRBF(order=2, gamma=GAMMA),
            tuple(math.exp(-2 * GAMMA) * (2 * GAMMA) ** p / math.factorial(p) for p in range(3)),
            id="rbf-paper",
        ),
        pytest.param(GaussianRBF(2, GAMMA, "norm"), (1.0, 2 * GAMMA, 2 * GAMMA**2), id="rbf-norm"),
        pytest.param(GaussianRBF(2, GAMMA, "exact"), (1.0, 2 * GAMMA, 2 * GAMMA**2), id="rbf-exact"),
        pytest.param(Taylor([0, 2, 0.5]), (0.0, 2.0, 0.5), id="taylor"),
        pytest.param(Taylor(torch.tensor([0.25, 1.0])), (0.25, 1.0), id="taylor-tensor"),
    ],
)
def test_coefficients_are_alpha_squared(kernel, expected):
    assert kernel.coefficients() == pytest.approx(expected, rel=1e-15)
    assert all(isinstance(c, float) for c in kernel.coefficients())


@pytest.mark.parametrize("kernel", [EmbeddedGaussian(180), GaussianRBF(180), GaussianRBF(180, 1.0, "exact")], ids=str)
def test_coefficients_stay_finite_at_high_order(kernel):
    assert all(math.isfinite(c) and c >= 0 for c in kernel.coefficients())


@pytest.mark.parametrize(("of_order", "f"), LIMITS.values(), ids=LIMITS)
def test_exact_is_the_limit_of_the_series(of_order, f):
    theta, phi = torch.linspace(-1, 1, 9, dtype=torch.float64), torch.linspace(1, -0.5, 9, dtype=torch.float64)
    truth = torch.tensor([f(t, p) for t, p in zip(theta.tolist(), phi.tolist(), strict=True)], dtype=torch.float64)
    assert relative_error(of_order(1).exact(theta, phi), truth) < EXACT
    assert relative_error(series(of_order(16), theta, phi), truth) < EXACT


@pytest.mark.parametrize("kernel", [Dot(), Taylor([0.5, 0, 2]), Taylor([3])], ids=str)
def test_exact_of_a_polynomial_is_its_series(kernel):
    theta, phi = torch.randn(2, 5, dtype=torch.float64)
    assert relative_error(kernel.exact(theta, phi), series(kernel, theta, phi)) < EXACT


def test_exact_broadcasts():
    theta, phi = torch.randn(3, 1), torch.randn(4)
    for kernel in (Dot(), EmbeddedGaussian(), GaussianRBF(), Taylor([1])):
        assert kernel.exact(theta, phi).shape == (3, 4)


def test_envelope_and_constant_belong_to_one_beta_each():
    assert [(k.envelope, k.constant) for k in (GaussianRBF(3, GAMMA, b) for b in ("paper", "norm", "exact"))] == [
        (0, 0),
        (0, GAMMA),
        (GAMMA, 0),
    ]
    assert all(k.envelope == k.constant == 0 for k in (Dot(), EmbeddedGaussian(), Taylor([1])))


@pytest.mark.parametrize("kernel", [Dot(), EmbeddedGaussian(), GaussianRBF(), Taylor([1, 2])], ids=str)
def test_kernels_are_frozen_values(kernel):
    assert len({kernel, copy.deepcopy(kernel)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.order = 5


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("dot", Dot()), ("embedded_gaussian", EmbeddedGaussian(order=3)), ("rbf", GaussianRBF(3, 1e-4, "paper"))],
)
def test_resolve_knows_names_and_objects(name, kernel):
    assert resolve(name) == kernel
    assert resolve(kernel) is kernel


def test_kernels_are_public_as_cgnl_kernels():
    assert cgnl.kernels.GaussianRBF is GaussianRBF
    assert set(cgnl.kernels.__all__) == {"Dot", "EmbeddedGaussian", "GaussianRBF", "Kernel", "Taylor"}


@pytest.mark.parametrize(
    "kernel",
    [EmbeddedGaussian(2), GaussianRBF(3), GaussianRBF(2, 1.0, "norm"), GaussianRBF(2, 1.0, "exact"), Taylor([1, 1])],
    ids=str,
)
def test_check_normalize_allows(kernel):
    kernel.check_normalize()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        pytest.param(lambda: EmbeddedGaussian(order=-1), "order = -1", id="negative-order"),
        pytest.param(lambda: GaussianRBF(order=-2), "order = -2", id="rbf-negative-order"),
        pytest.param(lambda: EmbeddedGaussian(order=2.5), r"order = 2\.5", id="fractional-order"),  # pyright: ignore[reportArgumentType]
        pytest.param(lambda: EmbeddedGaussian(order="3"), "order = '3'", id="order-text"),  # pyright: ignore[reportArgumentType]
        pytest.param(lambda: GaussianRBF(gamma="a"), "gamma = 'a'", id="gamma-text"),  # pyright: ignore[reportArgumentType]
        pytest.param(lambda: Taylor(3), "coefficients must be numbers, got 3", id="coefficients-number"),
        pytest.param(lambda: Taylor([None]), r"coefficients must be numbers, got \[None\]", id="coefficients-none"),
        pytest.param(lambda: Taylor(["abc"]), "coefficients must be numbers", id="coefficients-text"),
        pytest.param(lambda: Taylor("12"), "coefficients must be numbers, got '12'", id="coefficients-one-text"),
        pytest.param(lambda: EmbeddedGaussian(order=True), "order = True", id="order-truth"),
        pytest.param(lambda: GaussianRBF(3, 1e200, "exact"), r"gamma = 1e\+200", id="gamma-leaving-infinities"),
        pytest.param(lambda: GaussianRBF(gamma=0.0), r"gamma = 0\.0", id="zero-gamma"),
        pytest.param(lambda: GaussianRBF(gamma=-0.5), r"gamma = -0\.5", id="negative-gamma"),
        pytest.param(lambda: GaussianRBF(gamma=math.inf), "gamma = inf", id="infinite-gamma"),
        pytest.param(lambda: GaussianRBF(gamma=math.nan), "gamma = nan", id="nan-gamma"),
        pytest.param(lambda: GaussianRBF(gamma=400.0), r"gamma = 400\.0", id="gamma-leaving-only-zeros"),
        pytest.param(lambda: GaussianRBF(beta="unit"), "got 'unit'", id="beta"),  # pyright: ignore[reportArgumentType]
        pytest.param(lambda: Taylor([1, -0.5]), r"got \(1\.0, -0\.5\)", id="negative-coefficient"),
        pytest.param(lambda: Taylor([]), r"got \(\)", id="no-coefficients"),
        pytest.param(lambda: Taylor([0, 0]), r"got \(0\.0, 0\.0\)", id="all-zero-coefficients"),
        pytest.param(lambda: Taylor([math.nan]), "got .nan", id="nan-coefficient"),
        pytest.param(
            lambda: resolve("gaussian"), "unknown kernel 'gaussian'; did you mean embedded_gaussian", id="name"
        ),
        pytest.param(lambda: resolve(None), "None", id="no-kernel"),  # pyright: ignore[reportArgumentType]
        pytest.param(lambda: Dot().check_normalize(), r"Dot\(\) has alpha_0\^2 = 0", id="normalize-dot"),
        pytest.param(lambda: Taylor([0, 1]).check_normalize(), r"Taylor\(.*alpha_0\^2 = 0", id="normalize-taylor"),
        pytest.param(lambda: EmbeddedGaussian(3).check_normalize(), "order = 3", id="normalize-odd-order"),
    ],
)
def test_kernels_refuse(build, says):
    with pytest.raises(ValueError, match=rf"\A.*{says}.*\Z"):
        build()


TEXTS = {
    "dot": Dot(),
    "embedded_gaussian:order=2": EmbeddedGaussian(2),
    "rbf:order=4,gamma=0.01,beta=exact": GaussianRBF(4, 1e-2, "exact"),
    "rbf:order=3,gamma=1e-05,beta=norm": GaussianRBF(gamma=1e-5, beta="norm"),
    "taylor:0.0,1.0,0.5": Taylor([0, 1, 0.5]),
}


@pytest.mark.parametrize(("text", "kernel"), TEXTS.items(), ids=TEXTS)
def test_text_is_a_kernel_and_a_kernel_is_text(text, kernel):
    assert spell(kernel) == text
    assert parse(text) == resolve(text) == cgnl.CGNL(16, kernel=text).kernel == kernel


def test_parse_fills_in_defaults():
    assert parse("rbf") == GaussianRBF()
    assert parse("rbf:beta=exact,") == GaussianRBF(beta="exact")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rfb", "unknown kernel 'rfb'; did you mean rbf?"),
        ("", "unknown kernel ''; there is dot, embedded_gaussian, rbf, taylor"),
        ("rbf:ordr=3", "'ordr=3' is no option of the kernel rbf; did you mean order?"),
        ("rbf:order", "'order' is no option of the kernel rbf; did you mean order?"),
        ("rbf:order=x", "order of the kernel rbf must be a number, got 'x'"),
        ("rbf:beta=odd", 'beta must be "paper", "norm" or "exact", got \'odd\''),
        ("dot:order=1", "'order=1' is no option of the kernel dot; there is none"),
        ("taylor", "coefficients must be finite, at least 0 and not all 0, got ()"),
        ("taylor:1,a", "a coefficient of the kernel taylor must be a number, got 'a'"),
    ],
)
def test_parse_names_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(text)


def test_spell_refuses_a_kernel_without_a_name():
    @dataclasses.dataclass(frozen=True)
    class Mine(Dot):
        pass

    with pytest.raises(ValueError, match="has no name"):
        spell(Mine())


@pytest.mark.parametrize("coefficients", [[1.0] * 1002, itertools.repeat(1.0)], ids=["list", "endless"])
def test_taylor_has_the_highest_order_of_the_others(coefficients):
    assert len(Taylor([1.0] * 1001).coefficients()) == 1001
    with pytest.raises(ValueError, match="at most 1001 coefficients"):
        Taylor(coefficients)
