import inspect
from typing import Any

import pytest
import torch
from torch import nn

from cgnl import CGNL, kernels, ops
from cgnl.kernels import GaussianRBF
from cgnl.ops import block, compact_generalized_non_local, dispatch, reference
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
    assert arguments["reference"] == [*arguments["exact"], "process_group", "fused"]
    assert arguments["public"] == [*arguments["reference"][:-1], "backend"]


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


def block_arguments(dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    module = CGNL(32, groups=2, norm=None, zero_init=False, dtype=dtype)
    return torch.randn(2, 32, 3, 4, dtype=dtype), module.theta, module.phi, module.g, module.z


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_block_on_the_cpu_is_the_reference_of_layers_and_of_weights(backend, dtype):
    x, *layers = block_arguments(dtype)
    weights = [layer.weight for layer in layers]
    expected = block.cgnl_block(x, *weights, groups=2)
    for given in (layers, weights):
        assert torch.equal(dispatch.cgnl_block(x, *given, groups=2, backend=backend), expected)


def test_block_says_why_the_kernels_do_not_apply():
    with pytest.raises(ValueError, match=r'backend="fused" is not possible: the input is on cpu'):
        dispatch.cgnl_block(*block_arguments(), groups=2, backend="fused")


def why_not(change=lambda _: None, norm=None) -> str | None:
    x, *layers = block_arguments()
    named: Any = dict(zip(("theta", "phi", "g", "z"), layers, strict=True))
    change(named)
    return dispatch.why_not(x, named, norm, kernels.Dot(), 2, None, False)


@pytest.mark.parametrize(
    ("change", "norm", "says"),
    [
        (lambda layers: layers["g"].register_forward_hook(lambda *_: None), None, "g has hooks"),
        (lambda layers: layers["z"].register_full_backward_hook(lambda *_: None), None, "z has hooks"),
        (lambda layers: layers.update(phi=nn.Identity()), None, "phi is a Identity"),
        (lambda layers: layers.update(z=nn.Conv2d(16, 32, 1, bias=False)), None, "z has 1 groups"),
        (lambda layers: layers.update(theta=nn.Conv2d(32, 16, 1)), None, "theta has a bias"),
        (lambda _: None, nn.LayerNorm(32), "norm is a LayerNorm"),
        (lambda _: None, nn.GroupNorm(4, 32), "norm has 4 groups"),
        (lambda _: None, nn.BatchNorm2d(32, affine=False), "norm has no weight"),
    ],
)
def test_why_not_names_the_layer(change, norm, says):
    assert why_not(change, norm) == says


def test_why_not_of_plain_layers_is_the_device():
    assert why_not() == "the input is on cpu, and the kernels run on CUDA"
