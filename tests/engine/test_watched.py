"""Runs in which steps are not finite."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cgnl.data.transforms import generator
from cgnl.engine import schedule
from cgnl.engine.config import load
from cgnl.engine.datasets import open_dataset
from cgnl.engine.loaders import Loaders, read_again
from cgnl.engine.network import build_network
from cgnl.engine.task import Classification
from cgnl.engine.trainer import seed_everything
from cgnl.models import NETWORKS
from tests.engine.conftest import SETTINGS, Tiny, normalized, options, same, table, weights


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
    seed_everything(0)
    network = build_network(config.model, len(dataset.classes)).to(memory_format=torch.channels_last)
    peak = 0.8 * 8 / 256
    sgd = torch.optim.SGD(network.parameters(), lr=peak, momentum=0.9, weight_decay=1e-4)
    for step, batch in enumerate(Loaders(config, dataset, torch.device("cpu")).train(8, 2)):
        if step in bad:
            continue
        sgd.param_groups[0]["lr"] = peak * schedule.factor(config.optim, 3, step)
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
    learn = Classification.learn

    def call(at: int, **settings):
        def dying(self, batch):
            if self.global_step == at:
                raise Death
            return learn(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(Classification, "learn", dying)
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


@pytest.mark.parametrize("number", [0, 4, 5])
def test_read_again_gives_the_same_batch(number):
    config = load("parts", {**SETTINGS, "optim.accumulate": 1})
    loader = Loaders(config, open_dataset(config.data), torch.device("cpu")).train(8, 2)
    expected = list(loader)[number]
    again = read_again(loader, number)
    assert torch.equal(again.pixels, expected.pixels)
    assert torch.equal(again.labels, expected.labels)
    assert torch.equal(again.samples, expected.samples)


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

    guard(torch.optim.SGD, "step")  # the forward and backward pass happen in it
    for name in ("on_train_batch_start", "on_train_batch_end", "training_step", "configure_gradient_clipping"):
        guard(Classification, name)
    run(precision=precision, optim__on_nan=on_nan, data__samples=240, **ON_GPU, **settings)
    assert calls.count("step") == calls.count("configure_gradient_clipping") == 60
