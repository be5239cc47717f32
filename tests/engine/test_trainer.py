"""The trainer for the machine that is there, and the average of the weights."""

import pytest
import torch

from cgnl.engine.callbacks import Clock
from cgnl.engine.config import load
from cgnl.engine.trainer import averaging, make_trainer, stopping
from tests.engine.conftest import weights


def test_make_trainer_refuses_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="accelerator = gpu, but there is none"):
        make_trainer(load(None, {"accelerator": "gpu"}))


def test_make_trainer_refuses_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="devices = 3, but there are 2 GPUs"):
        make_trainer(load(None, {"accelerator": "gpu", "devices": 3}))


@pytest.mark.parametrize(("asked", "given"), [("auto", "32-true"), ("32", "32-true"), ("bf16", "bf16-mixed")])
def test_make_trainer_precision_on_a_cpu(asked, given):
    assert make_trainer(load(None, {"accelerator": "cpu", "precision": asked}), logger=False).precision == given


def test_averaging_and_stopping_are_only_there_when_asked_for():
    assert (averaging(load()), stopping(load())) == ([], [])


def test_averaging_keeps_the_average_by_hand(run, tmp_path, monkeypatch):
    after_steps = []
    original = Clock.stepped

    def stepped(self, trainer):
        if type(self).__name__ == "Table":  # once a step
            state = trainer.lightning_module.state_dict()
            after_steps.append({n: v.clone() for n, v in state.items() if n.startswith("network.")})
        return original(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Clock, "stepped", stepped)
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
