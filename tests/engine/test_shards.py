"""Training on shards is training on the folder they were packed from, to the last bit."""

import pytest
import torch

from cgnl.data import streams
from cgnl.data.loading import TrainBatchSampler
from cgnl.engine.config import load
from cgnl.engine.datasets import open_dataset
from cgnl.engine.settings import Data
from tests.engine.conftest import (
    PICTURES,
    VIDEOS,
    Death,
    dying,
    options,
    same,
    table,
    weights,
    write_pictures,
    write_video,
)


@pytest.fixture
def packed(tmp_path, cgnl):
    """Class folders of pictures and the shards made of them."""
    write_pictures(tmp_path / "folder", count=9)
    assert cgnl("data", "pack", tmp_path / "folder", tmp_path / "shards", "shard_mib=0.03")[0] == 0
    assert len(list((tmp_path / "shards").glob("train-*.tar"))) >= 5
    return tmp_path


def settings(root, **more):
    return PICTURES | {"recipe": None, "data__root": str(root), "name": "run"} | more


def assert_same(one, other):
    assert same(weights(one.folder / "last.ckpt"), weights(other.folder / "last.ckpt"))
    assert table(one.folder) == table(other.folder)
    assert (one.test, one.best, one.unreadable) == (other.test, other.best, other.unreadable)


@pytest.mark.parametrize(("workers", "more"), [(0, {}), (2, {"data__limit": 15, "data__balance": "sampling"})])
def test_training_on_shards_is_training_on_the_folder(run, packed, workers, more):
    one = run(runs=packed / "one", **settings(packed / "folder", **more))
    more = more | {"data__dataset": "shards", "data__workers": workers}
    assert_same(one, run(runs=packed / "two", **settings(packed / "shards", **more)))
    (packed / "shards" / "shards.json").unlink()
    assert_same(one, run(runs=packed / "three", **settings(packed / "shards", **more)))


def test_training_on_shards_resumes_exactly(run, packed, monkeypatch):
    given = settings(packed / "shards", data__dataset="shards", data__shard_window=2, save_every=1)
    whole = run(runs=packed / "whole", **given)
    for step in (1, 3):
        with monkeypatch.context() as patch:
            dying(patch, step)
            with pytest.raises(Death):
                run(runs=packed / f"{step}", **given)
        assert_same(whole, run(resume=True, runs=packed / f"{step}", **given | {"data__workers": 1}))


def test_training_on_clips_in_shards(run, tmp_path, cgnl):
    for name in "ab":
        (tmp_path / "folder" / name).mkdir(parents=True)
        for number in range(4):
            write_video(tmp_path / "folder" / name / f"{number}.mp4", 6 + number)
    assert cgnl("data", "pack", tmp_path / "folder", tmp_path / "shards")[0] == 0
    one, two = (
        run(runs=tmp_path / layout, **VIDEOS, recipe=None, data__root=str(tmp_path / root), data__dataset=layout)
        for root, layout in (("folder", "clips"), ("shards", "shards"))
    )
    assert_same(one, two)


def test_shard_that_goes_missing_is_skipped_and_counted(run, packed):
    (packed / "shards" / "train-000001.tar").unlink()
    given = settings(packed / "shards", data__dataset="shards")
    result = run(runs=packed / "runs", **given)
    missing = open_dataset(Data("shards", str(packed / "shards"))).problems[0]
    assert "train-000001.tar" in missing
    assert result.unreadable > 0
    log = (result.folder / "log.txt").read_text()
    assert log.count("skipped: ") == result.unreadable
    assert "train-000001.tar/" in log
    with pytest.raises(ValueError, match=r"data\.bad_limit = 0"):
        run(runs=packed / "strict", **given, data__bad_limit=0)


def test_typed_stream_trains_as_the_folder_and_a_file_cannot_ask_for_it(run, packed, cgnl, monkeypatch):
    monkeypatch.setattr(streams, "_typed", set())
    one = run(runs=packed / "one", **settings(packed / "folder"))
    address = f"pipe:cat {packed}/shards/{{shard}}"
    cache = {"data__dataset": "shards", "data__shard_cache": packed / "cache", "data__shard_cache_gib": 1}
    words = options(**PICTURES, **cache, data__root=address, runs=packed / "two", data__workers=1)
    words = [word for word in words if not word.startswith("data.samples=")]  # for synthetic datasets
    status, _, err = cgnl("train", *words)
    assert (status, err) == (0, "")
    assert same(weights(one.folder / "last.ckpt"), weights(packed / "two" / "run" / "last.ckpt"))

    monkeypatch.setattr(streams, "_typed", set())  # another day: only the files are left
    config, last = packed / "two" / "run" / "config.yaml", packed / "two" / "run" / "last.ckpt"
    assert address in config.read_text()
    web = packed / "web.yaml"
    web.write_text(config.read_text().replace(address, "http://127.0.0.1:9/data"))
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
        patch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("an address was opened"))
        for command in (
            ["train", config, "name=other"],
            ["train", web, "name=other"],
            ["train", "--resume", packed / "two" / "run"],
            ["eval", last],
            ["diagnose", last],
        ):
            status, _, err = cgnl(*command)
            assert (status, err.count("\n")) == (2, 1)
            assert "data.root" in err
    status, _, _ = cgnl("eval", last, f"data.root={address}", "accelerator=cpu")
    assert status == 0


def test_shard_window_mixes_some_shards_at_a_time():
    shards = [0] * 5 + [1] * 3 + [2] * 6 + [3] * 4
    whole = list(TrainBatchSampler(18, 1, epochs=4, seed=3, shards=shards, window=2))
    orders = []
    for epoch in range(4):
        order = [place.sample for (place,) in whole[18 * epoch : 18 * epoch + 18]]
        assert sorted(order) == list(range(18))
        turns = [shards[sample] for sample in order]
        first = set(turns[: sum(shards.count(s) for s in set(turns[:5]))])
        assert len(first) == 2
        assert not first & set(turns[sum(map(shards.count, first)) :])
        orders.append(order)
    assert len(set(map(tuple, orders))) == 4
    for start in (7, 40):
        rest = list(TrainBatchSampler(18, 1, epochs=4, seed=3, shards=shards, window=2, first=start))
        assert rest == whole[start:]
    ranks = [list(TrainBatchSampler(18, 2, 4, 3, shards=shards, window=2, rank=r, world=2)) for r in range(2)]
    steps = list(TrainBatchSampler(18, 2, epochs=4, seed=3, shards=shards, window=2))
    assert [sorted(a + b) for a, b in zip(*ranks, strict=True)] == [sorted(step) for step in steps]


@pytest.mark.parametrize("given", [{"data.dataset": "folder"}, {"data.dataset": "shards", "data.balance": "sampling"}])
def test_shard_window_is_for_shards_alone(given):
    with pytest.raises(ValueError, match=r"^data\.shard_window = 2 needs"):
        load(None, {"data.shard_window": 2, **given})


def test_samples_of_shards_are_those_of_the_folder(packed):
    one, two = (open_dataset(Data(d, str(packed / r))) for d, r in (("folder", "folder"), ("shards", "shards")))
    assert (one.classes, one.kind, len(one.train), len(one.test)) == (
        two.classes,
        two.kind,
        len(two.train),
        len(two.test),
    )
    for a, b in ((one.train, two.train), (one.test, two.test)):
        for number in range(len(a)):
            assert a.label(number) == b.label(number)
            assert torch.equal(a.read(number, range), b.read(number, range))
    assert len(set(two.train.shards())) > 1


def test_training_on_a_table_is_training_on_the_files(run, tmp_path):
    import datasets

    paths = write_pictures(tmp_path / "folder", "ab", 6)
    rows = {"image": [{"bytes": p.read_bytes(), "path": None} for p in paths], "label": [0] * 6 + [1] * 6}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    table = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(tmp_path / "hf")
    given = {"data__test_on": "train"}
    one = run(runs=tmp_path / "one", **settings(tmp_path / "folder", **given))
    assert_same(
        one, run(runs=tmp_path / "two", **settings(tmp_path / "hf", **given, data__dataset="hf", data__workers=2))
    )
