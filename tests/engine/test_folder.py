"""The folder of a run: which one it is, and what may be other when a run goes on."""

import errno
import json
import logging
import os
import signal
import socket
import subprocess
import time
import warnings
from importlib import metadata
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from cgnl.engine.config import load, to_dict, to_yaml
from cgnl.engine.datasets import short_side_in_test
from cgnl.engine.distributed import FOLDER
from cgnl.engine.folder import (
    LOCK,
    check_same,
    commit,
    environment,
    log_to_console,
    open_log,
    run_folder,
    take_folder,
)
from tests.engine.kills import fork


@pytest.fixture
def begin(tmp_path):
    """The folder of a run that is begun."""

    def call(name="run", resume=False):
        folder = run_folder(load(None, {"name": name, "runs": str(tmp_path / "runs")}), resume)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").touch()
        return folder.relative_to(tmp_path / "runs").as_posix()

    return call


def test_run_folder_counts_runs_of_a_name(begin):
    assert [begin() for _ in range(11)] == ["run", *(f"run-{number}" for number in range(2, 12))]


def test_run_folder_of_one_name_is_not_that_of_another(begin):
    assert [begin(name) for name in ("run", "running", "run2", "ru")] == ["run", "running", "run2", "ru"]


@pytest.mark.parametrize("name", ["a[b]", "sub/run", "lr=0.1", "run*", "run-5"])
def test_run_folder_is_new_whatever_the_name(begin, name):
    folders = [begin(name) for _ in range(3)]
    assert folders[0] == name
    assert len(set(folders)) == 3


def test_run_folder_resume_takes_the_newest_by_number(begin):
    for _ in range(10):
        begin()
    assert begin(resume=True) == "run-10"


@pytest.mark.parametrize(
    ("ended", "taken"), [((), "run-3"), ((3,), "run-2"), ((2,), "run-3"), ((2, 3), "run"), ((1, 2, 3), "run-3")]
)
def test_run_folder_resume_takes_the_newest_that_has_not_ended(begin, tmp_path, ended, taken):
    for number in (1, 2, 3):
        name = begin()
        if number in ended:
            (tmp_path / "runs" / name / "results.json").touch()
    assert begin(resume=True) == taken


def test_run_folder_resume_without_a_run_names_those_there_are(begin, tmp_path):
    with pytest.raises(ValueError, match=r"there is no run .*runs/run to resume; .*runs has no runs$"):
        begin(resume=True)
    begin("other")
    with pytest.raises(ValueError, match=r"there is no run .*runs/run to resume; there is .*runs/other$"):
        begin(resume=True)
    (tmp_path / "runs" / "run").mkdir()  # of a run that was killed before it wrote anything
    assert begin(resume=True) == "run"


def test_run_folder_to_resume_may_be_given(tmp_path):
    assert run_folder(load(None, {"name": "run", "runs": "gone"}), tmp_path / "moved") == tmp_path / "moved"


def test_run_folder_resume_prefers_the_same_epochs_to_fewer(tmp_path):
    for name, epochs in (("run", 5), ("run-2", 3)):
        (tmp_path / name).mkdir()
        config = load(None, {"name": "run", "runs": str(tmp_path), "optim.epochs": epochs})
        (tmp_path / name / "config.yaml").write_text(to_yaml(config))
    for epochs, name in ((5, "run"), (3, "run-2"), (7, "run-2")):
        config = load(None, {"name": "run", "runs": str(tmp_path), "optim.epochs": epochs})
        assert run_folder(config, resume=True).name == name


def test_run_folder_that_was_never_begun_is_taken(begin, tmp_path):
    (tmp_path / "runs" / "run").mkdir(parents=True)
    assert begin() == "run"


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID"])
def test_run_folder_is_one_for_all_processes_of_a_launcher(begin, monkeypatch, variable):
    monkeypatch.setenv(variable, "0")
    assert begin() == "run"
    monkeypatch.setenv(variable, "1")
    assert begin() == "run"


def test_run_folder_of_a_launcher_is_not_written_over(begin, monkeypatch):
    begin()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=r"run exists already: .*--resume"):
        begin()
    assert begin(resume=True) == "run"


def test_run_folder_of_a_rank_that_was_started_is_that_of_rank_zero(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path / "run-7"))
    assert run_folder(load(None, {"name": "run", "runs": str(tmp_path)}), False) == tmp_path / "run-7"


@pytest.fixture
def taking(tmp_path):
    """What takes the folder of a run of this name."""
    config = load(None, {"name": "run", "runs": str(tmp_path / "runs")})
    return lambda resume=False: take_folder(config, resume)


def test_take_folder_gives_runs_begun_together_a_folder_each(taking, tmp_path):
    with taking() as first, taking() as second, taking() as third:
        assert [folder.name for folder in (first, second, third)] == ["run", "run-2", "run-3"]
    assert not (tmp_path / "runs").exists()  # nothing was written


def test_take_folder_gives_a_folder_back(taking):
    for _ in range(2):
        with taking() as folder:
            assert folder.name == "run"


def test_take_folder_that_another_run_has_begun_and_left_meanwhile(taking, monkeypatch):
    acquire = FileLock.acquire

    def slow(self, *arguments, **options):
        if Path(self.lock_file).parent.name == "run":
            (Path(self.lock_file).parent / "config.yaml").touch()
        return acquire(self, *arguments, **options)

    monkeypatch.setattr(FileLock, "acquire", slow)
    with taking() as folder:
        assert folder.name == "run-2"


@pytest.mark.parametrize("launched", [False, True])
def test_take_folder_refuses_a_run_under_way(taking, monkeypatch, launched):
    if launched:
        monkeypatch.setenv("RANK", "0")
    with taking() as folder:
        (folder / "config.yaml").touch()
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(ValueError, match=rf"runs/run is being trained by {owner}"), taking(resume=True):
            pass
    with taking(resume=True) as again:
        assert again == folder


def test_take_folder_does_not_need_to_say_who_has_it(taking, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with taking() as folder:
        (folder / "config.yaml").touch()
        with pytest.raises(ValueError, match="is being trained by another process"), taking(resume=True):
            pass


def test_take_folder_is_for_rank_zero(taking, monkeypatch):
    with taking() as folder:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with taking() as other:
            assert other == folder


def test_take_folder_of_a_process_that_was_killed_is_free_even_while_its_workers_live(taking):
    def hold():
        with taking() as folder:
            (folder / "config.yaml").touch()
            if not os.fork():
                time.sleep(5)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    assert fork(hold) == -signal.SIGKILL
    with taking(resume=True) as folder:
        assert [path.name for path in folder.iterdir() if path.name != LOCK] == ["config.yaml"]


FREE = {
    "name": "other",
    "runs": "elsewhere",
    "devices": 2,
    "nodes": 2,
    "accelerator": "cpu",
    "test_every": 5,
    "save_every": 7,
    "tensorboard": True,
    "logger": "wandb",
    "data.root": "elsewhere",
    "data.lists": "elsewhere",
    "data.workers": 3,
    "data.cache": "gpu",
    "data.bad_limit": 7,
}
FIXED = {
    "seed": 1,
    "precision": "32",
    "channels_last": False,
    "deterministic": True,
    "data.dataset": "folder",
    "data.samples": 7,
    "data.area": [0.5, 1.0],
    "data.flip": False,
    "data.augment": "rand",
    "data.mixup": 0.2,
    "model.name": "resnet50",
    "model.block": None,
    "model.options": {"groups": 2},
    "model.dropout": 0.1,
    "optim.lr": 0.5,
    "optim.batch_size": 16,
    "optim.accumulate": 2,
    "optim.epochs": 700,
    "optim.drops": [1],
    "optim.ema": 0.5,
}


@pytest.mark.parametrize("setting", FREE)
def test_check_same_lets_a_run_go_on_elsewhere(setting, tmp_path):
    check_same(load("parts", {setting: FREE[setting]}), {"cgnl": {"config": to_dict(load("parts"))}}, tmp_path)


def test_check_same_lets_the_file_of_weights_be_moved(tmp_path):
    begun, now, other = (load("parts", {"model.weights": name}) for name in ("/a/w.pth", "w.pth", "v.pth"))
    check_same(now, {"cgnl": {"config": to_dict(begun)}}, tmp_path)
    with pytest.raises(ValueError, match=r"model\.weights = /a/w\.pth, not v\.pth"):
        check_same(other, {"cgnl": {"config": to_dict(begun)}}, tmp_path)


def test_check_same_lets_a_run_have_more_epochs(tmp_path):
    begun, now = load("parts", {"optim.epochs": 2}), load("parts", {"optim.epochs": 3})
    check_same(now, {"cgnl": {"config": to_dict(begun)}}, tmp_path)


@pytest.mark.parametrize("setting", FIXED)
def test_check_same_names_the_setting_that_is_another(setting, tmp_path):
    begun = load("parts", {setting: FIXED[setting]})
    with pytest.raises(ValueError, match=rf"last\.ckpt was begun with {setting} = .*, not ") as error:
        check_same(load("parts"), {"cgnl": {"config": to_dict(begun)}}, tmp_path / "last.ckpt")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("recipe", ["relation", "cub_r50_cgnl1", "coco_maskrcnn_r50", "actions"])
def test_check_same_takes_a_default_for_its_number(tmp_path, recipe):
    side = short_side_in_test(load(recipe).data)
    open_, given = (load(recipe, {"data.test_short_side": value}) for value in (None, side))
    for begun, now in ((given, open_), (open_, given)):
        check_same(now, {"cgnl": {"config": to_dict(begun)}}, tmp_path)
    other = load(recipe, {"data.test_short_side": side + 1})
    with pytest.raises(ValueError, match=rf"data\.test_short_side = {side + 1}, not {side}"):
        check_same(open_, {"cgnl": {"config": to_dict(other)}}, tmp_path)


def test_check_same_accepts_a_checkpoint_as_it_is_read_back(tmp_path):
    config = load("cub_r50_cgnl1", {"model.options": {"groups": 4}})
    torch.save(to_dict(config), tmp_path / "config")
    check_same(config, {"cgnl": {"config": torch.load(tmp_path / "config", weights_only=True)}}, tmp_path)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with the package in it, and what runs git there."""
    monkeypatch.delenv("CGNL_COMMIT", raising=False)
    package = tmp_path / "repository" / "src" / "cgnl"
    (package / "engine").mkdir(parents=True)
    for name in ("src/cgnl/blocks.py", "README.md"):
        (tmp_path / "repository" / name).write_text("first")
    monkeypatch.setattr("cgnl.engine.folder.__file__", str(package / "engine" / "folder.py"))

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *identity, *words], cwd=package, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", str(tmp_path / "repository"))
    git("add", str(tmp_path / "repository"))
    return package, git


def test_commit_is_that_of_the_source(repository):
    package, git = repository
    assert commit() is None  # before the first
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    (package / "untracked.py").write_text("new")
    (package.parents[1] / "README.md").write_text("changed")
    assert commit() == head
    (package / "blocks.py").write_text("changed")
    assert commit() == f"{head}-dirty"


def test_commit_is_none_without_a_repository_of_its_own(repository):
    package, git = repository
    git("commit", "-m", "first")
    package.parents[1].joinpath(".git").rename(package.parents[2] / ".git")  # of a project that it is installed in
    assert commit() is None


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)], ids=repr)
def test_commit_is_none_where_git_does_not_answer(repository, monkeypatch, error):
    def fail(*_, **__):
        raise error

    repository[1]("commit", "-m", "first")
    monkeypatch.setattr(subprocess, "run", fail)
    assert commit() is None


def test_commit_may_be_given(monkeypatch):
    monkeypatch.setenv("CGNL_COMMIT", "abc")
    assert commit() == "abc"


def test_environment_names_what_is_installed(monkeypatch):
    monkeypatch.setenv("CGNL_COMMIT", "abc")
    parse_card = json.loads(json.dumps(environment()))
    assert parse_card["commit"] == "abc"
    assert parse_card["packages"]["torch"] == metadata.version("torch")
    assert parse_card["python"].count(".") == 2


def test_log_to_console_also_writes_to_the_folder(tmp_path, capsys):
    with log_to_console():
        logging.getLogger("cgnl").info("[bold]5 of 10%s", "%")
        assert capsys.readouterr().out == "[bold]5 of 10%\n"
        open_log(tmp_path)
        logging.getLogger("cgnl").info("later")
    early, late = (tmp_path / "log.txt").read_text().splitlines()
    assert early.endswith(" INFO [bold]5 of 10%")
    assert late.endswith(" INFO later")


def test_log_to_console_within_another_says_things_once(capsys):
    with log_to_console():
        with log_to_console():
            logging.getLogger("cgnl").info("inner")
        logging.getLogger("cgnl").info("outer")
    assert capsys.readouterr().out == "inner\nouter\n"


def test_log_to_console_tells_warnings_without_the_code_they_come_from(capsys):
    with log_to_console():
        warnings.warn("one sample is few\nand more", stacklevel=1)
    assert tuple(capsys.readouterr()) == ("one sample is few\n", "")


def test_log_to_console_is_for_rank_zero(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with log_to_console():
        logging.getLogger("cgnl").info("hello")
    assert capsys.readouterr().out == ""


def test_run_folder_to_resume_is_the_same_for_several_processes(tmp_path, monkeypatch):
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
    config = load("parts", {"name": "run", "runs": str(tmp_path)})
    alone = run_folder(config, resume=True)
    monkeypatch.setenv("RANK", "1")
    assert run_folder(config, resume=True) == alone == tmp_path / "run-2"
