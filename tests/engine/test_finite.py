"""Steps that are not finite, against steps made by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import cgnl
from cgnl.engine import distributed
from cgnl.engine.finite import Kept, Watch, first_not_finite, tensors_in, why

NAN, INF = math.nan, math.inf
CPU = torch.device("cpu")


def make(watch: Watch, step: int, loss: float = 1.0, gradient: float = 1.0) -> bool:
    """A step, counted from 0: whether it must not be made."""
    x = torch.tensor(1.0, requires_grad=True)
    (watch.of_loss(loss * x) * gradient).backward()
    assert x.grad is not None
    return bool(watch.of_gradient(x.grad.norm(), step))


def test_watch_gives_the_loss_back():
    x = torch.tensor([0.1, 0.7], requires_grad=True)
    loss = Watch(CPU, 0).of_loss(x.prod())
    loss.backward()
    assert loss.item() == x.prod().item()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().flip(0))


@pytest.mark.parametrize(("loss", "gradient"), [(NAN, 1.0), (INF, 1.0), (-INF, 0.0), (1.0, NAN), (1.0, INF)])
def test_watch_leaves_out_a_step_that_is_not_finite(loss, gradient):
    watch = Watch(CPU, 3)
    assert [make(watch, 0), make(watch, 1, loss, gradient), make(watch, 2)] == [False, True, False]
    assert watch.look(3, now=True) == [2]
    assert watch.look(3, now=True) == []


def test_watch_tells_later_what_it_saw():
    watch, told = Watch(CPU, 100, late=3), {}
    for step in range(12):
        make(watch, step, NAN if step + 1 in (2, 3, 7, 11) else 1.0)
        told[step + 1] = watch.look(step + 1)
    assert {step: names for step, names in told.items() if names} == {6: [2, 3], 12: [7]}
    assert watch.look(12, now=True) == [11]


@pytest.mark.parametrize("asked", [1, 2, 4, 5])
def test_watch_names_no_step_twice_when_asked_in_between(asked):
    watch, told = Watch(CPU, 100, late=3), []
    for step in range(9):
        make(watch, step, NAN)
        told += watch.look(step + 1, now=step + 1 == asked)
    assert [*told, *watch.look(9, now=True)] == list(range(1, 10))


@pytest.mark.parametrize("limit", [0, 2])
def test_watch_makes_no_step_after_too_many(limit):
    watch = Watch(CPU, limit)
    for step in range(limit + 1):
        assert make(watch, step, NAN)
    assert all(make(watch, step) for step in range(limit + 1, limit + 4))


def test_watch_counts_only_those_one_after_another():
    watch = Watch(CPU, 2)
    bad = [make(watch, step, NAN if step % 3 else 1.0) for step in range(12)]
    assert bad == [step % 3 > 0 for step in range(12)]


def test_watch_goes_on_counting():
    watch = Watch(CPU, 2, in_a_row=2)
    assert make(watch, 0, NAN)
    assert make(watch, 1)


def test_watch_of_scaled_losses_asks_the_loss_alone():
    watch = Watch(CPU, 3)
    watch.of_loss(torch.tensor(1.0))
    assert not watch.of_gradient(torch.tensor(INF), 0, scaled=True)
    watch.of_loss(torch.tensor(NAN))  # one of two parts
    watch.of_loss(torch.tensor(1.0))
    assert watch.of_gradient(torch.tensor(1.0), 1, scaled=True)
    assert watch.look(2, now=True) == [2]


def test_steps_wait_for_no_device():
    meta = torch.device("meta")  # it has no values: whoever asks for one fails
    weights, statistics = nn.Parameter(torch.ones(3, device=meta)), torch.ones(4, device=meta)
    watch, kept = Watch(meta, 3), Kept([statistics])
    watch.of_loss(weights.sum()).backward()
    assert weights.grad is not None
    norm = get_total_norm([weights.grad])
    clip_grads_with_norm_([weights], 1.0, norm)
    for scaled in (False, True):
        kept.put_back(if_=watch.of_gradient(norm, 0, scaled))
    with pytest.raises((NotImplementedError, RuntimeError)):
        watch.look(1, now=True)


@pytest.mark.parametrize("back", [True, False])
def test_kept_are_put_back_if_told(back):
    tensors = [torch.randn(3), torch.tensor(5), torch.randn(2, 2, dtype=torch.float64), torch.tensor(1.5)]
    before = [tensor.clone() for tensor in tensors]
    kept = Kept(tensors)
    for tensor in tensors:
        tensor.mul_(3) if tensor.dtype == torch.int64 else tensor.fill_(NAN)
    kept.put_back(if_=torch.tensor(back))
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor.dtype == old.dtype
        assert torch.equal(tensor, old) == back


class Broken(nn.Module):
    def forward(self, x):
        return {"a": [x], "b": (x / 0, 3)}


def test_first_not_finite_names_the_innermost_first():
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Identity(), Broken()))
    modules = dict(network.named_modules())
    assert first_not_finite(modules, lambda: network(torch.ones(1, 2))) == "1.1"
    assert first_not_finite(modules, lambda: network[0](torch.ones(1, 2))) is None
    assert not any(module._forward_hooks for module in modules.values())


def test_tensors_in_finds_all():
    x = torch.ones(1)
    assert len(list(tensors_in({"a": [x, (x, None)], "b": x, "c": "text"}))) == 3


def test_why_names_the_module_inside_a_block():
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    cgnl.insert(network, cgnl.CGNL, after=["0"], groups=2)
    network.get_parameter("0_cgnl.phi.weight").data.fill_(3e38)
    reason = why(network, lambda: network(torch.randn(2, 3, 4, 4)).sum())
    assert reason == "the loss is nan; the first module whose output is not finite is 0_cgnl.phi"


def test_why_says_when_weights_are_broken():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    network.get_parameter("1.bias").data.fill_(INF)
    reason = why(network, lambda: network(torch.ones(1, 2)).sum())
    assert reason == (
        "the loss is inf; the first module whose output is not finite is 1, whose weights are not finite either"
    )


def test_why_names_the_gradient():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    reason = why(network, lambda: (network(torch.ones(1, 2)) * 0).sum().sqrt())
    assert reason == "the loss is 0, but its gradient is not finite, first that of 1.bias"


def test_why_names_a_loss_of_finite_outputs():
    network = nn.Sequential(nn.Linear(2, 1))
    reason = why(network, lambda: (network(torch.ones(1, 2)) * 0).sum().log())
    assert reason == "the loss is -inf, though the output of every module is finite"


def test_why_of_a_finite_step_is_nothing():
    network = nn.Sequential(nn.Linear(2, 1))
    assert why(network, lambda: network(torch.ones(1, 2)).sum()) is None


def test_why_asks_all_processes_at_every_turn(monkeypatch):
    network, asked = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)), []
    cgnl.insert(network, cgnl.CGNL, after=["0"], groups=2)

    def of_all(mine: str | None) -> list[str | None]:
        asked.append(mine)
        return [mine, "of another process" if len(asked) == turn else None]

    monkeypatch.setattr(distributed, "of_all", of_all)
    for turn in (1, 2, 3, 4):  # every module, those outside of blocks, the loss, its gradient
        asked.clear()
        assert why(network, lambda: network(torch.ones(1, 3, 4, 4)).sum()) == "of another process"
        assert asked == [None] * turn
