"""The kernels inside a network: training follows the reference, compilers take them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cgnl import CGNL
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, Case, reference_of, run


def losses(network: nn.Sequential, x: Tensor, target: Tensor, steps: int) -> Tensor:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x).mean((2, 3)), target)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def test_training_follows_the_reference():
    block = CGNL(16, 16, groups=1, kernel="embedded_gaussian", scale="sqrt", backend="fused")
    network = nn.Sequential(nn.Conv2d(3, 16, 3), block, nn.ReLU(), nn.Conv2d(16, 10, 3)).to(DEVICE)
    twin = copy.deepcopy(network)
    twin[1] = reference_of(block)
    x, target = torch.randn(2, 3, 5, 5, device=DEVICE), torch.arange(2, device=DEVICE)
    fused, plain = (losses(n, x, target, 50) for n in (network, twin))
    assert plain[-1] < 0.5 * plain[0]
    torch.testing.assert_close(fused, plain, rtol=0.02, atol=0.002)
    assert relative_error(block.norm.running_var, twin[1].get_buffer("norm.running_var")) < 0.01


@pytest.mark.parametrize("case", [
    Case(kernel="rbf-exact"), Case(recompute=True), Case(norm="group", kernel="taylor"), Case(train=False),
    Case(layout="channels-last"), Case(layout="channels-last", train=False), Case(layout="sliced"),
], ids=["batch-norm", "recompute", "group-norm", "eval", "channels-last", "eval-channels-last", "sliced"])  # fmt: skip
def test_compiled_block_is_the_eager_one(case):
    torch.compiler.reset()
    block, (x, gradient) = case.block(), case.inputs()
    eager = run(block, x, gradient)
    twin = copy.deepcopy(block)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    mine = x.clone().requires_grad_()
    y = compiled(mine)
    assert y.stride() == block(mine).stride()
    names, parameters = zip(*twin.named_parameters(), strict=True)
    found = dict(zip(("x", *names), torch.autograd.grad(y, (mine, *parameters), gradient), strict=True))
    found |= {"output": y - mine, **{n: b for n, b in twin.norm.named_buffers() if n in eager}}
    if not case.train:
        with torch.no_grad():
            found["inference"] = compiled(x) - x
    assert set(found) == set(eager)
    assert {name: e for name in eager if (e := relative_error(found[name], eager[name])) > 1e-6} == {}
