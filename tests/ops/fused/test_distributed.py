"""SyncBatchNorm over two real processes, against one process with the whole batch."""

import os

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from cgnl import CGNL
from tests.conftest import INTERPRETED, relative_error
from tests.ops.fused.helpers import Case
from tests.ranks import connect_two

CASES = {
    "dot": Case((4, 64, 3, 3)),
    "constant-term": Case((4, 64, 3, 3), kernel="rbf-exact"),
    "first-power-2-recompute": Case((4, 64, 3, 3), kernel="taylor", recompute=True),
}
SPLITS = {"dot": (2, 2), "constant-term": (1, 3), "first-power-2-recompute": (3, 1)}
BACKEND = "gloo" if INTERPRETED else "nccl"

pytestmark = [
    pytest.mark.skipif(not INTERPRETED and torch.cuda.device_count() < 2, reason="two GPUs are needed"),
    pytest.mark.filterwarnings("ignore:.*single sample"),
]


def make(case: Case, device: str = "cpu") -> tuple[CGNL, Tensor, Tensor]:
    torch.manual_seed(1)
    block, (x, gradient) = case.block(), case.inputs()
    return block.to(device), x.to(device), gradient.to(device)


def results(block: nn.Module, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    x = x.requires_grad_()
    y = block(x)
    y.backward(gradient)
    gradients = {name: p.grad for name, p in block.named_parameters()}
    found = {"output": y.detach(), "x": x.grad, **gradients, **dict(block.named_buffers())}
    return {name: t.cpu() for name, t in found.items() if t is not None}


def work(rank: int, folder: str) -> None:
    if INTERPRETED:
        os.environ["TRITON_INTERPRET"] = "1"
    connect_two(rank, folder, BACKEND)
    device = "cpu" if INTERPRETED else f"cuda:{rank}"
    found = {}
    for name, case in CASES.items():
        block, x, gradient = make(case, device)
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(block)
        found[name] = results(synced, x.split(SPLITS[name])[rank].clone(), gradient.split(SPLITS[name])[rank])
    torch.save(found, f"{folder}/{rank}.pt")


def test_sync_batch_norm_over_processes_is_batch_norm_of_the_whole(tmp_path):
    spawn(work, (str(tmp_path),), nprocs=2)
    processes = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    wrong = {}
    for name, case in CASES.items():
        block, x, gradient = make(case)
        block.backend = "reference"
        whole = results(block.double(), x.double(), gradient.double())
        first, second = (process[name] for process in processes)
        assert set(first) == set(second) == set(whole)
        for key, expected in whole.items():
            if key in ("output", "x"):
                actual = torch.cat((first[key], second[key]))
            elif key in dict(block.named_parameters()):
                actual = first[key] + second[key]
            else:  # statistics, the same everywhere
                assert torch.equal(first[key], second[key])
                actual = first[key]
            if (error := relative_error(actual, expected)) > 2e-5:
                wrong[f"{name} {key}"] = error
    assert wrong == {}
