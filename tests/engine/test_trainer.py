"""The trainer for the machine that is there, and the average of the weights."""

import pytest
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from cgnl.engine.callbacks import Table
from cgnl.engine.config import load
from cgnl.engine.trainer import averaging, check_machine, make_trainer, stopping
from tests.engine.conftest import weights


def test_make_trainer_refuses_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="1 GPU asked for, but there are 0"):
        make_trainer(load(None, {"accelerator": "gpu"}))


def test_make_trainer_refuses_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="3 GPUs asked for, but there are 2"):
        make_trainer(load(None, {"accelerator": "gpu", "devices": 3}))


@pytest.mark.parametrize(("asked", "given"), [("auto", "32-true"), ("32", "32-true"), ("bf16", "bf16-mixed")])
def test_make_trainer_precision_on_a_cpu(asked, given):
    assert make_trainer(load(None, {"accelerator": "cpu", "precision": asked}), logger=False).precision == given


def test_averaging_and_stopping_are_only_there_when_asked_for():
    assert (averaging(load()), stopping(load(), "test_top1")) == ([], [])


def test_averaging_keeps_the_average_by_hand(run, tmp_path, monkeypatch):
    after_steps = []
    original = Table.on_train_batch_end

    def batch_end(self, trainer, task, *arguments):
        after_steps.append({n: v.clone() for n, v in task.state_dict().items() if n.startswith("network.")})
        return original(self, trainer, task, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "on_train_batch_end", batch_end)
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


def test_check_machine_refuses_to_train_in_every_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    check_machine(load(None, {"devices": 2, "nodes": 2}))
    with pytest.raises(ValueError, match=r"4 processes were started, but devices x nodes = 1$"):
        check_machine(load())


def test_make_trainer_leaves_requeueing_to_slurm(monkeypatch, tmp_path):
    for name, value in {"NTASKS": "1", "JOB_NAME": "cgnl", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    trainer = make_trainer(load(None, {"accelerator": "cpu"}), tmp_path, logger=False)
    environment = trainer._accelerator_connector.cluster_environment
    assert isinstance(environment, SLURMEnvironment)
    assert environment.auto_requeue is False
    assert trainer.default_root_dir == str(tmp_path)
