import inspect

import pytest
import torch

from cgnl import ops
from cgnl.kernels import GaussianRBF
from cgnl.ops import compact_generalized_non_local, dispatch, reference
from tests.conftest import EXACT, relative_error

OPTIONS = {
    "dot": {"kernel": "dot", "groups": 2},
    "rbf": {"kernel": GaussianRBF(2, 0.5, "exact"), "groups": 2, "normalize": True, "scale": "sqrt"},
}


class Attend(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, theta, phi, g):
        return compact_generalized_non_local(theta, phi, g, **self.options)


def draw(batch):
    return [torch.randn(batch, 4, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_compact_on_the_cpu_is_the_reference(backend, options):
    inputs = draw(2)
    y = compact_generalized_non_local(*inputs, backend=backend, **options)
    assert torch.equal(y, reference.compact_generalized_non_local(*inputs, **options))


@pytest.mark.parametrize(
    ("backend", "says"),
    [("fused", 'backend="fused" is not '), ("cuda", '"auto", "reference" or "fused", got \'cuda\'')],
)
def test_compact_refuses_a_backend(backend, says):
    """The fused kernels are those of a whole block."""
    with pytest.raises(ValueError, match=rf"\A.*{says}.*\Z"):
        compact_generalized_non_local(*draw(1), backend=backend)


def test_compact_shares_its_arguments_with_the_other_forms():
    arguments = {
        name: list(inspect.signature(function).parameters)
        for name, function in {
            "exact": ops.generalized_non_local,
            "reference": reference.compact_generalized_non_local,
            "public": dispatch.compact_generalized_non_local,
        }.items()
    }
    assert arguments["reference"] == [*arguments["exact"], "process_group"]
    assert arguments["public"] == [*arguments["reference"], "backend"]


@pytest.mark.parametrize(("name", "compiler"), [("dot", "inductor"), ("rbf", "aot_eager")])
def test_compact_compiles_without_graph_breaks(name, compiler):
    torch.compiler.reset()
    inputs, eager = draw(2), Attend(**OPTIONS[name])
    outputs = [f(*inputs) for f in (eager, torch.compile(eager, fullgraph=True, backend=compiler))]
    results = [[y, *torch.autograd.grad(y, inputs, torch.cos(y.detach()))] for y in outputs]
    assert max(relative_error(compiled, plain) for plain, compiled in zip(*results, strict=True)) < EXACT


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_compact_exports_with_a_dynamic_batch(options):
    module, batch = Attend(**options), torch.export.Dim("batch")
    program = torch.export.export(module, tuple(draw(2)), dynamic_shapes=({0: batch},) * 3)
    for size in (1, 3):
        inputs = draw(size)
        assert relative_error(program.module()(*inputs), module(*inputs)) < EXACT
