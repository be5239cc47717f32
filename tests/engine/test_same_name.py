"""The harness of benchmarks/same_name.py in its short form, and whether it would notice harm."""

import shutil

import pytest

from benchmarks.same_name import alone, faults, measure

pytestmark = pytest.mark.usefixtures("one_thread")


def test_trainings_of_one_name_and_runs_resumed_twice_are_not_mixed(tmp_path):
    figures = measure(2, 1, tmp_path)
    assert figures.faults == []
    assert figures.trained == {"run and run-2": 2}
    assert figures.resumed.total() == 2


def test_faults_are_files_of_another_run(tmp_path):
    whole, other = (alone(tmp_path / f"{seed}", seed) for seed in (0, 1))
    mixed = shutil.copytree(whole, tmp_path / "mixed")
    assert list(faults(mixed, whole)) == []
    for name in ("predictions.csv", "best.ckpt", "metrics.csv"):
        shutil.copy(other / name, mixed / name)
        assert any(name in fault for fault in faults(mixed, whole)), name
    (mixed / "left.part").touch()
    assert any("left.part" in fault for fault in faults(mixed, whole))
