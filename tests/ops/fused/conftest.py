"""On a GPU the kernels are compiled; elsewhere Triton's interpreter runs them, with float32 and float16."""

import importlib
from collections.abc import Iterator

import pytest
import torch

from tests.conftest import INTERPRETED
from tests.ops.fused.helpers import DEVICE, PRECISIONS, Precision

pytest.importorskip("triton")
launch = importlib.import_module("cgnl.ops.fused.launch")


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch):
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    set_precision(PRECISIONS["float32"], monkeypatch)


@pytest.fixture(params=PRECISIONS.values(), ids=list(PRECISIONS))
def precision(request, monkeypatch) -> Precision:
    """Each dtype, and float32 in both of its ways, which have tiles of their own."""
    return set_precision(request.param, monkeypatch)


@pytest.fixture(params=["tf32", "float16"])
def two_precisions(request, monkeypatch) -> Precision:
    """For what is about shapes: one of the long dtypes and one of the short."""
    return set_precision(PRECISIONS[request.param], monkeypatch)


def set_precision(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> Precision:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision.tf32)
    return precision


@pytest.fixture(params=[1, 8], ids=["one-processor", "eight-processors"])
def processors(request, monkeypatch) -> int:
    """Positions are shared out where there are processors for it, which an interpreter lacks."""
    return set_processors(request.param, monkeypatch)


@pytest.fixture
def eight_processors(monkeypatch) -> int:
    return set_processors(8, monkeypatch)


def set_processors(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    set_hardware(monkeypatch, processors=count)
    return count


@pytest.fixture(params=[99] if INTERPRETED else [99, 163], ids="{}-KiB".format)
def pointers(request, monkeypatch) -> None:
    """Tiles are read through pointers, and fit into the shared memory of GPUs before Hopper."""
    set_hardware(monkeypatch, tma=False, shared=request.param)


def set_hardware(monkeypatch: pytest.MonkeyPatch, **changed) -> None:
    found = launch.hardware(torch.device(DEVICE))._replace(**changed)
    monkeypatch.setattr(launch, "pretended", found)


@pytest.fixture
def small_tiles(monkeypatch) -> Iterator[None]:
    """The same tiles on all hardware, in kernels whose tiles differ."""
    modules = [importlib.import_module(f"cgnl.ops.fused.{name}") for name in ("attention", "output")]
    for module in modules:
        monkeypatch.setattr(module, "choose_tile", lambda *_: launch.Tile(32, 32, 32, 4, 2))
        module.make_plan.cache_clear()
    yield
    for module in modules:
        module.make_plan.cache_clear()


@pytest.fixture
def without_kernels_of_batch_norm(monkeypatch) -> None:
    monkeypatch.setattr(importlib.import_module("cgnl.ops.fused.norm"), "MOST", 0)
