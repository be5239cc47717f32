"""The gated field: its bounds by other ways than they are derived, and a small one from start to end."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from torch import Generator, nn
from torch.distributions import MultivariateNormal

from cgnl import CGNL
from cgnl.atomic_io import write_csv
from cgnl.experiments import gated_field as module
from cgnl.experiments.gated_field import (
    ARMS,
    OUTPUTS,
    RHO,
    TITLES,
    Arm,
    GlobalContext,
    SqueezeExcitation,
    accuracy,
    best_of_lines,
    best_of_positions,
    best_of_rank,
    conclude,
    draw,
    from_csv,
    gated_field,
    markdown,
    read_rows,
    train,
)

BY_NAME = {(arm.name, arm.contrast): arm for arm in ARMS}


@pytest.fixture
def small(monkeypatch):
    """Make maps and trainings smaller; call it with other constants of the module."""

    def call(**constants):
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)

    return call


def test_draw_hides_the_sign_in_a_correlation():
    x, target = draw(400, Generator().manual_seed(0))
    assert x.shape == (400, 18, 24, 24)
    assert target.shape == (400, 16, 24, 24)
    products = (x[:, 0] * x[:, 1]).mean((1, 2))  # [400]
    assert products[1::2].mean() == pytest.approx(RHO, abs=0.01)
    assert products[::2].mean() == pytest.approx(-RHO, abs=0.01)
    assert torch.equal(target[1::2] > 0, x[1::2, 2:] > 0)
    assert torch.equal(target[::2] > 0, x[::2, 2:] < 0)
    assert x.var((0, 2, 3)).numpy() == pytest.approx(np.ones(18), abs=0.02)
    assert x[:, 0].mean((1, 2)).var() == pytest.approx(1 / 576, rel=0.3)


def test_contrast_multiplies_whole_samples():
    x, target = (draw(50, Generator().manual_seed(0), contrast) for contrast in (0.0, 0.5))
    size = (target[0] / x[0]).flatten(1)
    assert torch.allclose(size, size[:, :1].expand_as(size), rtol=1e-3)
    assert size[:, 0].log().std() == pytest.approx(0.5, abs=0.15)
    assert torch.equal(x[1], target[1])


@pytest.mark.parametrize(("positions", "expected"), [(1, 53.83), (2, 56.0), (9, 63.74), (576, 99.81)])
def test_bound_of_positions(positions, expected):
    """The likelihood ratio's own guess, of many samples."""
    assert best_of_positions(positions) == pytest.approx(expected, abs=0.005)
    rng = np.random.default_rng(0)
    plus, minus = (c * rng.chisquare(positions, 400_000) for c in (1 + RHO, 1 - RHO))  # sums of (a +- b)^2 / 2, s = 1
    assert 100 * (plus > minus).mean() == pytest.approx(best_of_positions(positions), abs=0.25)


def test_bound_of_one_and_two_positions_in_closed_form():
    ratio = (1 + RHO) / (1 - RHO)
    assert best_of_positions(1) == pytest.approx(200 / math.pi * math.atan(math.sqrt(ratio)))
    assert best_of_positions(2) == pytest.approx(50 * (1 + RHO))


def test_likelihood_ratio_is_monotone_in_the_sum_of_products(small):
    """log p(a, b | s = 1) - log p(a, b | s = -1) = 2 RHO / (1 - RHO^2) sum a b."""
    small(SIDE=5)
    x, _ = draw(6, Generator().manual_seed(1))
    pairs = x[:, :2].double().flatten(2).transpose(1, 2)  # [6, N, 2]
    of = {s: torch.tensor([[1, s * RHO], [s * RHO, 1]], dtype=torch.float64) for s in (1, -1)}
    plus, minus = (MultivariateNormal(torch.zeros(2).double(), of[s]).log_prob(pairs).sum(1) for s in (1, -1))
    assert torch.allclose(plus - minus, 2 * RHO / (1 - RHO**2) * pairs.prod(-1).sum(1))


def test_two_gaussians_agree_in_sign_as_the_arcsine_says():
    for r in (0.0, math.sqrt(2 / 16), 0.9):
        integral, _ = quad(lambda u, r=r: stats.norm.pdf(u) * stats.norm.cdf(r * u / math.sqrt(1 - r * r)), 0, np.inf)
        assert 2 * integral == pytest.approx(0.5 + math.asin(r) / math.pi)


def line_accuracy(a: float, b: float, offset: float) -> float:
    """Of the sign of u + a times the first and b times the second channel + offset, by integration."""

    def right(s: int) -> float:
        spread = math.sqrt(a * a + b * b + 2 * RHO * s * a * b)
        agree, _ = quad(
            lambda u: (
                stats.norm.pdf(u) * (stats.norm.cdf((u + offset) / spread) + stats.norm.cdf((u - offset) / spread))
            ),
            0,
            np.inf,
        )
        return agree

    return 50 * (right(1) + 1 - right(-1))


def test_bound_of_lines():
    assert best_of_lines() == pytest.approx(50.96, abs=0.005)
    t = 1 / math.sqrt(2 * math.sqrt(1 - RHO**2))
    assert line_accuracy(t, -t, 0) == pytest.approx(best_of_lines())
    for a, b, offset in ((t, -t, 0.3), (t, -t, 2), (2 * t, -t, 0), (t, t, 0), (0.5 * t, -0.5 * t, 0), (t, -t, 0.05)):
        assert line_accuracy(a, b, offset) < best_of_lines()


def rank_two() -> np.ndarray:
    """A projection of rank two whose diagonal is 2 / 16 everywhere."""
    angles = 2 * math.pi * np.arange(OUTPUTS) / OUTPUTS
    frame = np.stack([np.cos(angles), np.sin(angles)]) * math.sqrt(2 / OUTPUTS)  # [2, 16]
    return frame.T @ frame


def matrix_accuracy(a: np.ndarray, b: np.ndarray) -> float:
    """Of the signs of (a + s b) u, by the arcsine formula."""
    cosines = [np.diag(m) / np.linalg.norm(m, axis=1) for m in (b + a, b - a)]
    return 50 + 100 * float(np.mean(np.arcsin(cosines))) / math.pi


def test_bound_of_rank_two_is_reached_and_not_passed():
    b = rank_two()
    assert np.linalg.matrix_rank(b) == 2
    assert matrix_accuracy(np.zeros_like(b), b) == pytest.approx(61.50, abs=0.005)
    assert best_of_rank(2) == pytest.approx((100 + 61.5027) / 2, abs=1e-3)
    assert matrix_accuracy(1e-6 * np.eye(OUTPUTS) - b, b) == pytest.approx(best_of_rank(2), abs=1e-3)
    rng = np.random.default_rng(0)
    for _ in range(200):
        near = b + 0.3 * rng.random() * rng.standard_normal((OUTPUTS, 2)) @ rng.standard_normal((2, OUTPUTS))
        left, size, right = np.linalg.svd(near)
        low = (left[:, :2] * size[:2]) @ right[:2]
        a = rng.random() * np.eye(OUTPUTS) - low + 0.1 * rng.random() * rng.standard_normal((OUTPUTS, OUTPUTS))
        assert matrix_accuracy(a, low) < best_of_rank(2)


def test_equal_shares_of_a_plane_are_best():
    """The sum of arcsin sqrt(t_c) over 16 channels with sum t_c = 2: k at 1, one at t, and the rest equal."""

    def total(k: int, t: float) -> float:
        rest = (2 - k - t) / (OUTPUTS - k - 1)
        return sum(n * math.asin(math.sqrt(v)) for n, v in ((k, 1.0), (1, t), (OUTPUTS - k - 1, rest)))

    equal = total(0, 2 / OUTPUTS)
    assert 75 + 50 * equal / OUTPUTS / math.pi == pytest.approx(best_of_rank(2))
    assert all(total(k, t) <= equal + 1e-12 for k in (0, 1) for t in np.linspace(0, 1, 201))


def test_formula_of_the_signs_is_what_samples_give():
    b = rank_two()
    a = 0.1 * np.eye(OUTPUTS) - b
    rng = np.random.default_rng(0)
    u = rng.standard_normal((100_000, OUTPUTS))
    right = [((u @ (a + s * b).T > 0) == (s * u > 0)).mean() for s in (1, -1)]
    assert 100 * np.mean(right) == pytest.approx(matrix_accuracy(a, b), abs=0.2)


def test_attention_is_the_means_and_the_trace_of_a_covariance():
    phi, g = torch.randn(2, 3, 50, dtype=torch.float64) + 0.5  # [C', N]
    of_means = phi.mean(1) @ g.mean(1)
    covariance = (phi - phi.mean(1, keepdim=True)) @ (g - g.mean(1, keepdim=True)).T / 50
    assert (phi * g).sum().item() == pytest.approx(50 * (of_means + covariance.trace()).item())


def test_softmax_over_gaussian_keys_is_the_covariance_times_the_query():
    """What softmax NL and global context see without end of positions: E[x exp(q x)] / E[exp(q x)] = Sigma q."""
    rng, q = np.random.default_rng(0), np.array([0.5, -0.3])
    sigma = np.array([[1, RHO], [RHO, 1]])
    x = rng.multivariate_normal([0, 0], sigma, 1_000_000)
    weights = np.exp(x @ q)
    assert (weights[:, None] * x).sum(0) / weights.sum() == pytest.approx(sigma @ q, abs=0.01)


def by_hand() -> nn.Sequential:
    """theta = u, phi = a and g = b in every group: s u_c."""
    block: Any = CGNL(32, 16, groups=8, norm=None)
    stem, head = nn.Conv2d(18, 32, 1, bias=False), nn.Conv2d(32, 16, 1, bias=False)
    with torch.no_grad():
        for layer in (stem, head, block.theta, block.phi, block.g, block.z):
            layer.weight.zero_()
        stem.weight[:18, :, 0, 0] = torch.eye(18)
        block.theta.weight[:, 2:18, 0, 0] = torch.eye(16)
        block.phi.weight[:, 0] = 1
        block.g.weight[:, 1] = 1
        for c in range(16):
            block.z.weight[4 * (c // 2) + c % 2, c % 2] = 1e6  # beside which the input is nothing
            head.weight[c, 4 * (c // 2) + c % 2] = 1
    return nn.Sequential(stem, block, head).eval()


def test_cgnl_computes_the_field_exactly():
    found = accuracy(by_hand(), Arm("by hand", CGNL), 500, seed=5)
    assert found == pytest.approx(best_of_positions(576), abs=0.6)


@pytest.mark.parametrize("make", [SqueezeExcitation, GlobalContext])
def test_pooled_blocks_see_no_order_of_positions(make):
    torch.manual_seed(0)
    block, x = make(8), torch.randn(2, 8, 3, 4)
    turned = block(x.flip(2, 3)).flip(2, 3)
    assert torch.allclose(block(x), turned, atol=1e-6)
    assert block(x).shape == x.shape


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: f"{arm.name}-{arm.contrast:g}")
def test_every_arm_learns_a_step_again_the_same(arm, small):
    small(SIDE=4, STEPS=2)
    nets = [train(arm, 1e-2, seed=3) for _ in range(2)]
    values = [accuracy(net, arm, 60, 1) for net in nets]
    assert values[0] == values[1]
    assert 40 < values[0] < 60
    assert arm.bound is None or 50 < arm.bound() < 100


def test_cgnl_learns_the_field_and_a_linear_network_does_not(small):
    """With a larger correlation and a smaller map."""
    small(RHO=0.9, SIDE=8, STEPS=60)
    cgnl, none = (
        accuracy(train(BY_NAME[name, 0], 1e-2, 0), BY_NAME[name, 0], 100, 1) for name in ("CGNL, 1 group", "none")
    )
    assert cgnl > 85
    assert none == pytest.approx(50, abs=2)


def test_gated_field_from_start_to_end(tmp_path, capsys, small):
    arms = (BY_NAME["NL, dot", 0], BY_NAME["CGNL, 8 groups", 0], BY_NAME["CGNL, 8 groups", 0.5])
    small(ARMS=arms, SIDE=4, STEPS=3, CHOICE_SAMPLES=6, TEST_SAMPLES=8)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    written = gated_field(tmp_path / "new", seeds=2)
    assert [path.name for path in written] == ["gated_field.csv", "gated_field.md", "environment.json"]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said] == ["NL, dot", "CGNL, 8 groups", "CGNL, 8 groups, contrast 0.5"]

    about = json.loads(written[2].read_text())
    assert about["command"] == "cgnl reproduce gated-field --seeds 2"
    assert {"commit", "packages", "seconds", "threads"} <= set(about)

    text = written[1].read_text()
    assert "not what networks cannot do" in " ".join(text.split())
    written[1].unlink()
    assert from_csv(written[0]) == [written[1]]
    assert written[1].read_text() == text


def test_gated_field_refuses_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken cannot be written to"):
        gated_field(tmp_path / "taken")


HEAD = ",".join(f'"{title}"' for title in TITLES)
ROWS = [
    ["none", "-", "50.01", "0.02", "50.96", "50.00 50.02", "0.003", "2.5"],
    ["global context", "-", "50.30", "-", "-", "50.30", "0.01", "3.0"],
    ["CGNL, 1 group", "-", "99.10", "0.10", "99.81", "99.00 99.20", "0.01", "6.0"],
    ["CGNL, 8 groups", "-", "98.40", "0.10", "99.81", "98.30 98.50", "0.01", "6.0"],
    ["CGNL, 8 groups, group norm", "-", "62.00", "0.10", "99.81", "62.00 62.00", "0.01", "6.0"],
    ["CGNL, 8 groups", "0.5", "78.00", "0.10", "99.81", "78.00 78.00", "0.03", "6.0"],
]


def test_rows_are_read_as_they_were_written(tmp_path):
    write_csv(tmp_path / "t.csv", TITLES, ROWS)
    assert read_rows(tmp_path / "t.csv") == ROWS


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "block,contrast\n", f"{HEAD}\n", f"{HEAD}\nnone,-\n"])
def test_read_rows_refuses_another_table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv is no table of the gated field"):
        read_rows(tmp_path / "t.csv")


def test_page_has_the_table_the_sentence_and_the_caveat():
    text = markdown(ROWS)
    assert "| global context | - | 50.30 | - | - | 50.30 | 0.01 | 3.0 |" in text
    assert "| CGNL, 8 groups | 0.5 | 78.00 | 0.10 | 99.81 | 78.00 78.00 | 0.03 | 6.0 |" in text
    assert conclude(ROWS) in text
    assert (
        text.index("| none |") < text.index("98.4 to 99.1 %") < text.index("linear stem and a linear head, and no more")
    )


def test_conclude_compares_what_has_the_same_task():
    assert "98.4 to 99.1 %" in conclude(ROWS)
    assert "global context, at 50.3 %" in conclude(ROWS)
    assert conclude(ROWS[:2]) == ""
