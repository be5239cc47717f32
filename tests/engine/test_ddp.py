"""One process that loses another."""

import time

import pytest
import torch.distributed as dist

from cgnl.engine import ddp
from cgnl.engine.ddp import LOST, noticing, watch
from tests.engine.kills import fork


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"),
        dist.DistBackendError("NCCL communicator was aborted"),
        dist.DistStoreError("Timed out after 9 seconds waiting for clients"),
    ],
)
def test_noticing_says_that_a_process_was_lost(monkeypatch, error):
    monkeypatch.setattr(ddp, "_noticed", ddp.threading.Event())
    with pytest.raises(ConnectionError, match="another process of the run has ended"), noticing():
        raise error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ValueError("gloo")])
def test_noticing_leaves_other_errors_alone(error):
    with pytest.raises(type(error), match=str(error)), noticing():
        raise error


def lose(noticed: bool) -> None:
    """Lose another process after a moment, while this one waits for something."""
    ddp.GRACE = 0.0
    if noticed:
        ddp._noticed.set()
    moments = iter([False, True])
    watch(lambda: next(moments))
    time.sleep(60)


@pytest.mark.parametrize("noticed", [True, False])
def test_watch_ends_a_process_that_waits(capfd, noticed):
    assert fork(lambda: lose(noticed)) == 2
    assert capfd.readouterr().err == ("" if noticed else f"cgnl: {LOST}\n")


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_must_be_more_than_nothing(run, timeout):
    with pytest.raises(ValueError, match=f"timeout = {float(timeout)} must be more than 0"):
        run(timeout=timeout)
