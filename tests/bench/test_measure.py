import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from cgnl import CGNL, kernels
from cgnl.bench.measure import (
    MIB,
    MIN_STEPS,
    Case,
    Roofline,
    Times,
    draw_inputs,
    measure,
    measure_add,
    measure_roofline,
    peak_mib,
    peak_mib_on_cpu,
    precision,
    quantiles,
)
from cgnl.bench.registry import place
from cgnl.commands.bench import read_setting


def parameters(case):
    assert isinstance(case.call, torch.nn.Module)
    return list(case.call.parameters())


def make_case(**given):
    setting = read_setting("block", {"channels": 16, "size": "4", "seconds": 1e-3, **given}, "cpu")
    block = place(CGNL(16, zero_init=False), setting)
    return Case(block, draw_inputs(setting, 2, gradient=True), setting)


def test_train_keeps_parameters_in_float32_under_autocast():
    case = make_case(dtype="bfloat16")
    assert {p.dtype for p in parameters(case)} == {torch.float32}
    assert case.inputs[0].dtype == case.step().dtype == torch.bfloat16


def test_forward_casts_the_module_but_not_its_norm():
    case = make_case(dtype="bfloat16", mode="forward")
    block = case.call
    assert isinstance(block, torch.nn.Module)
    assert not block.training
    assert {n: p.dtype for n, p in block.named_parameters() if n in ("theta.weight", "norm.weight")} == {
        "theta.weight": torch.bfloat16,
        "norm.weight": torch.float32,
    }
    assert not case.step().requires_grad


def test_step_gives_gradients_and_clear_drops_those_of_the_input():
    case = make_case()
    case.step()
    x = case.inputs[0]
    assert x.grad is not None
    case.clear()
    assert x.grad is None
    assert all(p.grad is not None for p in parameters(case))


@pytest.mark.parametrize("last", [True, False])
def test_draw_inputs_has_the_layout(last):
    (x,) = draw_inputs(read_setting("block", {"channels_last": last}, "cpu"), 2)
    assert x.is_contiguous(memory_format=torch.channels_last) is last


def test_quantiles_of_known_times():
    assert quantiles([float(t) for t in range(11)], 0.2, 0.5, 0.8) == pytest.approx([2.0, 5.0, 8.0])
    assert quantiles([float(t) for t in range(101)], 0.5, 0.99) == pytest.approx([50, 99])
    assert quantiles([7.0], 0.2, 0.5, 0.99) == [7.0, 7.0, 7.0]
    assert quantiles([1.0, 1.0, 100.0], 0.5) == [1.0]


def test_measure_drops_gradients_before_every_step():
    x, grads = torch.ones(1, requires_grad=True), []

    def step():
        grads.append(x.grad)
        x.grad = torch.ones(1)

    times = measure(step, torch.device("cpu"), 0.0, [x])
    assert grads == [None] * (1 + 2 * MIN_STEPS)
    assert 0 <= times.low <= times.median <= times.high


@pytest.mark.parametrize(("estimate", "rep"), [(0.5, 200.0), (100.0, 500.0)])
def test_measure_on_a_gpu_takes_triton_quantiles_of_five_steps_at_least(monkeypatch, estimate, rep):
    calls = []

    def do_bench(fn, warmup, rep, grad_to_none=None, quantiles=None):
        calls.append((fn, warmup, rep, grad_to_none))
        return estimate if quantiles is None else [10.0 * q for q in quantiles]

    monkeypatch.setattr("triton.testing.do_bench", do_bench)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    x = torch.ones(1)
    assert measure(list, torch.device("cuda"), 0.2, [x]) == pytest.approx(Times(2.0, 5.0, 8.0))
    assert calls == [(list, 0, 0, None), (list, pytest.approx(rep / 5), rep, [x])]


def test_measure_add_is_positive_and_short():
    assert 0 < measure_add("cpu") < 10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_measure_on_a_gpu():
    x = torch.ones(2**20, device="cuda")
    times = measure(lambda: x * 2, x.device, 1e-3)
    assert 0 < times.low <= times.median <= times.high


class Memory:
    """A device whose allocations are written by hand."""

    def __init__(self):
        self.now = self.most = 0

    def synchronize(self):
        pass

    def reset_peak_memory_stats(self):
        self.most = self.now

    def memory_allocated(self):
        return self.now

    def max_memory_allocated(self):
        return self.most

    def allocate(self, mib: int):
        self.now += mib * MIB
        self.most = max(self.most, self.now)


def test_peak_mib_is_the_most_of_a_step_less_what_was_there_before():
    memory = Memory()
    memory.allocate(1000)
    memory.allocate(-900)  # an earlier peak, and 100 that stay

    def step():
        memory.allocate(30)
        memory.allocate(12)
        memory.allocate(-40)

    assert peak_mib(step, memory=memory) == 42


def test_peak_mib_counts_nothing_that_is_cleared_first():
    memory = Memory()
    memory.allocate(50)
    assert peak_mib(lambda: memory.allocate(20), lambda: memory.allocate(-50), memory) == 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_mib_of_a_tensor():
    assert peak_mib(lambda: torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")) == 8


def test_peak_mib_on_cpu_of_tensors_that_come_and_go():
    there = [torch.empty(64 * MIB, dtype=torch.uint8)]

    def step():
        first = torch.empty(8 * MIB, dtype=torch.uint8)
        del first
        second, third = (torch.empty(3 * MIB, dtype=torch.uint8) for _ in range(2))
        return second, third

    assert peak_mib_on_cpu(step, there.clear) == 8


def test_peak_mib_on_cpu_is_silent():
    """In a process of its own: torch's profiler reads how much it may say once."""
    code = "import torch; from cgnl.bench.measure import peak_mib_on_cpu; peak_mib_on_cpu(lambda: torch.ones(9))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stderr == b""


def test_peak_mib_on_cpu_sees_inside_operations_and_backward():
    x = torch.randn(256, 1024, requires_grad=True)  # 1 MiB
    assert peak_mib_on_cpu(lambda: x.exp().sum()) == pytest.approx(1, abs=1e-3)
    assert peak_mib_on_cpu(lambda: x.exp().sum().backward()) == pytest.approx(2, abs=1e-3)  # exp, and its gradient


BATCH, CHANNELS, INNER, GROUPS, POSITIONS = 2, 16, 8, 4, 9


def case(mode: str, kernel: str = "dot") -> Case:
    given = {"batch": BATCH, "channels": CHANNELS, "size": "3", "groups": GROUPS, "mode": mode}
    setting = read_setting("block", given, "cpu")
    block = CGNL(CHANNELS, INNER, groups=GROUPS, kernel=kernel).train(mode == "train")
    return Case(block, draw_inputs(setting, BATCH, gradient=True), setting)


CONVOLUTIONS = 2 * BATCH * POSITIONS * CHANNELS * (3 * INNER + INNER // GROUPS)


def test_count_flops_of_a_block():
    # one power sum over theta's elements, and s (W_z theta) over the output's
    assert case("forward").count_flops() == CONVOLUTIONS + 2 * BATCH * POSITIONS * (INNER + CHANNELS)


def test_count_flops_of_a_block_in_training_has_convolutions_thrice():
    assert case("train").count_flops() > 3 * CONVOLUTIONS


def test_count_flops_grow_with_the_order():
    terms = kernels.GaussianRBF(3).order + 1
    assert case("forward", "rbf").count_flops() == CONVOLUTIONS + 2 * BATCH * POSITIONS * INNER * 2 * terms


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_least_bytes_of_a_block(mode):
    elements = BATCH * POSITIONS * CHANNELS
    weights = 3 * CHANNELS * INNER + CHANNELS * INNER // GROUPS + 2 * CHANNELS
    once = 4 * (2 * elements + weights)
    assert case(mode).least_bytes() == once * (2 if mode == "train" else 1)


@pytest.mark.parametrize(("flops", "moved", "expected"), [(2e12, 1e9, 2000.0), (1e9, 5e9, 5000.0)])
def test_roofline_sets_the_time_by_what_is_slower(flops, moved, expected):
    assert Roofline(1e12, 1e9).milliseconds(flops, moved) == expected


def test_measure_roofline_is_positive():
    roofline = measure_roofline(read_setting("ops", {"seconds": 1e-3}, "cpu"))
    assert roofline.flops > 0
    assert roofline.bytes > 0


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("benchmark", [True, False])
def test_precision_is_given_back(tf32, benchmark):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with precision(tf32, benchmark):
        assert torch.backends.cuda.matmul.allow_tf32 is tf32
        assert torch.backends.cudnn.allow_tf32 is tf32
        assert torch.backends.cudnn.benchmark is benchmark
    after = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    assert after == before
