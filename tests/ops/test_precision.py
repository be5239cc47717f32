from functools import reduce
from typing import Any

import pytest
import torch

from cgnl.bench.measure import precision
from cgnl.ops.precision import convolutions_in_tf32, tf32_allowed

NEWER = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")
"""Under torch.backends, what has a setting of its own."""

newer = pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")


def owner(name) -> Any:
    return reduce(getattr, filter(None, name.split(".")), torch.backends)


@pytest.fixture(autouse=True)
def settings():
    """Those of a new process, afterwards too."""
    yield
    for name in ("", "cudnn", "cuda.matmul") if hasattr(torch.backends, "fp32_precision") else ():
        owner(name).fp32_precision = "none"
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_by_the_older_setting(allowed):
    torch.backends.cudnn.allow_tf32 = allowed
    assert convolutions_in_tf32() is allowed


@newer
@pytest.mark.parametrize("value", ["tf32", "ieee"])
@pytest.mark.parametrize("name", ["", "cudnn", "cudnn.conv", "cudnn.rnn", "cuda.matmul"])
def test_convolutions_by_the_newer_settings(name, value):
    owner(name).fp32_precision = value
    assert convolutions_in_tf32() is (owner("cudnn.conv").fp32_precision == "tf32")
    if name == "cudnn.conv":
        assert convolutions_in_tf32() is (value == "tf32")


@newer
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("value", ["tf32", "ieee"])
@pytest.mark.parametrize("name", ["", "cudnn", "cudnn.conv", "cudnn.rnn", "cuda.matmul"])
@pytest.mark.parametrize("context", [tf32_allowed, precision])
def test_newer_settings_are_given_back(context, name, value, allowed):
    owner(name).fp32_precision = value
    before = [owner(each).fp32_precision for each in NEWER]
    with context(allowed):
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is allowed
        assert (owner("cudnn.conv").fp32_precision == "tf32") is allowed
        assert (owner("cuda.matmul").fp32_precision == "tf32") is allowed
    after = [owner(each).fp32_precision for each in NEWER]
    assert [each.replace("none", "ieee") for each in after] == [each.replace("none", "ieee") for each in before]


def test_settings_are_given_back_after_an_error():
    with pytest.raises(ZeroDivisionError), tf32_allowed(False):
        raise ZeroDivisionError
    assert torch.backends.cudnn.allow_tf32
