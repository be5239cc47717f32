"""What the folder of a run says."""

import json
from pathlib import Path

import pytest

from cgnl.engine.config import load, to_yaml
from cgnl.engine.predictions import Prediction
from cgnl.experiments.runs import PlannedRun, digest, read_outcome, read_outcomes


@pytest.fixture
def ended(tmp_path):
    """A run that has ended."""

    def make(name: str, top1: float = 0.5, right: str | None = "0110", **settings) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        results = {"test_top1": top1, "test_top5": 1.0, "test_loss": 2.0, "seconds": 3.0}
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "config.yaml").write_text(to_yaml(load("parts", {"runs": str(tmp_path), "name": name, **settings})))
        if right:
            (folder / "right.txt").write_text(f"digest\n{right}\n")
        return folder

    return make


def test_read_outcome_is_in_per_cent(ended):
    outcome = read_outcome(ended("a_seed3"), 3)
    assert outcome.numbers == {"top1": 50.0, "top5": 100.0}
    assert (outcome.seed, outcome.split, outcome.seconds) == (3, 1, 3.0)
    assert (outcome.samples, outcome.correct, outcome.diagnosis) == ("digest", "0110", ())


def test_read_outcome_ignores_the_papers_numbers_in_older_runs(ended):
    folder = ended("a_seed0")
    with (folder / "config.yaml").open("a") as file:
        file.write("paper: {table: main results on CUB, top1: 85.14}\n")
    assert read_outcome(folder, 0).numbers["top1"] == 50.0


def test_read_outcome_takes_top1_from_what_was_kept_of_the_predictions(ended):
    assert read_outcome(ended("a_seed0", 0.625, "0111"), 0).numbers["top1"] == 75.0
    assert read_outcome(ended("a_seed1", 0.625, None), 1).numbers["top1"] == 62.5


@pytest.mark.parametrize(
    ("file", "content"),
    [("results.json", "{"), ("results.json", "{}"), ("right.txt", "one two three"), ("config.yaml", "a")],
)
def test_read_outcome_names_a_damaged_run(ended, file, content):
    folder = ended("a_seed0")
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=r"a_seed0 is damaged .*: remove it, and it will be run again"):
        read_outcome(folder, 0)


def test_read_outcomes_are_those_of_the_row_alone(ended, tmp_path):
    for name in ("a_seed1", "a_seed0", "a_b_seed0", "a_seed", "a_split2_seed0", "a_seed0-2", "b_a_seed0"):
        ended(name, **({"data.split": 2} if "split" in name else {}))
    (tmp_path / "a_seed7").mkdir()  # it has not ended
    assert [(o.seed, o.split) for o in read_outcomes(tmp_path, "a")] == [(0, 1), (0, 2), (1, 1)]
    assert [o.seed for o in read_outcomes(tmp_path, "a_b")] == [0]


def test_run_check_refuses_other_settings(ended, tmp_path):
    ended("a_seed0")
    told = {"runs": str(tmp_path), "name": "a_seed0"}
    for fine in ({}, {"compile": True}, {"precision": "bf16"}, {"data.workers": 3}):
        PlannedRun("a", "a", load("parts", {**told, **fine})).check()
    with pytest.raises(
        ValueError, match=r"begun with optim.lr = 0.27, not 0.5: give the same settings, or another --o"
    ):
        PlannedRun("a", "a", load("parts", {**told, "optim.lr": 0.5})).check()


def test_run_is_finished_when_everything_is_written(ended, tmp_path):
    config = load("parts", {"runs": str(tmp_path), "name": "a_seed0"})
    plain, diagnosed = PlannedRun("a", "a", config), PlannedRun("a", "a", config, diagnosed=True)
    assert not plain.finished
    folder = ended("a_seed0", right=None)
    assert not plain.finished
    (folder / "right.txt").write_text("digest\n0110\n")
    assert plain.finished
    assert not diagnosed.finished
    (folder / "diagnosis.csv").write_text("attention\n")
    assert diagnosed.finished


def test_digest_is_of_samples_wherever_they_are():
    def predictions(root: str, predicted: str = "x", label: str = "x") -> list[Prediction]:
        return [
            Prediction(0, label, predicted, 0.5, f"{root}/birds/1.jpg"),
            Prediction(1, "x", "x", 0.5, f"{root}/birds/2.jpg"),
        ]

    assert digest(predictions("/here")) == digest(predictions("/there/data", predicted="y"))
    assert digest(predictions("/here")) != digest(predictions("/here", label="y"))
    assert digest(predictions("/here")) != digest(predictions("/here")[::-1])
