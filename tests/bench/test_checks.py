from dataclasses import replace

import pytest
import torch
from torch import nn

from cgnl.bench.checks import check, check_batch, compute_truth, relative_error, split
from cgnl.bench.registry import BENCHMARKS, Subject
from cgnl.commands.bench import read_setting


def make_setting(**given):
    return read_setting("block", {"channels": 16, "size": "6", **given}, "cpu")


REFERENCE = BENCHMARKS["block"].reference


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_check_passes_the_reference(norm, mode, kernel, dtype):
    setting = make_setting(norm=norm, mode=mode, kernel=kernel, dtype=dtype)
    truth = compute_truth(setting)
    error, fault = check(REFERENCE, REFERENCE.load(setting, truth.weights), setting, truth)
    assert fault == ""
    assert error is not None
    assert error < (1e-4 if dtype == "float32" else 0.1)


class Skewed(nn.Module):
    """A block whose branch, or whose input gradient, is a few per cent off."""

    def __init__(self, block: nn.Module, output: float = 1.0, gradient: float = 1.0):
        super().__init__()
        self.block, self.output, self.gradient = block, output, gradient

    def forward(self, x):
        branch = self.output * (self.block(x) - x)
        skewed = x + branch
        return skewed.detach() + self.gradient * (skewed - skewed.detach())


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize(("output", "gradient"), [(1.05, 1.0), (0.0, 1.0), (1.0, 1.05)])
def test_check_finds_an_error_in_the_branch(norm, mode, output, gradient):
    setting = make_setting(norm=norm, mode=mode)
    truth = compute_truth(setting)
    call = Skewed(REFERENCE.load(setting, truth.weights), output, gradient)  # pyright: ignore[reportArgumentType]
    _, fault = check(REFERENCE, call, setting, truth)
    wrong = output != 1 or mode == "train"
    assert ("not timed" in fault) is wrong


def test_check_wants_the_shape_and_finite_values_of_any_block():
    setting = make_setting()
    truth = compute_truth(setting)
    other = Subject("other", lambda _: nn.Identity())
    assert check(other, nn.Identity(), setting, truth) == (None, "")
    assert check(other, nn.Conv2d(16, 8, 1), setting, truth)[1].startswith("wrong shape: [2, 8, 6, 6] instead of")
    assert "non-finite" in check(other, lambda x: x / 0, setting, truth)[1]


def test_split_finds_the_blocks_of_a_network():
    setting = read_setting("network", {"network": "resnet18", "blocks": 1, "size": "32"}, "cpu")
    truth = compute_truth(setting)
    reference = BENCHMARKS["network"].reference
    network = reference.load(setting, truth.weights)
    assert list(split(network)) == list(truth.parts) == ["layer3.0_cgnl"]
    assert truth.parts["layer3.0_cgnl"].inputs[0].shape == (2, 256, 2, 2)
    assert truth.shape == (2, 1000)
    assert check(reference, network, setting, truth)[1] == ""
    with torch.no_grad():
        assert isinstance(network, nn.Module)
        network.get_submodule("layer3.0_cgnl").norm.weight.mul_(0.9)  # pyright: ignore
    assert "not timed" in check(reference, network, setting, truth)[1]


def test_check_batch_is_small_for_large_samples():
    setting = make_setting(batch=64)
    assert check_batch(setting) == 8
    assert check_batch(replace(setting, size=(2000, 2000))) == 2
    assert check_batch(replace(setting, batch=1)) == 1


def test_relative_error_is_the_largest():
    a, b = torch.tensor([3.0, 4.0]).double(), torch.tensor([1.0, 0.0]).double()
    assert relative_error([a, b], [a, 2 * b]) == 0.5
    assert relative_error([a * torch.nan], [a]) == float("inf")
