"""Around the steps: the table, the best checkpoint, stopping early."""

import io
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from cgnl.data.loading import Batch
from cgnl.engine.callbacks import Bar, Clock, Saver, WholeFiles
from cgnl.engine.config import load
from cgnl.engine.task import Classification, Tally
from tests.engine.conftest import same, table, weights


def at(step: int) -> Any:
    return SimpleNamespace(global_step=step, world_size=1)


def test_clock_knows_where_a_step_stands():
    clock = Clock(load(None, {"test_every": 2, "optim.epochs": 3, "optim.warmup_epochs": 1}), steps_per_epoch=3)
    assert clock.epochs == 4
    assert [clock.epoch(at(step)) for step in range(1, 8)] == [1, 1, 1, 2, 2, 2, 3]
    assert [step for step in range(1, 13) if clock.ends_epoch(at(step))] == [3, 6, 9, 12]
    assert [step for step in range(1, 13) if clock.tests(at(step))] == [6, 12]


def test_clock_tells_steps_from_parts_of_them():
    clock = Clock(load(None, {"optim.accumulate": 3, "optim.batch_size": 9}), 3)
    assert [clock.stepped(batch) for batch in range(6)] == [False, False, True, False, False, True]


def test_table_learning_rates_are_those_of_the_schedule(run):
    rows = run(optim__schedule="step", optim__drops=[1], optim__warmup_epochs=1).rows
    peak = 0.8 * 8 / 256
    assert [row["lr"] for row in rows] == pytest.approx([peak * 0.75, peak, peak * 0.1])  # of the epoch's last step


def test_table_training_numbers_are_those_of_the_batches(run, monkeypatch):
    seen = []
    original = Classification.training_step

    def step(self, batch, batch_idx):
        loss = original(self, batch, batch_idx)
        seen.append((loss.item(), len(batch.labels)))
        return loss

    monkeypatch.setattr(Classification, "training_step", step)
    rows = run().rows
    means = [sum(loss * count for loss, count in part) / 24 for part in (seen[:3], seen[3:])]
    assert [row["train_loss"] for row in rows] == pytest.approx(means, rel=1e-6)


def test_table_columns_of_a_run_with_few_tests_are_whole(run):
    rows = table(run(test_every=2, optim__epochs=4).folder)
    assert [bool(row["test_loss"]) for row in rows] == [False, True, False, True]


def test_saver_keeps_the_best_of_the_tests(run, monkeypatch):
    accuracies = iter([0.25, 0.75, 0.5])
    original = Classification.on_validation_epoch_end

    def end(self):
        original(self)
        self.results["test_top1"] = next(accuracies)

    monkeypatch.setattr(Classification, "on_validation_epoch_end", end)
    result = run(optim__epochs=3)
    assert result.best == 0.75
    best, last = (torch.load(result.folder / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert (best["global_step"], last["global_step"]) == (6, 9)
    assert best["cgnl"]["results"]["test_top1"] == 0.75


def test_saver_keeps_the_last_of_equals(run, monkeypatch):
    original = Classification.on_validation_epoch_end

    def end(self):
        original(self)
        self.results["test_top1"] = 0.5

    monkeypatch.setattr(Classification, "on_validation_epoch_end", end)
    assert torch.load(run().folder / "best.ckpt", weights_only=True)["global_step"] == 6


@pytest.mark.parametrize("settings", [{}, {"optim__ema": 0.9}], ids=str)
def test_saver_keeps_the_weights_alone_of_the_best(run, monkeypatch, settings):
    original = Classification.on_validation_epoch_end

    def end(self):
        original(self)
        self.results["test_top1"] = 0.5

    monkeypatch.setattr(Classification, "on_validation_epoch_end", end)
    folder = run(**settings).folder
    best, last = (torch.load(folder / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert sorted(best) == ["cgnl", "global_step", "state_dict"]
    assert {"optimizer_states", "lr_schedulers", "loops", "callbacks"} < set(last)
    assert same(weights(folder / "best.ckpt"), weights(folder / "last.ckpt"))  # the average, where there is one
    size = sum(tensor.numel() * tensor.element_size() for tensor in best["state_dict"].values())
    assert (folder / "best.ckpt").stat().st_size < size + 20_000


def test_saver_saves_every_so_many_steps_and_after_tests(run, monkeypatch):
    steps = []
    original = WholeFiles.save_checkpoint

    def save(self, checkpoint, path, storage_options=None):
        steps.append((path.name, checkpoint["global_step"]))
        original(self, checkpoint, path, storage_options)

    monkeypatch.setattr(WholeFiles, "save_checkpoint", save)
    run(save_every=5, test_every=2, optim__epochs=4, data__samples=48)  # six steps in an epoch
    assert [step for name, step in steps if name == "last.ckpt"] == [5, 10, 12, 15, 20, 24]


def test_saver_answers_a_second_signal_at_once(tmp_path):
    saver = Saver(load(), 3, tmp_path)
    saver.on_train_start(at(0), cast(Any, None))
    try:
        signal.raise_signal(signal.SIGINT)
        assert saver.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        saver.on_train_end(at(0), cast(Any, None))


def test_patience_stops_a_run_that_gets_no_better(run):
    result = run(patience=2, optim__epochs=9, optim__lr=1e-9)
    assert [row["epoch"] for row in result.rows] == [1, 2, 3]
    assert len(table(result.folder)) == 3


def test_patience_lets_a_run_that_gets_better_go_on(run, monkeypatch):
    right = iter([1, 2, 3, 3, 3, 4, 5])  # of six
    original = Classification.on_validation_epoch_end

    def end(self):
        self.test_tally.top1 = torch.tensor(next(right), dtype=torch.float64)
        original(self)

    monkeypatch.setattr(Classification, "on_validation_epoch_end", end)
    assert len(run(patience=2, optim__epochs=9).rows) == 5


def test_whole_files_reads_what_it_writes(tmp_path):
    files = WholeFiles()
    files.save_checkpoint({"cgnl": {"a": 1}}, str(tmp_path / "a.ckpt"))
    assert files.load_checkpoint(tmp_path / "a.ckpt") == {"cgnl": {"a": 1}}


def test_bar_shows_where_the_run_is(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    bar = Bar(load(None, {"optim.epochs": 2, "optim.warmup_epochs": 0}), 3, console, "images")
    clock = iter(range(100))
    monkeypatch.setattr("cgnl.engine.callbacks.time.perf_counter", lambda: float(next(clock)))
    tally = Tally()
    tally.update(torch.tensor(0.5), torch.tensor([[0, 1]] * 4), torch.tensor([0, 0, 0, 1]))
    module: Any = SimpleNamespace(train_tally=tally)
    batch = Batch(torch.empty(0), torch.zeros(4), torch.zeros(4), ())
    bar.on_train_start(at(0), module)
    for step in (1, 2):
        bar.on_train_batch_end(at(step), module, None, batch, step - 1)
    (shown,) = bar.progress.tasks
    bar.on_train_end(at(2), module)
    assert (shown.completed, shown.total) == (2, 6)
    assert shown.fields["epoch"] == "1/2"
    assert shown.fields["state"] == "loss 0.500  top-1 75.0%  4 images/s"


def test_bar_changes_nothing_in_a_run(run, tmp_path, monkeypatch):
    plain = run(runs=tmp_path / "1")
    monkeypatch.setattr(Console, "is_terminal", True)
    shown = run(runs=tmp_path / "2")
    assert same(weights(shown.folder / "last.ckpt"), weights(plain.folder / "last.ckpt"))
