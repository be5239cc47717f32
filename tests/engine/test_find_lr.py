import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from cgnl.engine.config import load
from cgnl.engine.find_lr import HIGHEST, LOWEST, describe, draw, find_lr, spread_rates, sweep
from cgnl.engine.loop import Loop

from .conftest import SETTINGS, options


def descend(curvature: float, momentum: float = 0.0):
    """Steps of gradient descent on a network of one layer, whose loss is a parabola of this largest curvature."""
    network = nn.Linear(2, 1, bias=False).double()
    nn.init.ones_(network.weight)
    inputs = torch.tensor([[curvature**0.5, 0.0], [0.0, (0.1 * curvature) ** 0.5]], dtype=torch.float64)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=momentum)

    def step(rate: float) -> float:
        optimizer.param_groups[0]["lr"] = rate
        loss = network(inputs).square().sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


@pytest.mark.parametrize("steps", [60, 100, 300])
@pytest.mark.parametrize("curvature", [10.0, 100.0, 1e3])
def test_suggestion_is_stable_on_a_parabola(curvature, steps):
    found, threshold = sweep(descend(curvature), spread_rates(steps)), 2 / curvature
    assert found.suggestion is not None
    assert threshold / 300 < found.suggestion < threshold
    assert found.diverges is not None
    assert threshold < found.diverges < 10 * threshold
    assert found.bound == found.diverges / 10


def test_a_parabola_that_is_too_flat_does_not_diverge():
    found = sweep(descend(1e-3), spread_rates(100))
    assert (found.diverges, found.bound) == (None, None)
    assert len(found.rates) == 100
    assert found.suggestion == found.steepest


def test_rates_rise_by_one_factor():
    rates = spread_rates(50)
    assert (rates[0], rates[-1]) == pytest.approx((LOWEST, HIGHEST))
    assert [b / a for a, b in itertools.pairwise(rates)] == pytest.approx([1e7 ** (1 / 49)] * 49)


def test_the_steepest_place_is_that_of_the_curve():
    found = sweep(lambda rate: 3 - 2 / (1 + math.exp(-4 * math.log(rate / 0.02))), spread_rates(200))
    assert found.steepest == pytest.approx(0.02, rel=0.05)
    assert found.diverges is None


@pytest.mark.parametrize("last", [math.nan, math.inf, 1e9])
def test_a_loss_that_bursts_ends_the_test(last):
    rates, calls = spread_rates(100), []
    found = sweep(lambda rate: calls.append(rate) or (last if rate > 0.5 else 2 - rate), rates)
    assert found.diverges == calls[-1] == min(rate for rate in rates if rate > 0.5)
    assert all(map(math.isfinite, found.smooth))


def test_a_loss_that_never_falls_has_no_suggestion():
    for loss in (lambda rate: 1 + rate / 100, lambda _: math.nan):
        found = sweep(loss, spread_rates(20))
        assert found.suggestion is None
        assert "optim.lr=" not in describe(found)[-1]


def test_a_suggestion_is_at_most_the_bound():
    found = sweep(lambda rate: 1.0 if rate < 0.05 else 0.5 if rate < 0.1 else 100.0, spread_rates(200))
    assert found.steepest == pytest.approx(0.05, rel=0.1)
    assert found.suggestion == found.bound == pytest.approx(0.01, rel=0.2)
    assert f"{found.steepest:.2g}" in describe(found)[-1]


def find(steps: int = 12, **settings):
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return find_lr(load("parts", {**SETTINGS, **given}), steps)


@pytest.mark.parametrize(
    "settings",
    [
        {"optim__optimizer": "adamw", "optim__layer_decay": 0.5, "optim__decay_norms": False},
        {"optim__nesterov": True, "optim__clip_norm": 1.0, "optim__ema": 0.9, "optim__on_nan": "skip"},
        {"optim__freeze": ("conv1",), "optim__accumulate": 2, "optim__new_layers": 3.0},
    ],
    ids=["adamw", "clipped", "accumulated"],
)
def test_every_optimizer_is_tested_and_a_seed_decides(settings):
    one, two = find(**settings), find(**settings)
    assert one == two
    assert len(one.rates) > 5
    assert find(seed=1, **settings).losses != one.losses


def test_steps_have_the_rate_that_is_said(monkeypatch):
    seen, update = [], Loop.update

    def noting(self):
        update(self)
        seen.append([group["lr"] for group in self.optimizer.param_groups])

    monkeypatch.setattr(Loop, "update", noting)
    found = find(optim__batch_size=8, optim__new_layers=2.0)
    expected = [rate * 8 / 256 for rate in found.rates]
    assert [max(rates) for rates in seen[: len(expected)]] == pytest.approx([2 * rate for rate in expected])
    assert [min(rates) for rates in seen[: len(expected)]] == pytest.approx(expected)


def test_accumulated_steps_see_the_loss_of_whole_steps():
    whole, parts = (find(model__name="tiny_group", model__dropout=0.0, optim__accumulate=n) for n in (1, 2))
    assert parts.losses == pytest.approx(whole.losses, rel=1e-4)


def test_command_leaves_a_picture_and_no_run(cgnl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, _ = cgnl("train", "parts", "--find-lr", "--steps", 12, "-o", "lr.png", *options())
    assert status == 0
    assert "optim.lr" in said
    assert [path.name for path in tmp_path.iterdir()] == ["lr.png"]
    assert Path("lr.png").read_bytes().startswith(b"\x89PNG")
    assert cgnl("train", "parts", "--find-lr", "--steps", 12, *options())[1] in said


def test_drawing_of_any_result(tmp_path):
    for number, step in enumerate([descend(1.0), lambda _: math.nan, lambda _: 1.0]):
        draw(sweep(step, spread_rates(20)), tmp_path / f"{number}.png")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--find-lr", "--resume"], "--resume"),
        (["--find-lr", "steps=9"], "steps = 9"),
        (["--find-lr", "steps=many"], "steps = many"),
        (["--find-lr", "-o", "lr.jpg"], "lr.jpg"),
        (["steps=20"], "steps = 20"),
        (["-o", "lr.png"], "output = lr.png"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cgnl, words, named):
    status, _, said = cgnl("train", *words)
    assert (status, said.count("\n")) == (2, 1)
    assert named in said
