"""Non-finite steps against steps made by hand, and runs in which there are some."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import cgnl
from cgnl.data.transforms import generator
from cgnl.engine import distributed
from cgnl.engine.config import load
from cgnl.engine.datasets import open_dataset
from cgnl.engine.loop import Loop
from cgnl.engine.network import build_network
from cgnl.engine.nonfinite import Snapshot, Watch, find_cause, first_nonfinite, is_finite
from cgnl.engine.optimizer import lr_factor
from cgnl.engine.tasks import Images
from cgnl.models import NETWORKS
from tests.engine.conftest import AUGMENTED, SETTINGS, Tiny, normalized, options, same, table, weights

NAN, INF = math.nan, math.inf
CPU = torch.device("cpu")


def make(watch: Watch, step: int, loss: float = 1.0, gradient: float = 1.0) -> bool:
    """A step, counted from 0: whether it must not be made."""
    x = torch.tensor(1.0, requires_grad=True)
    (watch.check_loss(loss * x) * gradient).backward()
    assert x.grad is not None
    return bool(watch.check_gradient(x.grad.norm(), step))


def test_watch_gives_the_loss_back():
    x = torch.tensor([0.1, 0.7], requires_grad=True)
    loss = Watch(CPU, 0).check_loss(x.prod())
    loss.backward()
    assert loss.item() == x.prod().item()
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().flip(0))


@pytest.mark.parametrize(("loss", "gradient"), [(NAN, 1.0), (INF, 1.0), (-INF, 0.0), (1.0, NAN), (1.0, INF)])
def test_watch_leaves_out_a_step_that_is_not_finite(loss, gradient):
    watch = Watch(CPU, 3)
    assert [make(watch, 0), make(watch, 1, loss, gradient), make(watch, 2)] == [False, True, False]
    assert watch.read(now=True) == [2]
    assert watch.read(now=True) == []


def test_watch_tells_later_what_it_saw():
    watch, told = Watch(CPU, 100, late=3), {}
    for step in range(12):
        make(watch, step, NAN if step + 1 in (2, 3, 7, 11) else 1.0)
        told[step + 1] = watch.read()
    assert {step: names for step, names in told.items() if names} == {5: [2], 6: [3], 10: [7]}
    assert watch.read(now=True) == [11]


@pytest.mark.parametrize("asked", [1, 2, 4, 5])
def test_watch_names_no_step_twice_when_asked_in_between(asked):
    watch, told = Watch(CPU, 100, late=3), []
    for step in range(9):
        make(watch, step, NAN)
        told += watch.read(now=step + 1 == asked)
    assert [*told, *watch.read(now=True)] == list(range(1, 10))


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
    watch.check_loss(torch.tensor(1.0))
    assert not watch.check_gradient(torch.tensor(INF), 0, scaled=True)
    watch.check_loss(torch.tensor(NAN))  # one of two parts
    watch.check_loss(torch.tensor(1.0))
    assert watch.check_gradient(torch.tensor(1.0), 1, scaled=True)
    assert watch.read(now=True) == [2]


def test_steps_wait_for_no_device():
    with FakeTensorMode():  # tensors have no values: whoever asks for one fails
        weights, statistics = nn.Parameter(torch.ones(3)), torch.ones(4)
        watch, kept = Watch(CPU, 3), Snapshot([statistics])
        watch.check_loss(weights.sum()).backward()
        assert weights.grad is not None
        norm = get_total_norm([weights.grad])
        clip_grads_with_norm_([weights], 1.0, norm)
        for scaled in (False, True):
            kept.restore(if_=watch.check_gradient(norm, 0, scaled))
        with pytest.raises(DataDependentOutputException):
            watch.read(now=True)


@pytest.mark.parametrize("back", [True, False])
def test_kept_are_put_back_if_told(back):
    tensors = [torch.randn(3), torch.tensor(5), torch.randn(2, 2, dtype=torch.float64), torch.tensor(1.5)]
    before = [tensor.clone() for tensor in tensors]
    kept = Snapshot(tensors)
    for tensor in tensors:
        tensor.mul_(3) if tensor.dtype == torch.int64 else tensor.fill_(NAN)
    kept.restore(if_=torch.tensor(back))
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor.dtype == old.dtype
        assert torch.equal(tensor, old) == back


class Broken(nn.Module):
    def forward(self, x):
        return {"a": [x], "b": (x / 0, 3)}


def test_first_nonfinite_names_the_innermost_first():
    network = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Identity(), Broken()))
    modules = dict(network.named_modules())
    assert first_nonfinite(modules, lambda: network(torch.ones(1, 2))) == "1.1"
    assert first_nonfinite(modules, lambda: network[0](torch.ones(1, 2))) is None
    assert not any(module._forward_hooks for module in modules.values())


def test_is_finite_takes_tensors_alone():
    assert is_finite([torch.ones(2), None, NAN])
    assert not is_finite([torch.ones(2), torch.tensor([1.0, INF])])


def test_why_names_the_module_inside_a_block():
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    cgnl.insert(network, cgnl.CGNL, after=["0"], groups=2)
    network.get_parameter("0_cgnl.phi.weight").data.fill_(3e38)
    reason = find_cause(network, lambda: network(torch.randn(2, 3, 4, 4)).sum())
    assert reason == "the loss is nan; the first module whose output is not finite is 0_cgnl.phi"


def test_why_says_when_weights_are_broken():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    network.get_parameter("1.bias").data.fill_(INF)
    reason = find_cause(network, lambda: network(torch.ones(1, 2)).sum())
    assert reason == (
        "the loss is inf; the first module whose output is not finite is 1, whose weights are not finite either"
    )


def test_why_names_the_gradient():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    reason = find_cause(network, lambda: (network(torch.ones(1, 2)) * 0).sum().sqrt())
    assert reason == "the loss is 0, but its gradient is not finite, first that of 1.bias"


def test_why_names_a_loss_of_finite_outputs():
    network = nn.Sequential(nn.Linear(2, 1))
    reason = find_cause(network, lambda: (network(torch.ones(1, 2)) * 0).sum().log())
    assert reason == "the loss is -inf, though the output of every module is finite"


def test_why_of_a_finite_step_is_nothing():
    network = nn.Sequential(nn.Linear(2, 1))
    assert find_cause(network, lambda: network(torch.ones(1, 2)).sum()) is None


def test_why_asks_all_processes_at_every_turn(monkeypatch):
    network, asked = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)), []
    cgnl.insert(network, cgnl.CGNL, after=["0"], groups=2)

    def of_all(mine: str | None) -> list[str | None]:
        asked.append(mine)
        return [mine, "of another process" if len(asked) == turn else None]

    monkeypatch.setattr(distributed, "all_gather", of_all)
    for turn in (1, 2, 3, 4):  # every module, those outside of blocks, the loss, its gradient
        asked.clear()
        assert find_cause(network, lambda: network(torch.ones(1, 3, 4, 4)).sum()) == "of another process"
        assert asked == [None] * turn


class Trap(nn.Module):
    """Gives what it gets, but for some batches, which it knows by the seed of their dropout."""

    def __init__(self):
        super().__init__()
        self.outputs: set[int] = set()
        self.gradients: set[int] = set()

    def forward(self, x):
        batch = torch.initial_seed() if self.training else None
        if batch in self.gradients:
            x.register_hook(lambda gradient: gradient * torch.inf)
        return x / 0 if batch in self.outputs else x


@pytest.fixture
def trap(monkeypatch):
    """A network whose batches of these numbers are not finite."""

    def set_(*batches: int, of: str = "outputs"):
        seeds = {generator(0, number, 0).initial_seed() for number in batches}

        def network(num_classes: int, dropout: float) -> nn.Module:
            tiny = Tiny(num_classes, dropout)
            trap = Trap()
            setattr(trap, of, seeds)
            tiny.norm1 = nn.Sequential(tiny.norm1, trap)
            return tiny

        monkeypatch.setitem(NETWORKS, "tiny", network)

    return set_


def said(folder, word: str = "skipped") -> list[str]:
    return [line.split(" ", 3)[3] for line in (folder / "log.txt").read_text().splitlines() if f" {word}: " in line]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_stop_names_step_and_module(trap, cgnl, tmp_path, accumulate):
    trap(3 * accumulate + accumulate - 1)
    arguments = options(runs=tmp_path, save_every=1, optim__accumulate=accumulate)
    status, _, err = cgnl("train", "parts", *arguments)
    assert status == 2
    assert err == (
        "cgnl train: step 4: the loss is nan; the first module whose output is not finite is norm1.1: "
        "lower optim.lr, lengthen optim.warmup_epochs, or skip such steps by optim.on_nan=skip\n"
    )
    saved = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 3
    assert all(value.isfinite().all() for value in saved["state_dict"].values())


def test_cause_is_sought_in_the_batch_as_it_was_augmented(trap, run, monkeypatch):
    trap(4)
    seen, loss = [], Images.loss

    def record(self, model, batch):
        seen.append((torch.initial_seed(), batch.pixels.clone(), batch.labels.clone()))
        return loss(self, model, batch)

    monkeypatch.setattr(Images, "loss", record)
    with pytest.raises(ValueError, match=r"step 5: .*first module whose output is not finite is norm1\.1"):
        run(**AUGMENTED)
    (_, pixels, labels), *again = [one for one in seen if one[0] == generator(0, 4, 0).initial_seed()]
    assert (labels.ndim, len(again) > 0) == (2, True)
    assert all(torch.equal(one[1], pixels) and torch.equal(one[2], labels) for one in again)


def test_stop_names_a_gradient(trap, run):
    trap(4, of="gradients")
    with pytest.raises(
        ValueError, match=r"^step 5: the loss is \d\.\d+, but its gradient is not finite, first that of"
    ):
        run()


def test_stop_of_a_run_with_too_high_a_rate(cgnl, tmp_path):
    status, _, err = cgnl("train", "parts", *options(runs=tmp_path, optim__lr=1e30, optim__epochs=3))
    assert status == 2
    assert err.startswith("cgnl train: step 2: the loss is ")
    assert err.count("\n") == 1


def test_run_that_stopped_goes_on_where_such_steps_are_skipped(trap, run, tmp_path):
    trap(4)
    whole = run(runs=tmp_path / "whole", optim__on_nan="skip")
    with pytest.raises(ValueError, match="step 5: "):
        run(save_every=1)
    result = run(resume=True, save_every=1, optim__on_nan="skip")
    assert same(weights(result.folder / "last.ckpt"), weights(whole.folder / "last.ckpt"))
    assert table(result.folder) == table(whole.folder)


@pytest.mark.parametrize("of", ["outputs", "gradients"])
@pytest.mark.parametrize("bad", [(0,), (2, 3), (5,)], ids=str)
def test_skip_leaves_the_steps_out(trap, run, bad, of):
    trap(*bad, of=of)
    result = run(optim__on_nan="skip", model__dropout=0.0)
    config = load("parts", {**SETTINGS, "model.dropout": 0.0})
    dataset = open_dataset(config.data)
    torch.manual_seed(0)
    network = build_network(config.model, len(dataset.classes)).to(memory_format=torch.channels_last)
    peak = 0.8 * 8 / 256
    sgd = torch.optim.SGD(network.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4)
    for step, batch in enumerate(Images(nn.Identity(), config, dataset, CPU).train_batches(8, 2)):
        if step in bad:
            continue
        sgd.param_groups[0]["lr"] = peak * lr_factor(config.optim, 3, step)
        sgd.zero_grad()
        pixels = normalized(batch.pixels).contiguous(memory_format=torch.channels_last)
        F.cross_entropy(network(pixels), batch.labels).backward()
        sgd.step()
    end = weights(result.folder / "last.ckpt")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(end[f"network.{name}"], value, rtol=1e-5, atol=1e-6)
    assert end["network.norm1.0.num_batches_tracked"] == 6 - len(bad)


@pytest.mark.parametrize("settings", [{}, {"optim__accumulate": 2}, {"optim__clip_norm": 0.5}, {"optim__ema": 0.9}])
def test_skip_names_and_counts_the_steps(trap, run, settings):
    parts = settings.get("optim__accumulate", 1)
    trap(1 * parts, 4 * parts)
    result = run(optim__on_nan="skip", **settings)
    assert [row["skipped"] for row in table(result.folder)] == ["1", "2"]
    reason = "the loss is nan; the first module whose output is not finite is norm1.1"
    assert said(result.folder, "is skipped") == [f"step {step} is skipped: {reason}" for step in (2, 5)]
    saved = torch.load(result.folder / "last.ckpt", weights_only=True)
    assert all(value.isfinite().all() for value in saved["state_dict"].values())
    assert all(row["train_loss"] == row["train_loss"] for row in result.rows)


def test_skip_changes_nothing_in_a_finite_run(run, tmp_path):
    one, other = run(runs=tmp_path / "1"), run(runs=tmp_path / "2", optim__on_nan="skip")
    assert same(weights(one.folder / "last.ckpt"), weights(other.folder / "last.ckpt"))
    assert table(one.folder) == table(other.folder)


def test_skip_counts_no_sample_of_such_a_step(trap, run):
    trap(0, 1, 2)
    result = run(optim__on_nan="skip")
    assert [row["skipped"] for row in result.rows] == [3, 3]
    first, second = (row["train_loss"] for row in result.rows)
    assert first != first  # nothing was learned
    assert second == second


def test_skip_ends_after_too_many_one_after_another(trap, run):
    trap(*range(4, 30))
    with pytest.raises(ValueError, match=r"^step 15: more than 10 steps one after another are not finite: the loss is"):
        run(optim__on_nan="skip", optim__epochs=10, save_every=1)


def test_skip_goes_on_with_many_that_are_scattered(trap, run):
    trap(*(step for step in range(24) if step % 8))
    assert run(optim__on_nan="skip", optim__epochs=8).rows[-1]["skipped"] == 21


class Death(BaseException):
    """The end of a process."""


@pytest.fixture
def die(run, monkeypatch):
    """Train until so many steps have been made."""
    backward = Loop.backward

    def call(at: int, **settings):
        def dying(self, *batch):
            if self.step == at:
                raise Death
            return backward(self, *batch)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "backward", dying)
            with pytest.raises(Death):
                run(**settings)

    return call


@pytest.mark.parametrize("at", [4, 5, 9])
def test_skip_resumes_to_the_same_end(trap, run, die, tmp_path, at):
    trap(1, 3, 4, 8)
    settings = {"optim__on_nan": "skip", "optim__epochs": 4, "save_every": 1, "model__dropout": 0.5}
    whole = run(runs=tmp_path / "whole", **settings)
    die(at, **settings)
    part = run(resume=True, **settings)
    assert same(weights(part.folder / "last.ckpt"), weights(whole.folder / "last.ckpt"))
    assert table(part.folder) == table(whole.folder)


def test_skip_goes_on_counting_after_a_resume(trap, run, die):
    trap(*range(2, 20))
    settings = {"optim__on_nan": "skip", "optim__epochs": 8, "save_every": 1}
    die(9, **settings)
    with pytest.raises(ValueError, match=r"^step 13: more than 10 steps"):
        run(resume=True, **settings)


def test_run_that_skipped_may_go_on_where_it_would_stop(trap, run, die):
    trap(3)
    die(5, optim__on_nan="skip", save_every=4)  # saved after a step that was left out
    assert run(resume=True, optim__on_nan="stop", save_every=4).rows[-1]["skipped"] == 1


def test_on_nan_refuses_another_word(cgnl, tmp_path):
    status, _, err = cgnl("train", "parts", *options(runs=tmp_path, optim__on_nan="warn"))
    assert status == 2
    assert err == "cgnl train: optim.on_nan = warn must be one of stop, skip\n"


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ON_GPU = {"accelerator": "gpu", "deterministic": False}
CACHED = {"data__cache": "gpu"}


@GPU
@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
@pytest.mark.parametrize("settings", [{}, CACHED, {"optim__accumulate": 2}], ids=["plain", "cached", "accumulated"])
def test_stop_on_a_gpu_names_step_and_module_later(trap, run, precision, settings):
    parts = settings.get("optim__accumulate", 1)
    trap(3 * parts, 6 * parts)
    reason = r"the loss is nan; the first module whose output is not finite is norm1\.1"
    with pytest.raises(ValueError, match=rf"^step 4: {reason}"):
        run(precision=precision, data__samples=240, **ON_GPU, **settings)  # 30 steps an epoch


@GPU
@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
@pytest.mark.parametrize("settings", [{}, CACHED, {"optim__ema": 0.9}, {"optim__clip_norm": 0.5}], ids=str)
def test_skip_on_a_gpu_names_and_counts_the_steps(trap, run, precision, settings):
    trap(1, 4, 14, 59)
    result = run(precision=precision, data__samples=240, optim__on_nan="skip", **ON_GPU, **settings)
    assert [row["skipped"] for row in result.rows] == [3, 4]
    assert [line.split()[1] for line in said(result.folder, "is skipped")] == ["2", "5", "15", "60"]
    end = weights(result.folder / "last.ckpt")
    assert all(value.isfinite().all() for value in end.values())
    if "optim__ema" not in settings:  # an average of counts is rounded down at every step
        assert end["network.norm1.0.num_batches_tracked"] == 56


@GPU
def test_skip_on_a_gpu_ends_after_too_many(trap, run):
    trap(*range(4, 40))
    with pytest.raises(ValueError, match=r"^step \d+: more than 10 steps one after another are not finite: the loss"):
        run(optim__on_nan="skip", data__samples=480, **ON_GPU)


@GPU
@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_compiled_network_is_watched_too(run, on_nan):
    with pytest.raises(ValueError, match=r"step \d+: .*the first module whose output is not finite is (norm1|conv1)"):
        run(optim__lr=1e30, optim__on_nan=on_nan, compile=True, data__samples=480, **ON_GPU)


@GPU
@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("on_nan", ["stop", "skip"])
@pytest.mark.parametrize(
    "settings", [{}, CACHED, {"optim__ema": 0.9, "optim__clip_norm": 0.5}, {"optim__accumulate": 2}], ids=str
)
def test_steps_on_a_gpu_wait_for_nothing(run, monkeypatch, precision, on_nan, settings):
    calls: list[str] = []

    def guard(owner, name):
        original = getattr(owner, name)

        def guarded(*args, **options):
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                return original(*args, **options)
            finally:
                torch.cuda.set_sync_debug_mode(before)
                calls.append(name)

        monkeypatch.setattr(owner, name, guarded)

    for name in ("backward", "update"):
        guard(Loop, name)
    run(precision=precision, optim__on_nan=on_nan, data__samples=240, **ON_GPU, **settings)
    assert calls.count("update") == 60
