"""The progress bar."""

import io

import torch
from rich.console import Console

from cgnl.engine.progress import Bar
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
