"""Around the steps: the table, checkpoints, the average of the weights, precision, stopping early."""

import itertools
import signal
from typing import Any

import pytest
import torch

from cgnl.engine import loop
from cgnl.engine.config import load
from cgnl.engine.loop import Loop, StopSignals, autocast
from cgnl.engine.tasks import Images
from tests.engine.conftest import Death, dying, fake_accuracies, same, table, weights


def test_table_learning_rates_are_those_of_the_schedule(run):
    rows = run(optim__schedule="step", optim__drops=[1], optim__warmup_epochs=1).rows
    peak = 0.8 * 8 / 256
    assert [row["lr"] for row in rows] == pytest.approx([peak * 0.75, peak, peak * 0.1])  # of the epoch's last step


def test_table_training_numbers_are_those_of_the_batches(run, monkeypatch):
    seen = []
    original = Images.loss

    def noting(self, model, batch):
        loss = original(self, model, batch)
        seen.append((loss.item(), len(batch.labels)))
        return loss

    monkeypatch.setattr(Images, "loss", noting)
    rows = run().rows
    means = [sum(loss * count for loss, count in part) / 24 for part in (seen[:3], seen[3:])]
    assert [row["train_loss"] for row in rows] == pytest.approx(means, rel=1e-6)


def test_table_columns_of_a_run_with_few_tests_are_whole(run):
    rows = table(run(test_every=2, optim__epochs=4).folder)
    assert [bool(row["test_loss"]) for row in rows] == [False, True, False, True]


def test_saver_keeps_the_best_of_the_tests(run, monkeypatch):
    fake_accuracies(monkeypatch, [0.25, 0.75, 0.5])
    result = run(optim__epochs=3)
    assert result.best == 0.75
    best, last = (torch.load(result.folder / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert (best["global_step"], last["global_step"]) == (6, 9)
    assert best["cgnl"]["results"]["test_top1"] == 0.75


def test_saver_keeps_the_last_of_equals(run, monkeypatch):
    fake_accuracies(monkeypatch, itertools.repeat(0.5))
    assert torch.load(run().folder / "best.ckpt", weights_only=True)["global_step"] == 6


@pytest.mark.parametrize("settings", [{}, {"optim__ema": 0.9}], ids=str)
def test_saver_keeps_the_weights_alone_of_the_best(run, monkeypatch, settings):
    fake_accuracies(monkeypatch, itertools.repeat(0.5))
    folder = run(**settings).folder
    best, last = (torch.load(folder / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert sorted(best) == ["cgnl", "global_step", "state_dict"]
    assert {"optimizer_states", "progress"} < set(last)
    assert same(weights(folder / "best.ckpt"), weights(folder / "last.ckpt"))  # the average, where there is one
    size = sum(tensor.numel() * tensor.element_size() for tensor in best["state_dict"].values())
    assert (folder / "best.ckpt").stat().st_size < size + 20_000


def test_saver_saves_every_so_many_steps_and_after_tests(run, monkeypatch):
    steps = []
    original = loop.write

    def write(checkpoint, path):
        steps.append((path.name, checkpoint["global_step"]))
        original(checkpoint, path)

    monkeypatch.setattr(loop, "write", write)
    run(save_every=5, test_every=2, optim__epochs=4, data__samples=48)  # six steps in an epoch
    assert [step for name, step in steps if name == "last.ckpt"] == [5, 10, 12, 15, 20, 24]


def test_stop_signals_leave_a_second_one_to_python():
    signals, before = StopSignals(), signal.getsignal(signal.SIGINT)
    with signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_patience_stops_a_run_that_gets_no_better(run):
    result = run(patience=2, optim__epochs=9, optim__lr=1e-9)
    assert [row["epoch"] for row in result.rows] == [1, 2, 3]
    assert len(table(result.folder)) == 3


def test_patience_lets_a_run_that_gets_better_go_on(run, monkeypatch):
    fake_accuracies(monkeypatch, [n / 6 for n in (1, 2, 3, 3, 3, 4, 5)])
    assert len(run(patience=2, optim__epochs=9).rows) == 5


def test_averaging_keeps_the_average_by_hand(run, tmp_path, monkeypatch):
    after_steps = []
    original = Loop.update

    def update(self):
        original(self)
        after_steps.append({f"network.{n}": v.clone() for n, v in self.network.state_dict().items()})

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "update", update)
        run(runs=tmp_path / "plain")
    average = after_steps[0]
    for now in after_steps[1:]:
        average = {n: 0.7 * average[n] + 0.3 * now[n] for n in now}
    saved = weights(run(runs=tmp_path / "ema", optim__ema=0.7).folder / "last.ckpt")
    for name in ("network.conv1.weight", "network.fc.bias", "network.norm1.weight", "network.norm1.running_mean"):
        torch.testing.assert_close(saved[name], average[name], rtol=1e-4, atol=1e-6)


def test_averaging_does_not_change_how_the_network_learns(run, tmp_path):
    plain, averaged = run(runs=tmp_path / "1"), run(runs=tmp_path / "2", optim__ema=0.9)
    assert [row["train_loss"] for row in plain.rows] == [row["train_loss"] for row in averaged.rows]
    assert [row["test_loss"] for row in plain.rows] != [row["test_loss"] for row in averaged.rows]


def test_train_in_bfloat16_is_near_float32(run, tmp_path):
    whole, half = (run(runs=tmp_path / p, precision=p) for p in ("32", "bf16"))
    losses = [[row["train_loss"] for row in result.rows] for result in (whole, half)]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert losses[1] != losses[0]
    assert all(v.dtype in (torch.float32, torch.int64) for v in weights(half.folder / "last.ckpt").values())


def test_tensorboard_writes_the_curves(run):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(tensorboard=True)
    events = event_accumulator.EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "test_top1", "lr"):
        curve = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in result.rows]
        assert curve == expected, name


def test_train_without_tensorboard_writes_no_events(run):
    assert not list(run().folder.rglob("events*"))


@pytest.mark.parametrize(
    ("device", "asked", "given"),
    [
        ("cpu", "auto", None),
        ("cpu", "32", None),
        ("cpu", "bf16", torch.bfloat16),
        ("cpu", "16", torch.bfloat16),
        ("cuda", "auto", torch.bfloat16),
        ("cuda", "16", torch.float16),
    ],
)
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_autocast_has_the_precision_of_the_settings(device, asked, given):
    context: Any = autocast(load(None, {"precision": asked}), torch.device(device))
    if device == "cpu" or torch.cuda.is_available():
        assert context._enabled == (given is not None)
    assert given in (None, context.fast_dtype)


@pytest.mark.parametrize(
    "settings", [{}, {"optim__ema": 0.9, "optim__accumulate": 2}, {"patience": 2, "optim__lr": 1e-6}], ids=str
)
def test_load_continues_from_a_checkpoint_of_lightning(run, tmp_path, monkeypatch, settings):
    settings = {"save_every": 1, "optim__epochs": 4, "model__dropout": 0.5, **settings}
    whole = run(runs=tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        dying(patch, 4 * settings.get("optim__accumulate", 1))
        with pytest.raises(Death):
            run(**settings)
    path = tmp_path / "run" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    progress = checkpoint.pop("progress")
    checkpoint["callbacks"] = {
        "Table": {name: progress[name] for name in ("rows", "seconds")},
        "EarlyStopping{'monitor': 'test_top1', 'mode': 'max'}": {"wait_count": progress["wait_count"], "patience": 2},
        "Saver": {"best": progress["best"]},
    }
    del checkpoint["scaler"]
    torch.save({**checkpoint, "epoch": 0, "loops": {}, "lr_schedulers": []}, path)
    result = run(resume=True, **settings)
    assert same(weights(path), weights(whole.folder / "last.ckpt"))
    assert table(result.folder) == table(whole.folder)
    assert (result.test, result.best) == (whole.test, whole.best)
