"""Kills at random moments, and whether they would be noticed if they did harm; benchmarks/faults.py makes many more."""

import random
import shutil

import pytest
import torch

from tests.engine import kills
from tests.engine.conftest import AUGMENTED
from tests.engine.kills import (
    MOMENTS,
    SLOWER,
    Blow,
    Figures,
    differences,
    draw,
    experiment,
    fork,
    killed,
    train,
    undisturbed,
)


@pytest.fixture
def whole(tmp_path, monkeypatch, request, one_thread):  # noqa: ARG001
    """A run nobody disturbs."""
    more = {name.replace("__", "."): value for name, value in getattr(request, "param", {}).items()}
    monkeypatch.setattr(kills, "RUN", kills.RUN | more)
    return undisturbed(tmp_path)


@pytest.mark.parametrize("whole", [{}, AUGMENTED], indirect=True, ids=["plain", "augmented"])
def test_runs_that_are_killed_end_like_others(whole, tmp_path):
    figures = Figures()
    for number in range(10):
        figures.add(experiment(1, number, tmp_path / f"{number}", whole))
    assert figures.faults == []
    assert (figures.endings, figures.identical, figures.unreadable) == (10, 10, 0)
    assert sum(figures.kills.values()) >= 10


def test_run_that_is_killed_while_it_writes_ends_like_others(whole, tmp_path):
    for number, moment in enumerate(MOMENTS):
        blow = Blow(write=number + 3, moment=moment, share=0.5)
        assert killed(tmp_path / moment, False, blow, whole) == "checkpoint writing"
        parts = list((tmp_path / moment / "run").glob(".last.ckpt.*.part"))
        assert len(parts) == (moment != "after the renaming")
        assert fork(lambda runs=tmp_path / moment: train(runs, resume=True)) == 0
        assert list(differences(whole.folder, tmp_path / moment / "run")) == []
        assert not list((tmp_path / moment / "run").glob(".*"))


def test_killed_tells_when_a_run_ended_first(whole, tmp_path):
    assert killed(tmp_path / "run", False, Blow(), whole) is None


def test_differences_finds_a_bit(whole, tmp_path):
    other = shutil.copytree(whole.folder, tmp_path / "other")
    assert list(differences(whole.folder, other)) == []
    content = torch.load(other / "last.ckpt", weights_only=True)
    content["optimizer_states"][0]["state"][1]["momentum_buffer"].view(torch.int32)[3] ^= 1
    torch.save(content, other / "last.ckpt")
    table = (other / "metrics.csv").read_text()
    (other / "metrics.csv").write_text(table.replace("\n2,", "\n3,"))
    assert list(differences(whole.folder, other)) == [
        "last.ckpt: optimizer_states: 0: state: 1: momentum_buffer",
        "metrics.csv: 1: epoch",
    ]


def test_draw_hits_every_write_and_every_moment():
    rng = random.Random(0)
    blows = [draw(rng, 5) for _ in range(400)]
    assert {blow.write for blow in blows} == {-1, 0, 1, 2, 3, 4}
    assert {blow.moment for blow in blows} == {"", *MOMENTS}
    assert all(0 <= blow.after <= SLOWER for blow in blows if blow.write < 0)


def test_fork_tells_how_it_ended(capfd):
    def fail():
        raise ValueError("so it is")

    assert [fork(lambda: None), fork(fail)] == [0, 1]
    assert "so it is" in capfd.readouterr().err
