"""The harness of benchmarks/rank_kills.py in its short form, and whether it would notice harm."""

import os
import time

import pytest

from benchmarks.rank_kills import Figures, Ranks, adopting, judge, measure
from cgnl.engine import distributed
from tests.engine.forks import start

pytestmark = pytest.mark.usefixtures("one_thread")


def test_of_two_ranks_one_is_killed_the_other_ends_and_both_resume(tmp_path):
    figures = measure(3, 1, tmp_path)
    assert figures.faults == []
    assert (figures.identical, sum(figures.kills.values()), len(figures.seconds)) == (3, 3, 3)


@pytest.mark.parametrize(
    ("status", "said", "faults"),
    [
        (2, f"cgnl train: {distributed.LOST}\n", 0),
        (0, "", 0),
        (0, "but", 1),
        (2, "", 1),
        (2, f"cgnl train: {distributed.LOST}\n" * 2, 1),
        (1, "Traceback", 1),
        (-6, "", 1),
    ],
)
def test_judge_wants_one_sentence_and_status_two(tmp_path, status, said, faults):
    (tmp_path / "1.err").write_text(said)
    ranks = Ranks((0, 0), None, None, tmp_path)  # pyright: ignore[reportArgumentType]
    assert len(list(judge(status, ranks, 1, Figures()))) == faults


def test_judge_ends_a_rank_that_waits_for_ever(tmp_path):
    pid = start(lambda: time.sleep(60))
    ranks = Ranks((pid, 0), None, None, tmp_path)  # pyright: ignore[reportArgumentType]
    assert len(list(judge(None, ranks, 0, Figures()))) == 1
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_adopting_tells_how_an_orphan_ended():
    read, write = os.pipe()

    def parent() -> None:
        os.write(write, start(lambda: time.sleep(0.2) or 7).to_bytes(8))

    with adopting():
        os.waitpid(start(parent), 0)
        orphan = int.from_bytes(os.read(read, 8))
        assert os.waitstatus_to_exitcode(os.waitpid(orphan, 0)[1]) == 7
