"""Splitting and limiting a dataset, and the checks of names and folders."""

from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from cgnl.data.index import DatasetIndex, Sample, StoredFile, UnreadableError, hold_out, limit_training


def make_index(counts: list[int], **splits: tuple[Sample, ...]) -> DatasetIndex:
    """Training samples, so many of each class, mixed."""
    samples = [Sample(Path(f"{n}-{label}.png"), label) for label, count in enumerate(counts) for n in range(count)]
    names = tuple(f"class {label}" for label in range(len(counts)))
    return DatasetIndex(names, {"train": tuple(sorted(samples)), **splits}, "images", ("a problem",))


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.2, [2, 1, 1, 1, 0]), (0.5, [5, 2, 2, 1, 0]), (0.9, [9, 4, 2, 1, 0]), (0.01, [1, 1, 1, 1, 0])],
)
def test_hold_out_takes_a_share_of_each_class(share, expected):
    index = hold_out(make_index([10, 5, 3, 2, 1]), share)
    counts = Counter(sample.label for sample in index.splits["test"])
    assert [counts[label] for label in range(5)] == expected


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.999])
def test_hold_out_parts_the_samples(share):
    before = make_index([10, 5, 3, 2, 1])
    train, test = (hold_out(before, share).splits[split] for split in ("train", "test"))
    assert set(train).isdisjoint(test)
    assert sorted((*train, *test)) == list(before.splits["train"])
    assert {sample.label for sample in train} == set(range(5))


def test_hold_out_does_not_mix_when_files_are_added():
    few, many = (hold_out(make_index([count, count]), 0.3) for count in (30, 33))
    trained = set(few.splits["train"])
    changed = [sample for sample in many.splits["test"] if sample in trained]
    assert len(changed) <= 2  # one of each class, to keep the share


def test_hold_out_of_nothing_leaves_everything():
    before = make_index([4, 1])
    index = hold_out(before, 0)
    assert index.splits == {"train": before.splits["train"], "test": ()}


def test_hold_out_keeps_what_else_is_known():
    extra = (Sample(Path("x.png"), 0),)
    index = hold_out(make_index([4, 4], extra=extra), 0.5)
    assert index.splits["extra"] == extra
    assert (index.classes, index.kind, index.problems) == (("class 0", "class 1"), "images", ("a problem",))


@pytest.mark.parametrize(
    ("limit", "expected"), [(1, [0, 0, 0, 1]), (8, [2, 2, 2, 2]), (9, [2, 2, 3, 2]), (99, [9, 4, 3, 2])]
)
def test_at_most_spreads_over_the_classes(limit, expected):
    before = make_index([9, 4, 3, 2])
    index = limit_training(before, limit)
    counts = Counter(sample.label for sample in index.splits["train"])
    assert sum(counts.values()) == min(limit, 18)
    assert sorted(counts[label] for label in range(4)) == sorted(expected)
    assert set(index.splits["train"]) <= set(before.splits["train"])


def test_at_most_keeps_what_it_chose_when_the_limit_grows():
    few, many = (set(limit_training(make_index([9, 4, 3, 2]), limit).splits["train"]) for limit in (5, 10))
    assert few < many


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("it is empty", "it is empty"),
        (OSError(5, "Input/output error", "x"), "Input/output error"),
        (ValueError("a\nb"), "a"),
    ],
)
def test_unreadable_error_says_file_and_reason_in_one_line(reason, said):
    error = UnreadableError(Path("a\x1b.png"), reason)
    assert str(error) == f"a\\x1b.png cannot be read: {said}"
    assert error.path == Path("a\x1b.png")


class Bytes(StoredFile):
    def __init__(self, file: str, content: bytes):
        self.file, self.content = file, content

    def read_bytes(self) -> bytes:
        return self.content


def test_stored_file_has_as_much_of_a_path_as_reading_it_takes():
    stored = Bytes("cats/1.jpg", b"abc")
    assert (stored.name, stored.parent) == ("1.jpg", PurePosixPath("cats"))
    assert (stored.is_file(), stored.is_dir()) == (True, False)
    with stored.open() as file:
        assert (file.read(2), file.read()) == (b"ab", b"c")


def test_stored_file_itself_holds_nothing():
    with pytest.raises(NotImplementedError):
        StoredFile().read_bytes()
