"""Sums, loaders of one rank among several, and what could not be read."""

import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from cgnl.data.loading import Batch
from cgnl.engine import distributed
from cgnl.engine.datasets import open_dataset
from cgnl.engine.distributed import Rank
from cgnl.engine.settings import Config, Data, Optim
from cgnl.engine.tasks import TASKS, Images, Task, base
from cgnl.engine.tasks.base import Sums
from tests.engine.tasks.test_classification import batch, task

CPU = torch.device("cpu")


def open_task(config: Config, device: torch.device = CPU, batch_size: int = 4) -> Task:
    dataset = open_dataset(config.data)
    return TASKS[dataset.kind](nn.Identity(), config, dataset, device, batch_size)


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        a.problems == b.problems and all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
        for a, b in zip(one, other, strict=True)
    )


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Pictures of several sizes, one of which is broken."""
    for split, count in (("train", 6), ("test", 3)):
        for number in range(count):
            for name in ("cat", "dog"):
                path = tmp_path / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.effect_noise((40 + number, 48), 90).convert("RGB").save(path)
    (tmp_path / "train" / "dog" / "2.png").write_bytes(b"")
    (tmp_path / "test" / "cat" / "1.png").write_bytes(b"")
    return tmp_path


def of_pictures(root: Path, cache, workers: int = 0) -> Config:
    return Config(data=Data(root=str(root), size=32, test_short_side=36, cache=cache, workers=workers))


def test_loaders_with_a_cache_give_the_same_batches(pictures):
    plain, cached = (open_task(of_pictures(pictures, cache)) for cache in ("none", "gpu"))
    batches = list(plain.train_batches(4, epochs=2))
    assert len(batches) == 6
    assert any(batch.problems for batch in batches)
    assert same(list(cached.train_batches(4, epochs=2)), batches)
    tests = list(plain.test_batches(full=True))
    assert [len(batch.labels) for batch in tests] == [3, 2]
    assert same(list(cached.test_batches(full=True)), tests)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cache", ["none", "gpu"])
def test_loaders_for_a_gpu_give_what_those_for_a_cpu_do(pictures, cache):
    config = of_pictures(pictures, cache)
    on_gpu = open_task(config, torch.device("cuda")).train_batches(4, epochs=2)
    batches = list(open_task(of_pictures(pictures, "none")).train_batches(4, epochs=2))
    assert len(on_gpu) == len(batches)
    for ours, theirs in zip(on_gpu, batches, strict=True):
        assert ours.pixels.is_cuda
        assert (ours.pixels.cpu().int() - theirs.pixels.int()).abs().max() <= 1
        assert (ours.labels.tolist(), ours.problems) == (theirs.labels.tolist(), theirs.problems)


def test_loaders_with_a_cache_read_files_once(pictures, caplog):
    cached = open_task(of_pictures(pictures, "gpu"))
    with caplog.at_level(logging.INFO, "cgnl"):
        tests = list(cached.test_batches(full=False))
        for file in pictures.rglob("*.png"):
            file.unlink()
        assert same(list(cached.test_batches(full=False)), tests)
    assert [record.message for record in caplog.records] == ["test samples decoded: 0.0 GiB held on cpu"]


def test_loaders_with_a_cache_read_in_their_own_process(pictures):
    assert open_task(of_pictures(pictures, "gpu", workers=2)).test_batches(full=False).num_workers == 0
    assert open_task(of_pictures(pictures, "none", workers=2)).test_batches(full=False).num_workers == 2


def test_loaders_cache_clips_too():
    plain, cached = (open_task(Config(data=Data("actions", samples=8, cache=c, workers=0))) for c in ("none", "gpu"))
    assert same(list(cached.train_batches(4, 2)), list(plain.train_batches(4, 2)))
    assert same(list(cached.test_batches(True)), list(plain.test_batches(True)))


def test_loaders_train_goes_on_from_any_batch():
    config = Config(data=Data("parts", samples=10, workers=0), optim=Optim(accumulate=2))
    whole = list(open_task(config).train_batches(4, epochs=2))
    assert len(whole) == 8
    assert same(list(open_task(config).train_batches(4, epochs=2, first=5)), whole[5:])


def test_loaders_train_follows_the_seed():
    configs = (Config(data=Data("parts", samples=16, workers=0), seed=seed) for seed in (0, 1))
    one, other = (list(open_task(config).train_batches(16, 1)) for config in configs)
    assert one[0].samples.tolist() != other[0].samples.tolist()


def test_loaders_of_all_ranks_together_are_one(monkeypatch):
    config = Config(data=Data("parts", samples=18, workers=0))
    (alone, *_) = open_task(config).train_batches(8, 1)
    trained, tested = [], []
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "current_rank", lambda rank=rank: Rank(rank, rank, 2))
        ours = open_task(dataclasses.replace(config, devices=2), batch_size=6)
        trained += next(iter(ours.train_batches(8, 1))).samples.tolist()
        tested += [sample for batch in ours.test_batches(True) for sample in batch.samples.tolist()]
    assert sorted(trained) == sorted(alone.samples.tolist())
    assert sorted(tested) == list(range(18 // 4))


@pytest.mark.parametrize(
    ("full", "batch_size", "expected"), [(True, 12, [2, 1]), (True, 1, [1, 1, 1]), (False, 12, [3]), (False, 2, [2, 1])]
)
def test_loaders_test_counts_views_as_samples(tmp_path, full, batch_size, expected):
    for split, count in (("train", 1), ("test", 3)):
        for number in range(count):
            clip = tmp_path / split / "run" / str(number)
            clip.mkdir(parents=True)
            for frame in range(4):
                Image.new("RGB", (20, 16)).save(clip / f"{frame}.png")
    data = Data(root=str(tmp_path), frames=2, test_short_side=16, test_clips=2, test_crops=3, workers=0)
    batches = list(open_task(Config(data=data), batch_size=batch_size).test_batches(full))
    assert [len(batch.labels) for batch in batches] == expected
    assert batches[0].pixels.shape[1:] == (6 if full else 1, 2, 3, 16, 16)


@pytest.mark.parametrize(
    ("data", "cores", "device", "devices", "expected"),
    [
        (Data("parts", workers=5), 8, "cpu", None, 5),
        (Data("parts", workers=0), 8, "cuda", None, 0),
        (Data("parts"), 8, "cpu", None, 0),
        (Data("folder"), 8, "cpu", None, 1),
        (Data("folder"), 1, "cpu", None, 0),
        (Data("folder"), 8, "cuda", None, 8),
        (Data("folder"), 8, "cuda", 4, 2),
        (Data("folder"), 64, "cuda", None, 16),
        (Data("folder"), 2, "cuda", 8, 1),
    ],
    ids=str,
)
def test_loaders_take_as_many_workers_as_there_are_cores(monkeypatch, data, cores, device, devices, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    drawn = open_dataset(Data("parts", samples=4))
    dataset = drawn if data.dataset == "parts" else type(drawn)("folder", (), "images", drawn.train, drawn.test)
    config = Config(data=data, devices=devices)
    ours = Images(nn.Identity(), config, dataset, CPU)
    ours.device = torch.device(device)
    assert ours.test_batches(full=False).num_workers == expected


def test_note_counts_a_file_once_however_often_it_is_met():
    module = task()
    for _ in range(3):
        module.note(batch(problems=("a cannot be read", "b cannot be read")))
    assert module.problems == {"a cannot be read", "b cannot be read"}


@pytest.mark.parametrize(("limit", "many"), [(0, "1 sample"), (2, "3 samples")])
def test_note_stops_when_there_are_more_than_the_limit(limit, many):
    module = task(**{"data.bad_limit": limit})
    module.note(batch(problems=tuple(f"{n} cannot be read" for n in range(limit))))
    with pytest.raises(ValueError, match=rf"{many} cannot be read, which is more than data\.bad_limit = {limit}"):
        module.note(batch(problems=("z cannot be read",)))


def test_sums_of_nothing_are_zero():
    assert Sums("loss", "top1").means() == {"loss": 0.0, "top1": 0.0, "count": 0}


def test_sums_do_not_lose_small_numbers_in_a_large_one():
    sums = Sums("loss")
    for value in (1e9, *[1.0] * 10):
        sums.add(1, loss=torch.tensor(value))
    assert sums.means()["loss"] * 11 == pytest.approx(1e9 + 10, abs=0.1)


def test_sums_are_of_all_ranks(monkeypatch):
    sums = Sums("loss")
    sums.add(3, loss=torch.tensor(6.0))
    monkeypatch.setattr(base.distributed, "world_size", lambda: 2)
    monkeypatch.setattr(base.dist, "all_reduce", lambda total: total.mul_(2))
    assert sums.read() == [12.0, 6.0]
    assert sums.values.tolist() == [6.0, 3.0]
