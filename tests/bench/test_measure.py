import pytest
import torch

from cgnl.bench.measure import FEWEST, MIB, Times, measure, peak_mib, peak_mib_on_cpu, quantiles


def test_quantiles_of_known_times():
    assert quantiles([float(t) for t in range(11)]) == Times(5.0, 2.0, 8.0)
    assert quantiles([7.0]) == Times(7.0, 7.0, 7.0)
    assert quantiles([1.0, 1.0, 100.0]).median == 1.0


def test_measure_clears_before_every_step():
    calls = []
    times = measure(lambda: calls.append("step"), torch.device("cpu"), 0.0, lambda: calls.append("clear"))
    assert calls == ["clear", "step"] * (1 + 2 * FEWEST)
    assert 0 <= times.low <= times.median <= times.high


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


def test_peak_mib_on_cpu_of_tensors_that_come_and_go(capfd):
    there = [torch.empty(64 * MIB, dtype=torch.uint8)]

    def step():
        first = torch.empty(8 * MIB, dtype=torch.uint8)
        del first
        second, third = (torch.empty(3 * MIB, dtype=torch.uint8) for _ in range(2))
        return second, third

    assert peak_mib_on_cpu(step, there.clear) == 8
    assert capfd.readouterr().err == ""


def test_peak_mib_on_cpu_sees_inside_operations_and_backward():
    x = torch.randn(256, 1024, requires_grad=True)  # 1 MiB
    assert peak_mib_on_cpu(lambda: x.exp().sum()) == pytest.approx(1, abs=1e-3)
    assert peak_mib_on_cpu(lambda: x.exp().sum().backward()) == pytest.approx(2, abs=1e-3)  # exp, and its gradient
