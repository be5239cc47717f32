"""LSA64's clips by signer, wherever they lie."""

from pathlib import Path

import pytest

from cgnl.data.lsa64 import SIGNS, lsa64
from cgnl.data.video import VIDEO_SUFFIXES
from cgnl.engine.config import Data, build
from cgnl.engine.datasets import open_dataset


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def clips(index, root: Path) -> dict[str, list[tuple[str, int]]]:
    return {
        split: [(path.relative_to(root).as_posix(), label) for path, label in samples]
        for split, samples in index.splits.items()
    }


NAMES = ("001_001_001.mp4", "001_009_001.mp4", "064_008_005.mp4", "064_010_002.mp4", "020_002_001.mp4")


@pytest.mark.parametrize("home", ["", "all/", "dataset/", "clips/cut/"])
def test_lsa64_splits_by_signer(tmp_path, home):
    index = lsa64(touch(tmp_path, *(home + name for name in NAMES)))
    assert index.classes == ("001 Opaque", "020 Sweet milk", "064 Find")
    assert (index.kind, index.problems) == ("videos", ())
    assert clips(index, tmp_path) == {
        "train": [(f"{home}001_001_001.mp4", 0), (f"{home}020_002_001.mp4", 1), (f"{home}064_008_005.mp4", 2)],
        "test": [(f"{home}001_009_001.mp4", 0), (f"{home}064_010_002.mp4", 2)],
    }


def test_lsa64_has_64_signs():
    assert len(set(SIGNS)) == 64
    assert (SIGNS[27], SIGNS[37], SIGNS[49]) == ("Where", "None", "Accept")


def test_lsa64_in_class_folders(tmp_path):
    index = lsa64(touch(tmp_path, *(f"all/{name[:3]}/{name}" for name in NAMES)))
    assert [len(samples) for samples in index.splits.values()] == [3, 2]


@pytest.mark.parametrize("suffix", sorted(VIDEO_SUFFIXES))
def test_lsa64_takes_any_container(tmp_path, suffix):
    index = lsa64(touch(tmp_path, f"001_001_001{suffix}", f"001_010_001{suffix.upper()}"))
    assert [len(samples) for samples in index.splits.values()] == [1, 1]


def test_lsa64_other_test_signers(tmp_path):
    index = lsa64(touch(tmp_path, *NAMES), test_signers=[1, 3])
    assert clips(index, tmp_path)["test"] == [("001_001_001.mp4", 0)]
    (problem,) = index.problems
    assert "signer 3" in problem


def test_lsa64_leaves_out_what_is_not_a_clip_of_it(tmp_path):
    names = ("000_001_001.mp4", "065_001_001.mp4", "1_1_1.mp4", "talk.mp4", "001_001_001_a.mp4")
    hidden = (".001_001_002.mp4", ".trash/001_001_003.mp4", "001_001_004.txt", "a/b/c/001_001_005.mp4")
    index = lsa64(touch(tmp_path, *NAMES, *names, *hidden))
    assert sum(map(len, index.splits.values())) == len(NAMES)
    (problem,) = index.problems
    assert problem.startswith("5 videos ")
    assert str(tmp_path / "000_001_001.mp4") in problem


def test_lsa64_takes_a_clip_once(tmp_path):
    index = lsa64(touch(tmp_path, *NAMES, "all/001_001_001.mp4", "raw/001_001_001.avi"))
    assert clips(index, tmp_path)["train"][0] == ("001_001_001.mp4", 0)
    assert sum(map(len, index.splits.values())) == len(NAMES)
    (problem,) = index.problems
    assert problem.startswith("2 clips ")


@pytest.mark.parametrize(("name", "said"), [("notes.txt", "001_001_001.mp4"), ("talk.mp4", "talk.mp4")])
def test_lsa64_refuses_other_folders(tmp_path, name, said):
    with pytest.raises(ValueError, match=f"{tmp_path} is not LSA64: .*{said}"):
        lsa64(touch(tmp_path, name))


def test_lsa64_needs_a_test_signer(tmp_path):
    with pytest.raises(ValueError, match="test_signers"):
        lsa64(touch(tmp_path, *NAMES), test_signers=())


def test_test_signers_is_a_setting(tmp_path):
    touch(tmp_path, *NAMES)
    settings = build({"data": {"dataset": "lsa64", "root": str(tmp_path), "test_signers": [2, 8]}}).data
    dataset = open_dataset(settings)
    assert (len(dataset.train), len(dataset.test), dataset.kind) == (3, 2, "videos")
    assert open_dataset(Data("lsa64", str(tmp_path))).classes == dataset.classes
