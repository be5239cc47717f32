"""Broken files and full disks: a run goes on if it can, and says in one sentence why if it cannot."""

import errno
import io
import json
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
import torch

from cgnl.data import sources
from cgnl.engine.loop import Loop
from cgnl.engine.tasks import Images
from tests.engine.conftest import (
    PICTURES,
    VIDEOS,
    options,
    same,
    table,
    weights,
    write_frame_folders,
    write_pictures,
    write_video,
)


@pytest.fixture
def data(tmp_path):
    """A folder of pictures to train and to test on."""
    for split in ("train", "test"):
        write_pictures(tmp_path / "data" / split, suffix=".jpg")
    return tmp_path / "data"


@pytest.fixture
def train(cgnl, tmp_path):
    """The training command on a folder."""

    def call(root, *more, **settings):
        given = PICTURES | {"data__root": root, "runs": tmp_path / "runs"} | settings
        return cgnl("train", *options(**given), *more)

    return call


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "run"


def one_sentence(err: str) -> str:
    assert err.startswith("cgnl train: ")
    assert err.count("\n") == 1
    return err.removeprefix("cgnl train: ").rstrip()


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_train_goes_on_without_broken_pictures(train, data, folder):
    cut(data / "train" / "a" / "0.jpg")
    (data / "train" / "b" / "1.jpg").write_bytes(b"")
    (data / "train" / "c" / "2.jpg").write_text("no picture")
    status, out, _ = train(data)
    assert status == 0
    log = (folder / "log.txt").read_text()
    for name in ("a/0.jpg", "b/1.jpg", "c/2.jpg"):
        assert log.count(f"skipped: {data / 'train' / name} cannot be read: ") == 1
    assert "3 samples could not be read" in out
    assert [row["unreadable"] for row in table(folder)][-1] == "3"
    assert json.loads((folder / "results.json").read_text())["unreadable"] == 3


def test_train_refuses_an_empty_class_folder(train, data):
    (data / "train" / "d").mkdir()
    status, _, err = train(data)
    assert status == 2
    assert "no training sample of class d" in err


def test_train_with_broken_pictures_makes_all_its_steps(train, data, folder):
    for name in ("a/0.jpg", "a/1.jpg", "b/7.jpg", "c/7.jpg"):
        cut(data / "train" / name)
    assert train(data)[0] == 0
    assert [row["step"] for row in table(folder)] == ["3", "6"]


def test_train_leaves_broken_pictures_out_of_the_test(train, data, folder):
    cut(data / "test" / "a" / "0.jpg")
    (data / "test" / "b" / "1.jpg").write_bytes(b"")
    assert train(data)[0] == 0
    assert [row["test_count"] for row in table(folder)] == ["22", "22"]
    assert json.loads((folder / "results.json").read_text())["unreadable"] == 2


def test_train_with_workers_names_the_same_broken_pictures(train, data, tmp_path):
    cut(data / "train" / "a" / "0.jpg")
    for workers in (0, 1):
        assert train(data, data__workers=workers, runs=tmp_path / f"{workers}")[0] == 0
    one, other = tmp_path / "0" / "run", tmp_path / "1" / "run"
    assert table(one) == table(other)
    assert same(weights(one / "last.ckpt"), weights(other / "last.ckpt"))


def test_train_goes_on_when_a_picture_goes_away(train, data, folder, monkeypatch):
    original = Images.end_test

    def end(self):
        (data / "train" / "a" / "0.jpg").unlink(missing_ok=True)
        return original(self)

    monkeypatch.setattr(Images, "end_test", end)
    assert train(data)[0] == 0
    assert f"{data / 'train' / 'a' / '0.jpg'} cannot be read: No such file" in (folder / "log.txt").read_text()


@pytest.mark.parametrize("split", ["train", "test"])
def test_train_stops_at_the_first_broken_picture_when_told(train, data, split):
    path = data / split / "a" / "0.jpg"
    path.write_bytes(b"")
    status, _, err = train(data, data__bad_limit=0)
    assert status == 2
    assert one_sentence(err).startswith("1 sample cannot be read, which is more than data.bad_limit = 0; one is: ")
    assert str(path) in err


def test_train_stops_when_nothing_can_be_read(train, data):
    for path in data.glob("train/*/*"):
        path.write_bytes(b"")
    status, _, err = train(data)
    assert status == 2
    assert "cannot be read: it is empty" in one_sentence(err)


def test_train_of_an_empty_folder_says_so(train, tmp_path):
    (tmp_path / "data").mkdir()
    status, _, err = train(tmp_path / "data")
    assert status == 2
    assert str(tmp_path / "data") in one_sentence(err)


def test_train_of_a_missing_folder_says_so(train, tmp_path):
    status, _, err = train(tmp_path / "gone")
    assert status == 2
    assert str(tmp_path / "gone") in one_sentence(err)


def test_train_into_a_folder_that_is_a_file_says_so(train, data, tmp_path):
    (tmp_path / "runs").touch()
    status, _, err = train(data)
    assert status == 2
    assert str(tmp_path / "runs") in one_sentence(err)


def test_train_goes_on_without_broken_videos(train, tmp_path, folder):
    for split in ("train", "test"):
        for name in "ab":
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                write_video(tmp_path / "data" / split / name / f"{number}.mp4", 5 + number)
    (tmp_path / "data" / "train" / "a" / "empty.mp4").write_bytes(b"")
    cut(tmp_path / "data" / "test" / "b" / "0.mp4")
    write_video(tmp_path / "data" / "train" / "b" / "short.mp4", 1)
    assert train(tmp_path / "data", **VIDEOS)[0] == 0
    log = (folder / "log.txt").read_text()
    assert f"{tmp_path / 'data' / 'train' / 'a' / 'empty.mp4'} cannot be read: " in log
    assert f"{tmp_path / 'data' / 'test' / 'b' / '0.mp4'} cannot be read: " in log
    assert "short.mp4" not in log
    results = json.loads((folder / "results.json").read_text())
    assert (results["unreadable"], results["test_count"], results["test_views"]) == (2, 5, 6)


def test_train_goes_on_without_a_broken_frame(train, tmp_path, folder):
    (first, *_) = write_frame_folders(tmp_path / "data")
    for file in first.glob("*.png"):
        cut(file)
    assert train(tmp_path / "data", **VIDEOS)[0] == 0
    assert str(first) in (folder / "log.txt").read_text()


def test_train_on_a_full_disk_keeps_the_checkpoint_before(train, data, folder, monkeypatch):
    save, count = torch.save, iter(range(100))

    def full(content, file):
        if next(count) == 3:  # best and last after each epoch
            file.write(b"x" * 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(content, file)

    monkeypatch.setattr(torch, "save", full)
    status, _, err = train(data, optim__lr=1e-9, save_every=1)
    assert status == 2
    sentence = one_sentence(err)
    assert sentence.startswith(f"{folder / 'last.ckpt'} cannot be written: No space left on device")
    assert not list(folder.glob(".*"))
    step = torch.load(folder / "last.ckpt", weights_only=True)["global_step"]
    assert 0 < step < 6
    assert re.search(r"device: 0\.0 MB are needed, [\d,.]+ MB are free; ", sentence)
    assert sentence.endswith(f"{folder / 'last.ckpt'} is that of step {step}")
    monkeypatch.undo()


def test_train_on_a_disk_that_is_full_at_once_says_that_nothing_was_saved(train, data, folder, monkeypatch):
    save = torch.save

    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", lambda content, _: save(content, Full()))  # its writer in C++ fails after it
    status, _, err = train(data)
    assert status == 2
    sentence = one_sentence(err)
    assert sentence.startswith(f"{folder / 'best.ckpt'} cannot be written: No space left on device: ")
    assert sentence.endswith(" MB are free; there is none to resume yet")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. 1.25 GiB is free. Of it"), "2.50 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 640 bytes."), "640 bytes"),
        (MemoryError(), "optim.batch_size"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_train_that_runs_out_of_memory_says_what_helps(train, data, monkeypatch, error, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(Images, "loss", fail)
    status, _, err = train(data)
    assert status == 2
    sentence = one_sentence(err)
    assert sentence.startswith("out of memory")
    assert words in sentence
    assert "optim.accumulate" in sentence


def test_train_beyond_the_largest_file_allowed_keeps_the_checkpoint_before(train, data, folder, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    original = Loop.backward

    def step(self, batch, number, last_part):
        if number == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "last.ckpt").stat().st_size // 2, limits[1]))
        return original(self, batch, number, last_part)

    monkeypatch.setattr(Loop, "backward", step)
    try:
        status, _, err = train(data, save_every=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2
    assert one_sentence(err).startswith(f"{folder / 'last.ckpt'} cannot be written: ")
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == 3
    assert not list(folder.glob(".*"))


def test_train_goes_on_after_a_full_disk(train, data, folder, tmp_path, monkeypatch):
    save, count = torch.save, iter(range(100))

    def full(content, file):
        if next(count) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(content, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        assert train(data, save_every=1)[0] == 2
    assert train(data, "--resume", save_every=1)[0] == 0
    assert train(data, runs=tmp_path / "whole")[0] == 0
    assert same(weights(folder / "last.ckpt"), weights(tmp_path / "whole" / "run" / "last.ckpt"))
    assert table(folder) == table(tmp_path / "whole" / "run")


def limit_files_from_batch(monkeypatch, number: int, size: int) -> None:
    """Let no file grow beyond a size from a batch on."""
    original, hard = Loop.backward, resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def step(self, *batch):
        if self.step == number:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        return original(self, *batch)

    monkeypatch.setattr(Loop, "backward", step)


@pytest.fixture
def _limits():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_limits")
@pytest.mark.parametrize("step", [0, 4])
def test_train_goes_on_after_no_file_could_grow(train, data, folder, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        limit_files_from_batch(patch, step, 0)
        status, _, err = train(data, save_every=2)
    assert status == 2
    assert " cannot be written: " in one_sentence(err)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert train(data, "--resume", save_every=2)[0] == 0
    assert train(data, runs=tmp_path / "whole")[0] == 0
    assert same(weights(folder / "last.ckpt"), weights(tmp_path / "whole" / "run" / "last.ckpt"))
    assert table(folder) == table(tmp_path / "whole" / "run")


@pytest.mark.parametrize("name", ["config.yaml", "metrics.csv", "predictions.csv", "results.json"])
def test_train_on_a_full_disk_names_the_file(train, data, folder, tmp_path, monkeypatch, name):
    with monkeypatch.context() as patch:
        replace = Path.replace

        def full(self, target):
            if target.name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return replace(self, target)

        patch.setattr(Path, "replace", full)
        status, _, err = train(data)
    assert status == 2
    sentence = rf"{re.escape(str(folder / name))} cannot be written: No space left on device: [\d,.]+ MB are free"
    assert re.match(sentence, one_sentence(err))
    assert train(data, "--resume")[0] == 0
    assert train(data, runs=tmp_path / "whole")[0] == 0
    assert table(folder) == table(tmp_path / "whole" / "run")
    assert (folder / name).exists()


def test_train_goes_on_without_a_log_on_a_full_disk(train, data, folder):
    folder.mkdir(parents=True)
    (folder / "log.txt").symlink_to("/dev/full")
    status, out, err = train(data)
    assert (status, err) == (0, "")
    assert "epoch 2 of 2" in out


def test_train_removes_what_a_kill_left(train, data, folder):
    folder.mkdir(parents=True)
    (folder / ".best.ckpt.part").write_bytes(b"half")
    assert train(data)[0] == 0
    assert not list(folder.glob(".*"))


def test_train_goes_on_when_a_dataset_that_went_away_is_back(train, data, folder, tmp_path, monkeypatch):
    assert train(data, runs=tmp_path / "whole")[0] == 0
    read, count = sources.read_image, iter(range(10**6))

    def reading(path):
        if next(count) == 60 and data.exists():  # in the middle of a batch of the second epoch
            data.rename(tmp_path / "away")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "read_image", reading)
        status, _, err = train(data, save_every=1)
    assert status == 2
    assert one_sentence(err).startswith(f"nothing can be read in place of a sample any more: {data}")
    assert torch.load(folder / "last.ckpt", weights_only=True)["cgnl"]["problems"] == []
    (tmp_path / "away").rename(data)
    assert train(data, "--resume", save_every=1)[0] == 0
    assert same(weights(folder / "last.ckpt"), weights(tmp_path / "whole" / "run" / "last.ckpt"))
    assert table(folder) == table(tmp_path / "whole" / "run")


def test_train_resume_without_its_dataset_says_so(train, data, folder, tmp_path):
    assert train(data)[0] == 0
    data.rename(tmp_path / "away")
    status, _, err = train(data, "--resume")
    assert status == 2
    assert str(data) in one_sentence(err)
    torch.load(folder / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("part", ["half", "nothing"])
def test_train_resume_names_a_broken_checkpoint(train, data, folder, part):
    assert train(data)[0] == 0
    path = folder / "last.ckpt"
    cut(path) if part == "half" else path.write_bytes(b"")
    status, _, err = train(data, "--resume")
    assert status == 2
    assert one_sentence(err).startswith(f"{path} is not a whole checkpoint")


def test_train_resume_refuses_the_checkpoint_of_another_run(train, data, folder, tmp_path):
    assert train(data)[0] == 0
    assert train(data, runs=tmp_path / "other", model__name="tiny_group", optim__lr=0.1)[0] == 0
    shutil.copy(tmp_path / "other" / "run" / "last.ckpt", folder / "last.ckpt")
    status, _, err = train(data, "--resume")
    assert status == 2
    assert one_sentence(err) == f"{folder / 'last.ckpt'} was begun with model.name = tiny_group, not tiny"


def test_train_resume_refuses_weights_of_another_network(train, data, folder):
    assert train(data)[0] == 0
    path = folder / "last.ckpt"
    content = torch.load(path, weights_only=True)
    content["state_dict"] = {n: v for n, v in content["state_dict"].items() if "norm1" not in n}
    torch.save(content, path)
    status, _, err = train(data, "--resume")
    assert status == 2
    assert str(path) in one_sentence(err)


def test_train_resume_refuses_other_classes(train, data, folder):
    assert train(data)[0] == 0
    for split in ("train", "test"):
        (data / split / "c").rename(data / split / "d")
    status, _, err = train(data, "--resume")
    assert status == 2
    assert str(folder / "last.ckpt") in one_sentence(err)
