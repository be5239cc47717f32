import pytest
import torch

from cgnl import CGNL, kernels
from cgnl.bench.cases import Case, draw, ready
from cgnl.bench.roofline import Ceilings, count_flops, least_bytes, measure_ceilings, precision
from cgnl.bench.settings import read

BATCH, CHANNELS, INNER, GROUPS, POSITIONS = 2, 16, 8, 4, 9


def case(mode: str, kernel: str = "dot") -> Case:
    given = {"batch": BATCH, "channels": CHANNELS, "size": "3", "groups": GROUPS, "mode": mode}
    setting = read("block", given, "cpu")
    block = CGNL(CHANNELS, INNER, groups=GROUPS, kernel=kernel).train(mode == "train")
    return ready(block, draw(setting, BATCH, 1, gradient=True), setting)


CONVOLUTIONS = 2 * BATCH * POSITIONS * CHANNELS * (3 * INNER + INNER // GROUPS)


def test_count_flops_of_a_block():
    # one power sum over theta's elements, and s (W_z theta) over the output's
    assert count_flops(case("forward")) == CONVOLUTIONS + 2 * BATCH * POSITIONS * (INNER + CHANNELS)


def test_count_flops_of_a_block_in_training_has_convolutions_thrice():
    assert count_flops(case("train")) > 3 * CONVOLUTIONS


def test_count_flops_grow_with_the_order():
    terms = kernels.GaussianRBF(3).order + 1
    assert count_flops(case("forward", "rbf")) == CONVOLUTIONS + 2 * BATCH * POSITIONS * INNER * 2 * terms


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_least_bytes_of_a_block(mode):
    elements = BATCH * POSITIONS * CHANNELS
    weights = 3 * CHANNELS * INNER + CHANNELS * INNER // GROUPS + 2 * CHANNELS
    once = 4 * (2 * elements + weights)
    step = case(mode)
    assert least_bytes(step, step.step()) == once * (2 if mode == "train" else 1)


@pytest.mark.parametrize(("flops", "moved", "expected"), [(2e12, 1e9, 2000.0), (1e9, 5e9, 5000.0)])
def test_ceilings_set_the_time_by_what_is_slower(flops, moved, expected):
    assert Ceilings(1e12, 1e9).milliseconds(flops, moved) == expected


def test_measure_ceilings_are_positive():
    ceilings = measure_ceilings(read("ops", {"seconds": 1e-3}, "cpu"))
    assert ceilings.flops > 0
    assert ceilings.bytes > 0


@pytest.mark.parametrize("tf32", [True, False])
def test_precision_is_given_back(tf32):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with precision(tf32):
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
        assert torch.backends.cudnn.allow_tf32 is tf32
    after = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    assert after == before
