import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from cgnl.commands.train import repeat_by, train
from cgnl.engine.config import load, to_yaml
from tests.engine.conftest import write_pictures


@pytest.fixture
def given(monkeypatch):
    """What a run is started with, instead of running it."""
    calls = []
    monkeypatch.setattr("cgnl.engine.train.train", lambda *arguments, **_: calls.append(arguments))
    return calls


def test_train_without_a_recipe_learns_the_synthetic_pictures(given, tmp_path):
    settings: dict[str, Any] = {"runs": str(tmp_path)}
    train(resume=True, **settings)
    assert given == [(load("parts", {"runs": str(tmp_path)}), True, f"cgnl train runs={tmp_path}")]


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({"data.root": "birds"}, None),
        ({"data.dataset": "actions"}, "actions"),
        ({"data.dataset": "coco", "data.root": "coco"}, "base_objects"),
        ({"data.annotations": "mine.json"}, "base_objects"),
    ],
    ids=str,
)
def test_train_chooses_a_recipe_for_the_dataset(given, settings, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(settings.get("data.root", "birds")).mkdir()
    train(**settings)
    assert given[0][0] == load(recipe, settings)


def test_train_takes_the_recipe_that_is_given(given, tmp_path):
    settings: dict[str, Any] = {"data.root": str(tmp_path)}
    train("cub_r50", **settings)
    assert given[0][0] == load("cub_r50", settings)


def test_repeat_by_is_read_by_a_shell_as_it_was_meant():
    line = repeat_by(["cgnl", "train", "parts"], {"name": "it's", "data.area": "[0.5, 1]"})
    assert shlex.split(line) == ["cgnl", "train", "parts", "name=it's", "data.area=[0.5, 1]"]


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """The folder of a run, beside others."""
    monkeypatch.chdir(tmp_path)
    for name in ("pets", "pets-2", "birds/first"):
        folder = Path("runs", name)
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(to_yaml(load("parts", {"name": "pets", "optim.lr": 0.25})))
        (folder / "environment.json").write_text(json.dumps({"command": "cgnl train parts optim.lr=0.25"}))
    for name in ("last.ckpt", "best.ckpt", "metrics.csv"):
        Path("runs", "pets-2", name).touch()
    return Path("runs", "pets-2")


@pytest.mark.parametrize("word", ["runs/pets-2", "runs/pets-2/", "pets-2", "runs/pets-2/last.ckpt"])
@pytest.mark.parametrize("settings", [{}, {"optim.epochs": "60"}], ids=str)
def test_train_resumes_a_folder_with_its_own_settings(given, pets, word, settings):
    train(word, resume=True, **settings)
    config = load("parts", {"name": "pets", "optim.lr": 0.25, **settings})
    repeat = " ".join(["cgnl train parts optim.lr=0.25", *(f"{name}={value}" for name, value in settings.items())])
    assert given == [(config, pets, repeat)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--resume", "runs/pets-2"),
        ("runs/pets-2", "--resume"),
        ("--resume=runs/pets-2",),
        ("resume=runs/pets-2/last.ckpt",),
        ("--resume=TRUE", "runs/pets-2"),
    ],
    ids=" ".join,
)
def test_train_resume_takes_the_folder_before_or_after(cgnl, given, pets, arguments):
    assert cgnl("train", *arguments, "optim.epochs=60")[0] == 0
    assert given[0][0].optim.epochs == 60
    assert given[0][1] == pets


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize("arguments", [("parts", "--resume=runs/pets-2"), ("--resume=runs/pest",), ("--resume=",)])
def test_train_resume_with_an_equals_sign_refuses_what_is_no_run(cgnl, given, arguments):
    status, _, err = cgnl("train", *arguments)
    assert (status, given, err.count("\n")) == (2, [], 1)


@pytest.mark.parametrize("name", ["", "last.ckpt", "best.ckpt"])
def test_train_refuses_a_run_as_a_recipe(cgnl, given, pets, name):
    status, _, err = cgnl("train", Path(pets) / name)
    assert (status, given) == (2, [])
    assert f"cgnl train --resume {Path(pets)} " in err


def test_train_resumes_an_older_run_folder(given, pets):
    (pets / "environment.json").unlink()
    with (pets / "config.yaml").open("a") as file:
        file.write("paper: {top1: 0.5}\n")
    train(str(pets), resume=True)
    assert given[0][1:] == (pets, "cgnl train runs/pets-2/config.yaml")


@pytest.mark.parametrize("command", [7, ["a"], "cgnl train 'open", None, ""], ids=str)
def test_train_resumes_a_run_whose_command_cannot_be_read(given, pets, command):
    (pets / "environment.json").write_text(json.dumps({"command": command}))
    train(str(pets), resume=True)
    assert given[0][1:] == (pets, "cgnl train runs/pets-2/config.yaml")


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize("name", ["best.ckpt", "metrics.csv"])
def test_train_resume_refuses_other_files_of_a_run_by_name(cgnl, given, name):
    status, _, err = cgnl("train", "--resume", f"runs/pets-2/{name}")
    assert (status, given) == (2, [])
    assert f"runs/pets-2/{name} cannot be resumed" in err
    assert err.endswith("cgnl train --resume runs/pets-2\n")


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize("word", ["runs/pest", "runs", "birds", "runs/pets-3/last.ckpt"])
def test_train_resume_of_no_run_names_those_there_are(cgnl, given, word):
    status, _, err = cgnl("train", "--resume", word)
    assert (status, given) == (2, [])
    assert err.startswith(f"cgnl train: {word} is neither a run")
    assert err.endswith("there is runs/birds/first, runs/pets, runs/pets-2\n")


def test_train_without_resume_says_what_a_run_folder_is_for(cgnl, given, pets):
    status, _, err = cgnl("train", pets)
    assert (status, given) == (2, [])
    assert "cgnl train --resume runs/pets-2" in err
    assert "cgnl train runs/pets-2/config.yaml" in err


def test_find_lr_draws_nothing_into_the_dataset(cgnl, tmp_path):
    picture, *_ = write_pictures(tmp_path / "data", count=2)
    content = picture.read_bytes()
    status, _, err = cgnl("train", f"data.root={tmp_path / 'data'}", "--find-lr", "-o", picture)
    assert (status, "is within" in err, picture.read_bytes() == content) == (2, True, True)
