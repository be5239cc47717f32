"""Loaders of one process among several."""

import logging
from pathlib import Path

import pytest
import torch
from PIL import Image

from cgnl.data.loading import Batch
from cgnl.engine.config import Config, Data, Optim
from cgnl.engine.datasets import open_dataset
from cgnl.engine.loaders import Loaders

CPU = torch.device("cpu")


def loaders(config: Config, rank: int = 0, world: int = 1) -> Loaders:
    return Loaders(config, open_dataset(config.data), CPU, rank, world)


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
    plain, cached = (loaders(of_pictures(pictures, cache)) for cache in ("none", "gpu"))
    batches = list(plain.train(4, epochs=2))
    assert len(batches) == 6
    assert any(batch.problems for batch in batches)
    assert same(list(cached.train(4, epochs=2)), batches)
    tests = list(plain.test(4, full=True))
    assert [len(batch.labels) for batch in tests] == [3, 2]
    assert same(list(cached.test(4, full=True)), tests)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("cache", ["none", "gpu"])
def test_loaders_for_a_gpu_give_what_those_for_a_cpu_do(pictures, cache):
    config = of_pictures(pictures, cache)
    on_gpu = Loaders(config, open_dataset(config.data), torch.device("cuda")).train(4, epochs=2)
    batches = list(loaders(of_pictures(pictures, "none")).train(4, epochs=2))
    assert len(on_gpu) == len(batches)
    for ours, theirs in zip(on_gpu, batches, strict=True):
        assert ours.pixels.is_cuda
        assert (ours.pixels.cpu().int() - theirs.pixels.int()).abs().max() <= 1
        assert (ours.labels.tolist(), ours.problems) == (theirs.labels.tolist(), theirs.problems)


def test_loaders_with_a_cache_read_files_once(pictures, caplog):
    cached = loaders(of_pictures(pictures, "gpu"))
    with caplog.at_level(logging.INFO, "cgnl"):
        tests = list(cached.test(4, full=False))
        for file in pictures.rglob("*.png"):
            file.unlink()
        assert same(list(cached.test(4, full=False)), tests)
    assert [record.message for record in caplog.records] == ["test samples decoded: 0.0 GiB held on cpu"]


def test_loaders_with_a_cache_read_in_their_own_process(pictures):
    assert loaders(of_pictures(pictures, "gpu", workers=2)).test(4, full=False).num_workers == 0
    assert loaders(of_pictures(pictures, "none", workers=2)).test(4, full=False).num_workers == 2


def test_loaders_cache_clips_too():
    plain, cached = (loaders(Config(data=Data("actions", samples=8, cache=c, workers=0))) for c in ("none", "gpu"))
    assert same(list(cached.train(4, 2)), list(plain.train(4, 2)))
    assert same(list(cached.test(4, True)), list(plain.test(4, True)))


def test_loaders_train_goes_on_from_any_batch():
    config = Config(data=Data("parts", samples=10, workers=0), optim=Optim(accumulate=2))
    whole = list(loaders(config).train(4, epochs=2))
    assert len(whole) == 8
    assert same(list(loaders(config).train(4, epochs=2, first=5)), whole[5:])


def test_loaders_train_follows_the_seed():
    one, other = (list(loaders(Config(data=Data("parts", samples=16, workers=0), seed=s)).train(16, 1)) for s in (0, 1))
    assert one[0].samples.tolist() != other[0].samples.tolist()


def test_loaders_of_all_ranks_together_are_one():
    config = Config(data=Data("parts", samples=18, workers=0))
    (alone, *_), ranks = loaders(config).train(8, 1), [list(loaders(config, r, 2).train(8, 1)) for r in (0, 1)]
    assert sorted(s for batches in ranks for s in batches[0].samples.tolist()) == sorted(alone.samples.tolist())
    tested = [s for r in (0, 1) for batch in loaders(config, r, 2).test(3, True) for s in batch.samples.tolist()]
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
    batches = list(loaders(Config(data=data)).test(batch_size, full))
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
    assert Loaders(config, dataset, torch.device(device)).test(2, full=False).num_workers == expected
