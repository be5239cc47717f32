import pytest
import torch

from cgnl.bench.cases import draw, load, ready
from cgnl.bench.settings import read
from cgnl.bench.subjects import BENCHMARKS, choose

(BLOCK,) = choose(["reference"], BENCHMARKS["block"].subjects)


def case_of(**given):
    setting = read("block", {"channels": 16, "size": "4", "seconds": 1e-3, **given}, "cpu")
    weights = BLOCK.build(setting).state_dict()  # pyright: ignore
    return ready(load(BLOCK, setting, weights), draw(setting, 2, 1, gradient=True), setting)


def test_train_keeps_parameters_in_float32_under_autocast():
    case = case_of(dtype="bfloat16")
    assert {p.dtype for p in case.parameters} == {torch.float32}
    assert case.inputs[0].dtype == case.step().dtype == torch.bfloat16


def test_forward_casts_the_module_but_not_its_norm():
    case = case_of(dtype="bfloat16", mode="forward")
    block = case.call
    assert isinstance(block, torch.nn.Module)
    assert not block.training
    assert {n: p.dtype for n, p in block.named_parameters() if n in ("theta.weight", "norm.weight")} == {
        "theta.weight": torch.bfloat16,
        "norm.weight": torch.float32,
    }
    assert not case.step().requires_grad


def test_step_gives_gradients_and_clear_drops_those_of_the_input():
    case = case_of()
    case.step()
    x = case.inputs[0]
    assert x.grad is not None
    case.clear()
    assert x.grad is None
    assert all(p.grad is not None for p in case.parameters)


@pytest.mark.parametrize("last", [True, False])
def test_draw_has_the_layout(last):
    setting = read("block", {"channels_last": last}, "cpu")
    (x,) = draw(setting, 2, 1, gradient=False)
    assert x.is_contiguous(memory_format=torch.channels_last) is last
