"""The progress bar."""

import io
from contextlib import nullcontext

import torch
from rich.console import Console

from cgnl.engine.progress import Bar, Lines
from cgnl.engine.tasks.base import Sums
from tests.engine.conftest import same, weights


def test_bar_shows_where_the_run_is(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar, clock = Bar(console, epochs=2, steps_per_epoch=3, unit="pictures"), iter(range(100))
    monkeypatch.setattr("cgnl.engine.progress.time.perf_counter", lambda: float(next(clock)))
    sums = Sums("loss", "top1", "top5")
    sums.add(4, loss=torch.tensor(2.0), top1=torch.tensor(3), top5=torch.tensor(4))
    with bar:
        for step in (1, 2):
            bar.update(step, 4, sums)
        (shown,) = bar.progress.tasks
    assert (shown.completed, shown.total) == (2, 6)
    assert shown.fields["epoch"] == "1/2"
    assert shown.fields["state"] == "loss 0.500  top-1 75.0%  4 pictures/s"


def test_bar_changes_nothing_in_a_run(run, tmp_path, monkeypatch):
    plain = run(runs=tmp_path / "1")
    monkeypatch.setattr(Console, "is_terminal", True)
    shown = run(runs=tmp_path / "2")
    assert same(weights(shown.folder / "last.ckpt"), weights(plain.folder / "last.ckpt"))


def test_bar_of_a_test_counts_its_samples():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar = Bar(console, epochs=2, steps_per_epoch=3, unit="pictures")
    for started in (False, True):  # within a training, and after it
        with bar if started else nullcontext(), bar.testing(6):
            bar.update_test(4)
            training, test = bar.progress.tasks
            assert (training.visible, test.completed, test.total) == (False, 4, 6)
            assert test.fields["state"] == "4 of 6 pictures"
        (training,) = bar.progress.tasks
        assert training.visible
        assert not bar.progress.live.is_started


def test_lines_say_where_the_run_is_every_half_minute(monkeypatch):
    monkeypatch.setattr("cgnl.engine.progress.time.perf_counter", lambda: clock)
    clock, sums, messages = 0.0, Sums("loss", "top1", "top5"), []
    lines = Lines(epochs=2, steps_per_epoch=30, unit="pictures", say=messages.append)
    with lines:
        for step in range(1, 36):
            clock += 10.0
            sums.add(4, loss=torch.tensor(2.0), top1=torch.tensor(3), top5=torch.tensor(4))
            lines.update(step, 4, sums)
        said = len(messages)
        with lines.testing(100):
            for _ in range(10):
                clock += 10.0
                lines.update_test(8)
    assert messages[0] == "epoch 1/2, step 3 of 60, loss 0.500, top-1 75.0%, 0 pictures/s, 9 min 30 s left"
    assert messages[10].startswith("epoch 2/2, step 33 of 60, ")
    assert said == 11
    assert messages[said:] == [
        f"test: {count} of 100 pictures, {left} left"
        for count, left in ((24, "1 min 35 s"), (48, "1 min 05 s"), (72, "35 s"))
    ]


def test_lines_are_for_output_that_is_no_terminal(run, monkeypatch, capsys):
    monkeypatch.setattr(Lines, "every", 0.0)
    folder = run().folder
    for text in (capsys.readouterr().out, (folder / "log.txt").read_text()):
        assert "epoch 2/2, step 5 of 6, loss " in text
        assert "test: 6 of 6 images, 0 s left" in text
