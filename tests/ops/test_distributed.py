"""Inputs split over two real processes by position, against the whole in one."""

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from cgnl.kernels import Dot, EmbeddedGaussian, GaussianRBF, Kernel, Taylor
from cgnl.ops import compact_generalized_non_local
from tests.conftest import EXACT, relative_error
from tests.ranks import connect_two

BATCH, GROUPS, ORDER = 2, 2, 3
SUMS = BATCH * GROUPS
# id: kernel, other options, columns of each process, numbers that travel
CASES: dict[str, tuple[Kernel, dict, tuple[int, int], int]] = {
    "dot": (Dot(), {}, (4, 4), SUMS),
    "dot-uneven": (Dot(), {}, (3, 5), SUMS),
    "dot-sqrt": (Dot(), {"scale": "sqrt"}, (3, 5), SUMS + 1),
    "dot-resolution": (Dot(), {"scale": "resolution"}, (3, 5), SUMS + 1),
    "taylor": (Taylor([0, 0, 1, 0.5]), {}, (1, 7), 2 * SUMS),
    "rbf-paper": (GaussianRBF(ORDER, 0.5, "paper"), {}, (3, 5), SUMS * (ORDER + 1)),
    "rbf-norm": (GaussianRBF(ORDER, 0.01, "norm"), {}, (3, 5), SUMS * (ORDER + 1) + SUMS),
    "rbf-exact": (GaussianRBF(ORDER, 0.5, "exact"), {}, (3, 5), SUMS * (ORDER + 1)),
    "rbf-exact-sqrt": (GaussianRBF(ORDER, 0.5, "exact"), {"scale": "sqrt"}, (3, 5), SUMS * (ORDER + 1) + 1),
    **{
        f"{name}-normalized": (kernel, {"normalize": True}, (3, 5), 2 * SUMS * len(kernel.coefficients()))
        for name, kernel in {
            "embedded_gaussian": EmbeddedGaussian(2),
            "rbf-norm": GaussianRBF(ORDER, 0.01, "norm"),
            "rbf-exact": GaussianRBF(ORDER, 0.5, "exact"),
        }.items()
    },
    "rbf-normalized-resolution": (
        GaussianRBF(ORDER, 0.5, "exact"),
        {"normalize": True, "scale": "resolution"},
        (3, 5),
        2 * SUMS * (ORDER + 1) + 1,
    ),
}


def draw() -> list[torch.Tensor]:
    """theta, phi, g and the gradient of the output, whole and the same in every process."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 4, 2, 8, dtype=torch.float64, generator=generator) for _ in range(4)]


def attend(kernel, options, tensors, process_group=None):
    """The output, and a function that gives the gradients of theta, phi and g."""
    *inputs, gradient = (t.detach().clone().requires_grad_() for t in tensors)
    y = compact_generalized_non_local(*inputs, kernel=kernel, groups=GROUPS, process_group=process_group, **options)
    return y.detach(), lambda: torch.autograd.grad(y, inputs, gradient.detach())


def work(rank: int, folder: str) -> None:
    """One process: run every case on its own columns, write results and the size of each message."""
    connect_two(rank, folder)
    messages, all_reduce = [], dist.all_reduce

    def counted(tensor, *args, **kwargs):
        messages.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = counted
    results = {}
    for name, (kernel, options, columns, _) in CASES.items():
        mine = [t.split(columns, -1)[rank] for t in draw()]
        y, backward = attend(kernel, options, mine, dist.group.WORLD)
        forward_messages = messages.copy()
        results[name] = [y, *backward()], forward_messages, messages[len(forward_messages) :]
        messages.clear()
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("processes"))
    spawn(work, (folder,), nprocs=2)
    return [torch.load(f"{folder}/{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_compact_over_processes_equals_the_whole(processes, name):
    kernel, options, columns, _ = CASES[name]
    y, backward = attend(kernel, options, draw())
    splits = zip(*(process[name][0] for process in processes), strict=True)
    for split, whole in zip(splits, [y, *backward()], strict=True):
        assert [part.shape[-1] for part in split] == list(columns)
        assert relative_error(torch.cat(split, -1), whole) < EXACT


@pytest.mark.parametrize("name", CASES)
def test_compact_sends_one_small_message_forward_and_one_backward(processes, name):
    kernel, options, _, numbers = CASES[name]
    minima = [SUMS] if kernel.envelope and options.get("normalize") else []
    for process in processes:
        _, forward, backward = process[name]
        assert forward == [*minima, numbers]
        assert backward == [numbers]
