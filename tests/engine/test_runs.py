"""The files of a run are read as they were written."""

import json

import pytest

from cgnl.engine.config import read_recipe
from cgnl.engine.runs import Run
from tests.engine.conftest import Death, dying


def test_run_that_has_ended(run):
    result = run(optim__epochs=2, test_every=2)
    read = Run(result.folder)
    assert read.finished
    assert read.config.optim.epochs == 2
    assert [row["epoch"] for row in read.rows] == [1, 2]
    assert ["test_top1" in row for row in read.rows] == [False, True]
    assert read.rows[-1]["train_loss"] == result.rows[-1]["train_loss"]
    assert read.results == {**result.test, "best_top1": result.best, "unreadable": 0, "seconds": result.seconds}
    assert set(read.environment["packages"]) >= {"cgnl", "torch"}
    assert len(read.predictions) == result.test["test_count"]


def test_run_that_was_stopped(run, tmp_path, monkeypatch):
    dying(monkeypatch, 4)
    with pytest.raises(Death):
        run()
    read = Run(tmp_path / "run")
    assert not read.finished
    assert (len(read.rows), read.results, read.predictions) == (1, {}, ())


def test_run_of_an_empty_folder(tmp_path):
    read = Run(tmp_path)
    assert (read.finished, read.rows, read.results, read.environment, read.predictions) == (False, (), {}, {}, ())
    with pytest.raises(ValueError, match=r"config\.yaml"):
        read.config  # noqa: B018


@pytest.mark.parametrize(
    ("name", "text", "attribute"),
    [
        ("metrics.csv", "a,b\n1,2\n", "rows"),
        ("metrics.csv", "epoch,loss\n1,x\n", "rows"),
        ("results.json", "{", "results"),
        ("results.json", json.dumps({"test_top1": [1]}), "results"),
        ("results.json", json.dumps({"test_top1": "much"}), "results"),
        ("environment.json", "[" * 100_000, "environment"),
        ("predictions.csv", "sample\n0\n", "predictions"),
    ],
)
def test_run_names_a_damaged_file(tmp_path, name, text, attribute):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        getattr(Run(tmp_path), attribute)


def test_run_reads_settings_that_are_newer_or_older(run):
    folder = run().folder
    settings = read_recipe(folder / "config.yaml")
    assert "timeout" in settings
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text("\n".join(line for line in text.splitlines() if "timeout" not in line))
    assert Run(folder).config.timeout == 600
