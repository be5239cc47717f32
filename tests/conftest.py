"""Shared by all tests: how exact is exact enough, and small helpers."""

import importlib
import importlib.util
import os

import pytest
import torch

# Relative error, in the norm, to an independent float64 truth.
EXACT = 1e-10  # two float64 computations of the same thing
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}

if "PYTEST_XDIST_WORKER" in os.environ:  # one core for each worker
    torch.set_num_threads(1)

INTERPRETED = not torch.cuda.is_available()
"""Whether Triton's interpreter runs the fused kernels, which it does for those imported while this variable is set.

It is set in tests/ops/fused alone: all others, and the processes that they start, have the reference on a CPU.
"""
if INTERPRETED and importlib.util.find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("cgnl.ops.fused.operator")
    importlib.import_module("cgnl.ops.fused.autograd")
    importlib.import_module("tests.ops.fused.interpreter").speed_up()
os.environ.pop("TRITON_INTERPRET", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| / |expected| in float64."""
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape
    return float((actual - expected).norm() / expected.norm().clamp_min(1e-300))
