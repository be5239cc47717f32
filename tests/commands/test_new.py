"""From a folder to a recipe, and from the recipe to a trained network."""

import os
import shlex

import pytest
import yaml

from tests.engine.conftest import write_pictures

SMALL = ["model.weights=null", "model.name=tiny", "model.block=null", "data.workers=0"]
SHORT = ["optim.epochs=1", "optim.warmup_epochs=0", "accelerator=cpu"]


def test_new_to_train_to_eval(cgnl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cgnl.report.write.try_to_report", lambda _: None)
    write_pictures(tmp_path / "my birds", count=8)
    status, out, err = cgnl("new", "my birds")
    assert (status, err) == (0, "")
    command = shlex.split(out.splitlines()[-1].partition("then: ")[2])
    assert command == ["cgnl", "train", "my birds.yaml"]
    assert yaml.safe_load((tmp_path / "my birds.yaml").read_text())["name"] == "my-birds"
    status, _, err = cgnl(*command[1:], *SMALL, *SHORT)
    assert status == 0, err
    status, out, err = cgnl("eval", "runs/my-birds")
    assert status == 0, err


def test_new_writes_where_it_is_told_and_over_nothing(cgnl, tmp_path):
    write_pictures(tmp_path / "birds", count=4)
    target = tmp_path / "other.yaml"
    assert cgnl("new", tmp_path / "birds", "-o", target)[0] == 0
    before = target.read_bytes()
    status, out, err = cgnl("new", tmp_path / "birds", "-o", target)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert str(target) in err
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["nowhere", "file", "empty", "broken"])
def test_new_refuses_in_one_line(cgnl, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for path in write_pictures(tmp_path / "broken", count=1):
        path.write_text("broken")
    status, out, err = cgnl("new", name)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert name in err
    assert not list(tmp_path.glob("*.yaml"))


def test_new_names_a_folder_it_may_not_read(cgnl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closed").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # a user who may read everything has no closed folders
    status, out, err = cgnl("new", "closed")
    assert (status, out, err) == (2, "", "cgnl new: closed cannot be read or written: Permission denied\n")


@pytest.mark.parametrize(
    ("output", "message"), [("recipe.txt", "recipe.txt must end in .yaml"), ("no/where.yaml", "no/where.yaml")]
)
def test_new_refuses_an_output(cgnl, tmp_path, monkeypatch, output, message):
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "birds", count=4)
    status, out, err = cgnl("new", "birds", "-o", output)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
