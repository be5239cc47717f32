import re

import pytest
import torch

from cgnl import kernels
from cgnl.bench.settings import DEFAULTS, Setting, read, read_kernel, read_size


@pytest.mark.parametrize(
    ("text", "size"), [("28", (28, 28)), ("28x14", (28, 14)), ("16x28x28", (16, 28, 28)), ("1000x", (1000,))]
)
def test_read_size(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["0", "x", "3x4x5x6", "-3", "3x0", "", "28 x 28"])
def test_read_size_refuses(text):
    with pytest.raises(ValueError, match="size must be like 28, 28x28, 16x28x28"):
        read_size(text)


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("dot", kernels.Dot()),
        ("embedded_gaussian:order=2", kernels.EmbeddedGaussian(2)),
        ("rbf:order=4,gamma=1e-2,beta=exact", kernels.GaussianRBF(4, 1e-2, "exact")),
    ],
)
def test_read_kernel(text, kernel):
    assert read_kernel(text) == kernel


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rfb", "there is no kernel 'rfb'; did you mean rbf?"),
        ("rbf:ordr=3", "'ordr=3' is no option of the kernel rbf; did you mean order?"),
        ("rbf:order", "'order' is no option of the kernel rbf; did you mean order?"),
        ("rbf:order=x", "order of the kernel rbf must be a number, got 'x'"),
        ("rbf:order=-1", "order must be a whole number from 0 to 1000, got order = -1"),
        ("dot:order=1", "'order=1' is no option of the kernel dot: it has none"),
    ],
)
def test_read_kernel_refuses(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_kernel(text)


@pytest.mark.parametrize("benchmark", ["block", "network", "ops"])
def test_read_has_defaults(benchmark):
    setting = read(benchmark, {"batch": None}, "cpu")
    assert (setting.batch, setting.dtype, setting.mode) == (2, torch.float32, "train")
    assert DEFAULTS[benchmark, "cuda"].keys() == DEFAULTS[benchmark, "cpu"].keys()


@pytest.mark.parametrize(
    ("benchmark", "given", "message"),
    [
        ("blok", {}, "there is no benchmark 'blok'; did you mean block?"),
        ("ops", {"blocks": 5}, "cgnl bench ops has no option 'blocks'"),
        ("block", {"batch": 0}, "batch = 0 must be more than 0"),
        ("block", {"seconds": float("nan")}, "seconds = nan must be more than 0"),
        ("block", {"mode": "trian"}, "there is no mode 'trian'; did you mean train?"),
        ("block", {"dtype": "bfloat"}, "there is no dtype 'bfloat'; did you mean bfloat16?"),
        ("block", {"dtype": "bfloat16", "tf32": True}, "tf32 is a way to multiply float32, not bfloat16"),
        ("block", {"norm": "bach"}, "there is no norm 'bach'; did you mean batch?"),
        ("network", {"size": "8x64x64"}, "size = 8x64x64 has 3 axes, resnet50 takes 2"),
        ("network", {"network": "c2d_resnet18"}, "size = 64 has 2 axes, c2d_resnet18 takes 3"),
    ],
    ids=str,
)
def test_read_refuses(benchmark, given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read(benchmark, given, "cpu")


@pytest.mark.parametrize("device", ["tpu", "cuda:999", "cpu:0x"])
def test_read_refuses_a_device(device):
    with pytest.raises(ValueError, match=device):
        read("block", {}, device)


def test_setting_half_precision_is_autocast_in_training_alone():
    train = read("block", {"dtype": "bfloat16"}, "cpu")
    forward = read("block", {"dtype": "bfloat16", "mode": "forward"}, "cpu")
    assert (train.autocast, forward.autocast, read("block", {}, "cpu").autocast) == (True, False, False)


@pytest.mark.parametrize(
    ("size", "last", "expected"),
    [
        ((4, 4), True, torch.channels_last),
        ((2, 4, 4), True, torch.channels_last_3d),
        ((4,), True, torch.contiguous_format),
        ((4, 4), False, torch.contiguous_format),
    ],
)
def test_setting_memory_format(size, last, expected):
    setting = Setting("block", 2, 8, size, torch.device("cpu"), channels_last=last)
    assert setting.memory_format == expected


@pytest.mark.parametrize(("network", "blocks"), [("resnet18", 1), ("resnet50", 5), ("c2d_resnet101", 5)])
def test_read_takes_as_many_blocks_as_there_are_places(network, blocks):
    size = "8x32x32" if network.startswith("c2d") else "32"
    assert read("network", {"network": network, "size": size}, "cpu").blocks == blocks
    assert read("network", {"network": network, "size": size, "blocks": 1}, "cpu").blocks == 1


def test_read_takes_heads():
    network, serve = read("network", {}, "cpu"), read("serve", {"head": "covariance", "reduced": 32}, "cpu")
    assert (network.head, network.reduced, serve.head, serve.reduced) == ("average", 256, "covariance", 32)
    assert "reduced=256" in network.words
    assert "head=covariance reduced=32" in serve.words
    assert "reduced" not in read("serve", {}, "cpu").words + read("block", {}, "cpu").words
    for benchmark, option in (("network", "head"), ("block", "reduced"), ("ops", "reduced")):
        with pytest.raises(ValueError, match=f"cgnl bench {benchmark} has no option '{option}'"):
            read(benchmark, {option: 3}, "cpu")
    with pytest.raises(ValueError, match="reduced = 0"):
        read("network", {"reduced": 0}, "cpu")
