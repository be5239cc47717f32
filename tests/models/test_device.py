"""The choice of a device."""

import pytest
import torch

from cgnl.models.device import find_device


@pytest.mark.parametrize(
    ("name", "gpus", "found"),
    [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda", 1, "cuda"), ("cuda:1", 2, "cuda:1")],
)
def test_find_device(monkeypatch, name, gpus, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert find_device(name) == found


@pytest.mark.parametrize(("name", "gpus"), [("tpu", 1), ("cuda", 0), ("cuda:2", 2), ("cuda:x", 8), ("", 1)])
def test_find_device_refuses(monkeypatch, name, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ValueError, match=f"there is no .*{name}.* here"):
        find_device(name)
