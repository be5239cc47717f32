"""Runs from beginning to end: what they leave, and that one which was stopped ends as if it had not been."""

import itertools
import json
import math
import os
import shlex
import signal
from pathlib import Path

import pytest
import torch

from cgnl.commands.data import data as data_command
from cgnl.engine import loop
from cgnl.engine.config import load, read_recipe
from cgnl.engine.datasets import open_dataset, with_defaults
from cgnl.engine.loop import Loop
from cgnl.engine.tasks import Images
from cgnl.engine.train import choose_batch_size, resolve, train
from tests.engine.conftest import (
    AUGMENTED,
    PICTURES,
    SETTINGS,
    Death,
    dying,
    fake_accuracies,
    options,
    same,
    table,
    weights,
    write_pictures,
)
from tests.engine.forks import run_command, start, wait

ROOT = Path(__file__).parents[2]
VARIANTS = {
    "plain": {},
    "adamw": {"optim__optimizer": "adamw", "optim__lr": 0.01, "optim__layer_decay": 0.7, "optim__decay_norms": False},
    "frozen": {"optim__freeze": ["conv1", "norm1"], "optim__ema": 0.5},
    "test_every": {"test_every": 2},
    "last epoch without a test in between": {"test_every": 2, "optim__epochs": 1, "optim__warmup_epochs": 2},
    "workers": {"data__workers": 1},
    "ema and accumulate": {"optim__ema": 0.9, "optim__accumulate": 2, "optim__clip_norm": 0.5},
    "patience": {"patience": 1, "optim__epochs": 4, "optim__lr": 1e-6},
    "augmented": {**AUGMENTED, "optim__label_smoothing": 0.1},
}
RESUMABLE = {"save_every": 2, "model__dropout": 0.5}


def die(*_):
    raise Death


def assert_same_run(one, other):
    assert same(weights(one.folder / "last.ckpt"), weights(other.folder / "last.ckpt"))
    assert same(weights(one.folder / "best.ckpt"), weights(other.folder / "best.ckpt"))
    assert table(one.folder) == table(other.folder)
    assert (one.test, one.best, one.unreadable) == (other.test, other.best, other.unreadable)


@pytest.mark.parametrize("variant", VARIANTS)
def test_train_resume_after_a_death_in_any_step_ends_the_same(run, tmp_path, monkeypatch, variant):
    settings = RESUMABLE | VARIANTS[variant]
    whole = run(runs=tmp_path / "whole", **settings)
    batches = whole.rows[-1]["step"] * settings.get("optim__accumulate", 1)
    assert batches >= 6
    for k in (1, 4) if variant == "workers" else range(batches):  # to start workers takes longest
        with monkeypatch.context() as patch:
            dying(patch, k)
            with pytest.raises(Death):
                run(runs=tmp_path / f"{k}", **settings)
        assert_same_run(run(resume=True, runs=tmp_path / f"{k}", **settings), whole)


def test_train_resume_after_a_death_in_a_test_ends_the_same(run, tmp_path, monkeypatch):
    whole = run(runs=tmp_path / "whole", **RESUMABLE)
    with monkeypatch.context() as patch:
        patch.setattr(Images, "test_step", die)
        with pytest.raises(Death):
            run(runs=tmp_path / "part", **RESUMABLE)
    assert_same_run(run(resume=True, runs=tmp_path / "part", **RESUMABLE), whole)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_train_resume_after_a_death_at_any_write_ends_the_same(run, tmp_path, monkeypatch, before):
    original, whole = loop.write, run(runs=tmp_path / "whole", **RESUMABLE)
    deaths = 0
    for last in itertools.count():
        written = itertools.count()

        def write(checkpoint, path, written=written, last=last):
            dies = next(written) == last
            if not (dies and before):
                original(checkpoint, path)
            if dies:
                raise Death

        with monkeypatch.context() as patch:
            patch.setattr(loop, "write", write)
            try:
                run(runs=tmp_path / f"{last}", **RESUMABLE)
                break
            except Death:
                deaths += 1
        assert_same_run(run(resume=True, runs=tmp_path / f"{last}", **RESUMABLE), whole)
    assert deaths >= 5


def test_train_resume_may_die_again(run, tmp_path, monkeypatch):
    whole = run(runs=tmp_path / "whole", **RESUMABLE)
    for k in range(6):
        with monkeypatch.context() as patch:
            dying(patch, k)
            with pytest.raises(Death):
                run(resume=k > 0, runs=tmp_path / "part", **RESUMABLE | {"save_every": 1})
    settings = RESUMABLE | {"save_every": 1}
    assert_same_run(run(resume=True, runs=tmp_path / "part", **settings), whole)


@pytest.mark.parametrize(("number", "steps"), [(signal.SIGINT, range(6)), (signal.SIGTERM, (2, 5))])
def test_train_saves_and_stops_when_it_is_asked_to(run, tmp_path, monkeypatch, number, steps):
    settings = {"model__dropout": 0.5}
    whole, handler = run(runs=tmp_path / "whole", **settings), signal.getsignal(number)
    backward = Loop.backward
    for k in steps:

        def step(self, batch, batch_number, last_part, k=k):
            if batch_number == k:
                signal.raise_signal(number)
            return backward(self, batch, batch_number, last_part)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "backward", step)
            with pytest.raises(SystemExit) as stop:
                run(runs=tmp_path / f"{k}", **settings)
        assert stop.value.code == 130
        assert signal.getsignal(number) is handler
        folder = tmp_path / f"{k}" / "run"
        assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == k + 1
        assert "--resume continues" in (folder / "log.txt").read_text()
        assert_same_run(run(resume=True, runs=tmp_path / f"{k}", **settings), whole)


@pytest.mark.usefixtures("one_thread")
def test_train_command_that_was_ended_goes_on(run, cgnl, tmp_path):
    settings = {"model__dropout": 0.5, "save_every": 2, "data__samples": 36}  # four steps in an epoch
    arguments = ["train", "parts", *options(**settings, runs=tmp_path / "part", data__workers=1)]
    backward = Loop.backward

    def step(self, batch, number, last_part):
        if number == 3:
            os.killpg(0, getattr(signal, self.config.name))  # as a terminal does: the workers get it too
        backward(self, batch, number, last_part)

    def end(name):
        os.setsid()
        Loop.backward = step
        return run_command([*arguments, f"name={name}"], tmp_path / name)

    for name, status in (("SIGKILL", -signal.SIGKILL), ("SIGINT", 130)):
        assert wait(start(lambda name=name: end(name))) == status
        assert "Traceback" not in (tmp_path / f"{name}.err").read_text()
    whole = run(runs=tmp_path / "whole", **settings)
    for name, saved in (("SIGKILL", 2), ("SIGINT", 4)):
        folder = tmp_path / "part" / name
        assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == saved
        assert cgnl(*arguments, f"name={name}", "--resume")[0] == 0
        assert same(weights(folder / "last.ckpt"), weights(whole.folder / "last.ckpt"))
        assert table(folder) == table(whole.folder)


def test_train_leaves_a_folder_with_everything(run):
    result = run()
    names = {path.name for path in result.folder.iterdir()}
    wanted = {"config.yaml", "metrics.csv", "best.ckpt", "last.ckpt", "log.txt", "environment.json", "results.json"}
    assert names == wanted | {"predictions.csv", "classes.csv", "confusion.csv"}


def test_train_writes_its_settings_as_a_recipe(run, tmp_path):
    folder = run(optim__drops=[1, 2], data__area=[0.5, 1.0], optim__ema=0.5).folder
    again = load(folder / "config.yaml")
    given = load(
        "parts",
        {**SETTINGS, "runs": str(tmp_path), "optim.drops": [1, 2], "data.area": [0.5, 1.0], "optim.ema": 0.5},
    )
    assert again == with_defaults(given)
    second = run(recipe=str(folder / "config.yaml"), optim__drops=[1, 2], optim__ema=0.5)
    assert same(weights(folder / "last.ckpt"), weights(second.folder / "last.ckpt"))


def test_train_table_has_one_row_for_each_epoch(run):
    result = run(optim__warmup_epochs=1)
    rows = table(result.folder)
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "3"), ("2", "6"), ("3", "9")]
    assert [float(row["train_loss"]) for row in rows] == [row["train_loss"] for row in result.rows]
    assert float(rows[-1]["test_top1"]) == result.test["test_top1"]


def test_train_writes_results(run):
    result = run()
    summary = json.loads((result.folder / "results.json").read_text())
    assert summary == {**result.test, "best_top1": result.best, "unreadable": 0, "seconds": result.seconds}


def test_train_ends_with_a_command_that_a_shell_reads(run):
    folder = run(name="CUB ünï run").folder
    line = next(line for line in (folder / "log.txt").read_text().splitlines() if "try it: " in line)
    assert shlex.split(line.partition("try it: ")[2]) == ["cgnl", "predict", str(folder / "last.ckpt"), "IMAGE"]


def test_train_never_writes_over_another_run(run):
    first, second, third = run(seed=1), run(seed=2), run(seed=3)
    assert [r.folder.name for r in (first, second, third)] == ["run", "run-2", "run-3"]
    assert not same(weights(first.folder / "last.ckpt"), weights(second.folder / "last.ckpt"))


def test_train_in_a_folder_of_a_folder(run, tmp_path):
    assert [run(name="a/b").folder for _ in range(2)] == [tmp_path / "a" / "b", tmp_path / "a" / "b-2"]
    logs = [(tmp_path / "a" / name / "log.txt").read_text() for name in ("b", "b-2")]
    assert [f"there is a run {tmp_path / 'a' / 'b'} already" in text for text in logs] == [False, True]


def test_train_refuses_to_freeze_nothing_before_there_is_a_folder(run, tmp_path):
    with pytest.raises(ValueError, match=r"optim\.freeze.*'layer9'"):
        run(optim__freeze=["layer9"])
    assert not (tmp_path / "run").exists()


def test_train_resume_refuses_weights_alone(run):
    folder = run().folder
    (folder / "best.ckpt").rename(folder / "last.ckpt")
    with pytest.raises(ValueError, match=r"last\.ckpt holds weights alone"):
        run(resume=True)


def test_train_says_everything_of_the_last_epoch(run, monkeypatch):
    fake_accuracies(monkeypatch, [0.75, 0.5])
    folder = run().folder
    lines = (folder / "log.txt").read_text().splitlines()
    written = json.loads((folder / "results.json").read_text())
    assert (written["test_top1"], written["best_top1"]) == (0.5, 0.75)
    number = next(i for i, line in enumerate(lines) if "test: top-1 50.00%" in line)
    assert str(folder / "last.ckpt") in lines[number - 1]
    assert [str(folder / "best.ckpt") in line for line in lines if "75.00%, of" in line] == [True]
    assert "last.ckpt" in next(line for line in lines if "try it" in line)


def test_train_writes_down_the_side_of_the_test(run, tmp_path):
    write_pictures(tmp_path / "pictures")
    settings = {"recipe": None, "data__root": str(tmp_path / "pictures"), "data__size": 28}
    first = run(**settings)
    assert read_recipe(first.folder / "config.yaml")["data"]["test_short_side"] == 32
    assert run(resume=True, **settings, data__test_short_side=32).folder == first.folder
    assert run(**settings, data__test_short_side=32).test == first.test


def test_train_outside_of_its_folder_is_refused_before_anything_is_written(cgnl, tmp_path):
    status, out, err = cgnl("train", *options(runs=tmp_path / "runs", name="../evil"))
    assert (status, out, list(tmp_path.iterdir())) == (2, "", [])
    assert err.startswith("cgnl train: name = '../evil' must name a folder within runs, such as ")


def test_train_names_a_folder_it_cannot_write_to(cgnl, tmp_path):
    (tmp_path / "runs").touch()
    status, out, err = cgnl("train", *options(runs=tmp_path / "runs"))
    assert (status, out) == (2, "")
    assert err == f"cgnl train: {tmp_path / 'runs' / 'run'} cannot be written to: Not a directory\n"


def test_train_resume_takes_the_newest_run(run, monkeypatch):
    first = run()
    before = (first.folder / "last.ckpt").read_bytes()
    with monkeypatch.context() as patch:
        dying(patch, 5)
        with pytest.raises(Death):
            run()
    second = run(resume=True).folder
    assert second.name == "run-2"
    assert (
        f"newest run of this name with these settings, stopped ones first: {second}" in (second / "log.txt").read_text()
    )
    assert (first.folder / "last.ckpt").read_bytes() == before


def test_train_resume_of_a_run_under_way_is_refused(run, monkeypatch):
    backward, refused = Loop.backward, []

    def again(self, *batch):
        if not refused:
            refused.append(True)
            with pytest.raises(ValueError, match=rf"run is being trained by process {os.getpid()} on "):
                run(resume=True)
        backward(self, *batch)

    monkeypatch.setattr(Loop, "backward", again)
    run()
    assert refused


def test_train_twice_in_a_process_makes_two_runs(tmp_path):
    one, other = (
        train(load("parts", {**SETTINGS, "runs": str(tmp_path), "name": name})).folder for name in ("one", "other")
    )
    assert (one.name, other.name) == ("one", "other")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"optim__lr": 0.5}, "optim.lr = 0.8, not 0.5"),
        ({"seed": 1}, "seed = 0, not 1"),
        ({"data__samples": 28}, "data.samples = 24, not 28"),
        ({"model__name": "tiny_group"}, "model.name = tiny, not tiny_group"),
        ({"precision": "bf16"}, "precision = auto, not bf16"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_train_resume_refuses_other_settings(run, setting, sentence):
    folder = run().folder
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".ckpt", ".yaml", ".csv")}
    with pytest.raises(ValueError, match=sentence) as error:
        run(resume=True, **setting)
    assert str(folder / "last.ckpt") in str(error.value)
    assert {name: (folder / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("setting", [{"test_every": 2}, {"save_every": 1}, {"data__workers": 1}], ids=str)
def test_train_resume_goes_on_with_what_may_change(run, tmp_path, monkeypatch, setting):
    whole = run(runs=tmp_path / "whole", **RESUMABLE)
    with monkeypatch.context() as patch:
        dying(patch, 4)
        with pytest.raises(Death):
            run(**RESUMABLE)
    part = run(resume=True, **RESUMABLE | setting)
    assert same(weights(part.folder / "last.ckpt"), weights(whole.folder / "last.ckpt"))


@pytest.mark.parametrize("settings", [{}, {"optim__ema": 0.9}, {"test_every": 2, "optim__epochs": 3}], ids=str)
def test_train_resume_of_a_finished_run_changes_nothing(run, settings):
    first = run(**settings)
    before, rows = weights(first.folder / "last.ckpt"), table(first.folder)
    again = run(resume=True, **settings)
    assert same(weights(again.folder / "last.ckpt"), before)
    assert table(again.folder) == rows
    assert (again.test, again.best) == (first.test, first.best)
    assert again.seconds == first.rows[-1]["seconds"]
    assert f"has ended already, at step {first.rows[-1]['step']}: " in (again.folder / "log.txt").read_text()


def test_train_resume_of_a_run_that_ran_out_of_patience_changes_nothing(run):
    settings = {"patience": 1, "optim__epochs": 5, "optim__lr": 1e-6}
    first = run(**settings)
    before, rows = weights(first.folder / "last.ckpt"), table(first.folder)
    assert len(rows) == 2
    again = run(resume=True, **settings)
    assert table(again.folder) == rows
    assert same(weights(again.folder / "last.ckpt"), before)


def test_train_resume_without_a_checkpoint_begins_anew(run, tmp_path, monkeypatch):
    whole = run(runs=tmp_path / "whole")
    with monkeypatch.context() as patch:
        dying(patch, 0)
        with pytest.raises(Death):
            run(runs=tmp_path / "part")
    part = run(resume=True, runs=tmp_path / "part")
    assert part.folder == tmp_path / "part" / "run"
    assert_same_run(part, whole)


def test_train_resume_of_a_run_that_ended_writes_what_was_lost(run, tmp_path):
    ended = run(runs=tmp_path)
    lost = {name: (ended.folder / name).read_text() for name in ("predictions.csv", "results.json")}
    for name in lost:
        (ended.folder / name).unlink()
    again = run(resume=True, runs=tmp_path)
    assert (again.folder, again.test) == (ended.folder, ended.test)
    assert (again.folder / "predictions.csv").read_text() == lost["predictions.csv"]


def test_train_in_silence_speaks_to_its_log_alone(run, capsys):
    result = run(silent=True)
    assert capsys.readouterr().out == ""
    assert "test: top-1" in (result.folder / "log.txt").read_text()


def test_train_resume_without_a_run_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"there is no run .*run to resume"):
        run(resume=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings", [{}, {"patience": 1, "optim__lr": 1e-9}, {"optim__ema": 0.9}], ids=str)
def test_train_that_has_ended_is_given_more_epochs(run, cgnl, settings):
    first = run(**settings)
    (first.folder.parent / "moved").mkdir()
    folder = first.folder.rename(first.folder.parent / "moved" / "elsewhere")
    status, out, err = cgnl("train", "--resume", folder, "optim.epochs=4")
    assert (status, err) == (0, "")
    rate = 0.8 * 8 / 256 if not settings.get("optim__lr") else 1e-9 * 8 / 256
    before, now = (rate * 0.5 * (1 + math.cos(math.pi * share)) for share in (5 / 6, 6 / 12))
    assert f"optim.epochs is now 4, not 2: the learning rate goes from {before:.4g} to {now:.4g}" in out
    rows = table(folder)
    assert [row["epoch"] for row in rows][:2] == ["1", "2"]
    assert len(rows) == (3 if "patience" in settings else 4)
    last = 9 if "patience" in settings else 12
    assert float(rows[-1]["lr"]) == pytest.approx(rate * 0.5 * (1 + math.cos(math.pi * (last - 1) / 12)))
    assert (folder / "results.json").exists()
    assert read_recipe(folder / "config.yaml")["optim"]["epochs"] == 4


def test_train_that_is_given_more_epochs_has_not_ended_until_they_are_made(run, monkeypatch):
    folder = run().folder
    with monkeypatch.context() as patch:
        dying(patch, 7)
        with pytest.raises(Death):
            run(resume=True, optim__epochs=3)
    assert not (folder / "results.json").exists()
    whole = run(resume=True, optim__epochs=3)
    assert whole.folder == folder
    assert [row["step"] for row in whole.rows] == [3, 6, 9]


def test_train_that_is_killed_goes_on_by_its_folder_alone(run, cgnl, tmp_path, monkeypatch):
    whole = run(runs=tmp_path / "whole", **RESUMABLE)
    with monkeypatch.context() as patch:
        dying(patch, 4)
        with pytest.raises(Death):
            run(**RESUMABLE)
    assert cgnl("train", "--resume", tmp_path / "run" / "last.ckpt")[0] == 0
    assert same(weights(tmp_path / "run" / "last.ckpt"), weights(whole.folder / "last.ckpt"))
    assert table(tmp_path / "run") == table(whole.folder)


@pytest.mark.parametrize("epochs", [2, 3])
def test_train_tests_the_last_epoch_whatever_test_every_is(run, epochs):
    result = run(test_every=2, optim__epochs=epochs)
    assert [bool(row.get("test_top1")) for row in table(result.folder)][:2] == [False, True]
    assert result.test["test_count"] == 6
    assert json.loads((result.folder / "results.json").read_text())["test_loss"] == result.test["test_loss"]


@pytest.mark.parametrize("test_every", [1, 2, 5])
def test_train_keeps_the_network_of_the_last_step(run, test_every):
    result = run(test_every=test_every, optim__epochs=3)
    last = torch.load(result.folder / "last.ckpt", weights_only=True)
    assert last["global_step"] == 9
    assert last["cgnl"]["results"] == result.test


def test_train_keeps_the_best_even_if_the_only_test_is_the_last(run):
    result = run(test_every=5)
    assert result.best == result.test["test_top1"]
    assert same(weights(result.folder / "best.ckpt"), weights(result.folder / "last.ckpt"))


def test_train_writes_the_last_test_to_the_table(run):
    result = run(test_every=2, optim__epochs=3)
    assert float(table(result.folder)[-1]["test_loss"]) == result.test["test_loss"]


def test_train_is_the_same_each_time(run, tmp_path):
    one, other = run(runs=tmp_path / "1", model__dropout=0.5), run(runs=tmp_path / "2", model__dropout=0.5)
    assert_same_run(one, other)


def test_train_augments_alike_from_a_cache(run, tmp_path):
    plain, one, other = (
        weights(run(runs=tmp_path / f"{n}", optim__epochs=1, **settings).folder / "last.ckpt")
        for n, settings in enumerate([{}, AUGMENTED, {**AUGMENTED, "data__cache": "gpu"}])  # here the memory of the CPU
    )
    assert same(one, other)
    assert not same(plain, one)


def test_train_depends_on_the_seed(run, tmp_path):
    one, other = run(runs=tmp_path / "1"), run(runs=tmp_path / "2", seed=1)
    assert not same(weights(one.folder / "last.ckpt"), weights(other.folder / "last.ckpt"))


def test_train_learns(run):
    rows = run(data__samples=192, optim__epochs=6, optim__lr=2.0, optim__batch_size=16, model__dropout=0.0).rows
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]


@pytest.mark.parametrize(
    ("dataset", "name", "words"),
    [
        ("parts", "c2d_resnet18", "which has images: resnet18 is one that does"),
        ("actions", "resnet34", "which has videos: c2d_resnet18 is one that does"),
    ],
)
def test_resolved_refuses_a_network_for_another_kind(dataset, name, words):
    config = load(None, {"data": {"dataset": dataset}, "model.name": name})
    with pytest.raises(ValueError, match=f"^model.name = {name} does not fit {dataset}, {words}$"):
        resolve(config, open_dataset(config.data))


def test_resolved_refuses_a_single_class(tmp_path):
    write_pictures(tmp_path / "only", classes="a", count=4)
    config = load(None, {"data.root": str(tmp_path / "only")})
    with pytest.raises(ValueError, match=r"has one class, a, and nothing to tell it from$"):
        resolve(config, open_dataset(config.data))


@pytest.mark.parametrize("limit", [None, 1])
def test_resolved_refuses_an_empty_class_as_data_check_does(tmp_path, limit):
    write_pictures(tmp_path / "only", classes="a", count=4)
    (tmp_path / "only" / "b").mkdir()
    config = load(None, {"data.root": str(tmp_path / "only"), "data.limit": limit})
    with pytest.raises(ValueError, match=r"is not usable: no training sample of class b$"):
        resolve(config, open_dataset(config.data))
    with pytest.raises(ValueError, match=r"is not usable: no readable training sample for class b$"):
        data_command("check", str(tmp_path / "only"))


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_resolved_refuses_to_mix_a_single_sample(name):
    settings = {f"data.{name}": 0.4, "optim.batch_size": 4, "optim.accumulate": 4}
    config = load("parts", settings)
    with pytest.raises(ValueError, match=rf"^data\.{name} = 0\.4 needs at least two samples at a time"):
        resolve(config, open_dataset(config.data))
    config = load("parts", settings | {"optim.accumulate": 2})
    assert getattr(resolve(config, open_dataset(config.data)).data, name) == 0.4


def test_resolved_names_a_run_by_dataset_network_and_block():
    config = load("parts", {"model.name": None})
    assert resolve(config, open_dataset(config.data)).name == "parts_resnet18_cgnl1"
    config = load("actions", {"model.name": None, "model.block": None})
    assert resolve(config, open_dataset(config.data)).name == "actions_c2d_resnet18_plain"


@pytest.mark.parametrize(("count", "world", "accumulate", "batch"), [(24, 1, 1, 8), (7, 1, 1, 7), (7, 2, 2, 4)])
def test_choose_batch_size_takes_what_there_is_in_equal_shares(count, world, accumulate, batch):
    settings = {"optim.batch_size": 8, "optim.accumulate": accumulate, "devices": world}
    assert choose_batch_size(load(None, settings), count) == batch


@pytest.mark.parametrize(("count", "world", "message"), [(24, 3, "does not divide"), (3, 4, "divided into 4 shares")])
def test_choose_batch_size_refuses_unequal_shares(count, world, message):
    with pytest.raises(ValueError, match=message):
        choose_batch_size(load(None, {"optim.batch_size": 8, "devices": world}), count)


def test_train_takes_all_samples_where_they_are_fewer_than_a_batch(run):
    result = run(optim__batch_size=64)
    assert [row["step"] for row in result.rows] == [1, 2]
    assert "a step takes 24 samples, not 64" in (result.folder / "log.txt").read_text()


def test_train_resume_refuses_other_samples(run):
    run(data__samples=24)
    with pytest.raises(ValueError, match=r"data\.samples = 24, not 48"):
        run(resume=True, data__samples=48)


def test_train_resume_refuses_a_folder_whose_files_have_changed(run, tmp_path):
    for split in ("train", "test"):
        write_pictures(tmp_path / "data" / split)
    settings = {"recipe": None, "data__root": str(tmp_path / "data"), **PICTURES}
    run(**settings)
    next((tmp_path / "data" / "train").rglob("*.*")).unlink()
    with pytest.raises(ValueError, match=r"last\.ckpt was begun with \[\d+, \d+\] samples"):
        run(resume=True, **settings)


def test_train_stops_if_nothing_of_a_class_can_be_read(run, tmp_path):
    write_pictures(tmp_path / "data", "abc", 5)
    for file in (tmp_path / "data" / "b").iterdir():
        file.write_bytes(b"no picture")
    settings = {
        "data__dataset": "folder",
        "data__root": str(tmp_path / "data"),
        "data__size": 32,
        "optim__batch_size": 4,
    }
    with pytest.raises(ValueError, match="no training sample of class b can be read"):
        run(recipe=None, **settings)
