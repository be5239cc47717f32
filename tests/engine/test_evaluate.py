"""Checkpoints tested again give the numbers of the run they come from."""

import json
import re
import shutil

import pytest
import torch

from cgnl.engine.evaluate import evaluate
from cgnl.engine.progress import Lines
from cgnl.engine.settings import setting_names
from tests.engine.conftest import PICTURES, VIDEOS, write_frame_folders, write_pictures


@pytest.mark.parametrize("settings", [{}, {"optim__ema": 0.9}, {"test_every": 2, "optim__epochs": 3}], ids=str)
def test_evaluate_equals_the_last_test_of_training(run, settings):
    result = run(data__samples=72, optim__lr=2.0, **settings)
    assert evaluate(result.folder / "last.ckpt")["test"] == result.test


def test_evaluate_of_the_best_equals_its_test(run):
    result = run(data__samples=72, optim__lr=2.0, optim__epochs=4)
    assert evaluate(str(result.folder / "best.ckpt"))["test"]["test_top1"] == result.best


def test_evaluate_of_pictures_that_were_held_out(run, tmp_path):
    write_pictures(tmp_path / "data")
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    assert evaluate(result.folder / "last.ckpt")["test"] == result.test


def test_evaluate_of_videos_takes_all_views(run, tmp_path):
    write_frame_folders(tmp_path / "data", contrast=4)
    result = run(recipe=None, data__root=str(tmp_path / "data"), **VIDEOS)
    tested = evaluate(result.folder / "last.ckpt")
    assert tested["test"] == result.test
    assert tested["test"]["test_views"] == 6
    assert "softmax averaged over 6 views" in tested["words"][0]


def test_evaluate_takes_other_views_when_told(run, tmp_path):
    write_frame_folders(tmp_path / "data", contrast=4)
    result = run(recipe=None, data__root=str(tmp_path / "data"), **VIDEOS)
    tested = evaluate(result.folder / "last.ckpt", {"data.test_clips": 1, "data.test_crops": 1})["test"]
    between = {name: value for name, value in result.rows[-1].items() if name.startswith("test_")}
    assert tested == pytest.approx(between, rel=1e-6)


def test_evaluate_finds_the_data_elsewhere(run, tmp_path):
    write_pictures(tmp_path / "data")
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    assert evaluate(result.folder / "last.ckpt", {"data.root": str(tmp_path / "moved")})["test"] == result.test
    sentence = f"was trained on {tmp_path / 'data'}, which is not here: data.root=FOLDER says where it is"
    with pytest.raises(ValueError, match=f"last.ckpt {sentence}$"):
        evaluate(result.folder / "last.ckpt")
    with pytest.raises(ValueError, match="gone"):
        evaluate(result.folder / "last.ckpt", {"data.root": "gone"})


def test_evaluate_of_other_data_tests_all_or_their_test_split(run, tmp_path):
    write_pictures(tmp_path / "data")
    path = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES).folder / "last.ckpt"
    write_pictures(tmp_path / "other", size=(42, 32))
    write_pictures(tmp_path / "split" / "train", size=(42, 32))
    write_pictures(tmp_path / "split" / "test", count=3)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for name in ("copy/a/0.png", "copy/b/3.png"):
        (tmp_path / name).unlink()
    shutil.copy(tmp_path / "data" / "a" / "0.png", tmp_path / "copy" / "a" / "new.png")
    tested = {name: evaluate(path, {"data.root": str(tmp_path / name)}) for name in ("other", "split", "copy", "data")}
    counts = {name: result["test"]["test_count"] for name, result in tested.items()}
    assert {name: counts[name] for name in ("other", "split", "data")} == {"other": 24, "split": 9, "data": 6}
    assert counts["copy"] < 10
    words = {name: " ".join(result["words"]) for name, result in tested.items()}
    assert [name for name in words if "has no test split" in words[name]] == ["other", "copy", "data"]
    assert [name for name in words if "all of it is tested" in words[name]] == ["other"]


def test_evaluate_of_other_videos_tests_all(run, tmp_path):
    write_frame_folders(tmp_path / "data")
    path = run(recipe=None, data__root=str(tmp_path / "data"), **VIDEOS).folder / "last.ckpt"
    write_frame_folders(tmp_path / "other", frames=5)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    counts = {
        name: evaluate(path, {"data.root": str(tmp_path / name)})["test"]["test_count"] for name in ("other", "moved")
    }
    assert counts == {"other": 12, "moved": 3}


def test_evaluate_of_an_older_checkpoint_knows_its_data_by_their_place(run, tmp_path):
    write_pictures(tmp_path / "data")
    path = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES).folder / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["cgnl"]["fingerprint"]
    torch.save(checkpoint, path)
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    for name, count in {"other": 24, "data": 6, "data/../data": 6}.items():
        assert evaluate(path, {"data.root": str(tmp_path / name)})["test"]["test_count"] == count
    shutil.rmtree(tmp_path / "data")
    assert evaluate(path, {"data.root": str(tmp_path / "other")})["test"]["test_count"] == 6


def test_evaluate_of_other_data_does_not_validate_on_them(run, tmp_path):
    write_pictures(tmp_path / "data")
    settings = PICTURES | {"data__test_on": "validation", "data__root": str(tmp_path / "data")}
    path = run(recipe=None, **settings).folder / "last.ckpt"
    write_pictures(tmp_path / "other", size=(42, 32))
    counts = [
        evaluate(path, {"data.root": str(tmp_path / "other")} | more)["test"]["test_count"]
        for more in ({}, {"data.test_on": "validation"})
    ]
    assert counts[0] == 24
    assert counts[1] < 10


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ("ab", "not the 2 classes .*'c' is missing"),
        ("abcd", "not the 4 classes .*one of which is 'd'"),
        ("abd", "not the 3 classes .*'c' is missing"),
    ],
)
def test_evaluate_refuses_other_classes(run, tmp_path, classes, words):
    write_pictures(tmp_path / "data")
    write_pictures(tmp_path / "other", classes)
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    with pytest.raises(ValueError, match=rf"last\.ckpt knows 3 classes of images, and {words}"):
        evaluate(result.folder / "last.ckpt", {"data.root": str(tmp_path / "other")})


def test_evaluate_refuses_a_folder_for_a_network_that_learned_generated_pictures(run, tmp_path):
    write_pictures(tmp_path / "data", "ab")
    with pytest.raises(ValueError, match="was trained on parts, which is synthetic"):
        evaluate(run().folder / "last.ckpt", {"data.root": str(tmp_path / "data")})


def test_evaluate_refuses_videos_for_a_network_of_pictures(run, tmp_path):
    write_pictures(tmp_path / "data")
    write_frame_folders(tmp_path / "videos")
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    with pytest.raises(ValueError, match="3 classes of images, and not the 3 classes of videos"):
        evaluate(result.folder / "last.ckpt", {"data.root": str(tmp_path / "videos")})


@pytest.mark.parametrize("setting", ["model.name", "model.dropout"])
def test_evaluate_refuses_another_network(run, setting):
    with pytest.raises(ValueError, match=f"{setting} cannot be changed"):
        evaluate(run().folder / "last.ckpt", {setting: "tiny"})


def test_evaluate_counts_what_it_cannot_read(run, tmp_path):
    for split in ("train", "test"):
        write_pictures(tmp_path / "data" / split)
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    (tmp_path / "data" / "test" / "b" / "3.png").write_bytes(b"")
    tested = evaluate(result.folder / "last.ckpt")
    assert tested["test"]["test_count"] == 23
    assert tested["words"][-1].startswith("1 sample could not be read: ")
    assert "b/3.png" in tested["words"][-1]


def test_evaluate_stops_at_more_unreadable_samples_than_the_limit(run, tmp_path):
    for split in ("train", "test"):
        write_pictures(tmp_path / "data" / split)
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    for path in (tmp_path / "data" / "test").glob("*/*"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"which is more than data\.bad_limit = 10; one is: .*test/a/0\.png"):
        evaluate(result.folder / "last.ckpt", {"data.bad_limit": 10})


def test_evaluate_leaves_the_checkpoint_and_its_folder_alone(run):
    folder = run().folder
    before = {path: path.read_bytes() for path in folder.rglob("*")}
    evaluate(folder / "best.ckpt")
    assert {path: path.read_bytes() for path in folder.rglob("*")} == before


def test_eval_command_prints_json(run, cgnl):
    result = run(data__samples=72)
    path = str(result.folder / "last.ckpt")
    status, out, err = cgnl("eval", path, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {"tests": [{"checkpoint": path, **result.test}], "mean_top1": result.test["test_top1"]}


def test_eval_command_averages_several_checkpoints(run, cgnl):
    results = [run(data__samples=72, optim__lr=2.0, optim__epochs=4, seed=seed) for seed in range(3)]
    accuracies = [result.test["test_top1"] for result in results]
    assert len(set(accuracies)) > 1
    paths = [str(result.folder / "last.ckpt") for result in results]
    status, out, _ = cgnl("eval", *paths)
    assert status == 0
    assert out.endswith(f"mean of 3 checkpoints: top-1 {sum(accuracies) / 3:.2%}\n")
    printed = json.loads(cgnl("eval", *paths, "--json")[1])
    assert printed["mean_top1"] == pytest.approx(sum(accuracies) / 3)
    assert [test["test_top1"] for test in printed["tests"]] == accuracies


def test_eval_command_says_one_sentence_on_a_broken_checkpoint(run, cgnl):
    path = run().folder / "last.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    status, out, err = cgnl("eval", path)
    assert (status, out) == (2, "")
    assert err.startswith(f"cgnl eval: {path} is not a whole checkpoint")
    assert err.count("\n") == 1


def test_eval_command_takes_settings(run, cgnl):
    path = run(data__samples=72).folder / "last.ckpt"
    status, out, _ = cgnl("eval", path, "data.samples=40", "--json")
    assert status == 0
    assert json.loads(out)["tests"][0]["test_count"] == 10


def test_evaluate_does_not_depend_on_the_seed_of_the_process(run):
    path = run(model__dropout=0.5).folder / "last.ckpt"
    torch.manual_seed(1)
    one = evaluate(path)
    torch.manual_seed(2)
    assert evaluate(path) == one


@pytest.mark.parametrize("setting", ["data.holdout", "data.split", "data.test_signers", "data.dataset"])
def test_evaluate_refuses_a_test_on_what_was_trained_on(run, setting):
    with pytest.raises(ValueError, match=f"{setting} cannot be changed"):
        evaluate(run().folder / "last.ckpt", {setting: 1})


@pytest.mark.parametrize("setting", ["optim.lr", "optim.epochs", "name", "runs", "patience", "data.mixup", "compile"])
def test_evaluate_refuses_what_changes_nothing(run, setting):
    with pytest.raises(ValueError, match=f"^{setting} is for training and changes nothing in a test: leave it out$"):
        evaluate(run().folder / "last.ckpt", {setting: 1})


@pytest.mark.parametrize("command", ["eval", "diagnose"])
def test_commands_that_test_name_the_settings_they_take(cgnl, command):
    _, out, _ = cgnl(command, "--help")
    named = set(re.findall(r"^  --([\w.]+)", out, re.MULTILINE))
    assert {"data.root", "data.test_clips", "optim.batch_size", "precision"} < named
    for name in setting_names():
        _, _, err = cgnl(command, "nowhere.ckpt", f"{name}=1")
        assert (name in named) == (not re.search("cannot be changed|is for training", err)), name


def test_evaluate_says_when_the_epoch_was_chosen_by_its_test(run):
    folder = run().folder
    words = [" ".join(evaluate(folder / name)["words"]) for name in ("best.ckpt", "last.ckpt")]
    assert ["chosen" in text for text in words] == [True, False]


def test_evaluate_does_not_need_the_machine_of_the_training(run):
    path = run().folder / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["cgnl"]["config"] |= {"accelerator": "gpu", "devices": 8, "nodes": 3}
    torch.save(checkpoint, path)
    assert evaluate(path)["test"]["test_count"] == 6


def test_eval_says_how_far_it_is_without_disturbing_its_output(cgnl, run, monkeypatch):
    monkeypatch.setattr(Lines, "every", 0.0)
    folder = run().folder
    status, out, err = cgnl("eval", folder, "--json", "accelerator=cpu")
    assert (status, err) == (0, "test: 6 of 6 images, 0 s left\n")
    assert json.loads(out)["tests"][0]["checkpoint"] == str(folder)
