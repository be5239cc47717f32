import copy
import pickle
import warnings
from typing import Any, TypeVar, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

from cgnl import CGNL, NonLocal, SimpleResidual, kernels, ops
from tests.conftest import EXACT, ROUNDING, relative_error

KERNELS = [
    kernels.Dot(),
    kernels.EmbeddedGaussian(2),
    kernels.GaussianRBF(3, gamma=0.1),
    kernels.GaussianRBF(2, gamma=0.01, beta="norm"),
    kernels.GaussianRBF(3, gamma=0.1, beta="exact"),
    kernels.GaussianRBF(0),
    kernels.Taylor((0, 0, 1)),
    kernels.Taylor((0.5, 0, 1)),
]
BLOCKS: dict[str, Any] = {
    "cgnl": CGNL,
    "cgnl-energy": lambda *args, **kw: CGNL(*args, scale="energy", **kw),
    "cgnlx": lambda *args, **kw: CGNL(*args, kernel="rbf", **kw),
    "cgnl-normalized": lambda *args, **kw: CGNL(*args, kernel=KERNELS[4], normalize=True, **kw),
    "nl": NonLocal,
    "nl-dot": lambda *args, **kw: NonLocal(*args, kernel="dot", scale=False, subsample=True, **kw),
    "residual": SimpleResidual,
}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
POSITIONS = {1: (9,), 2: (3, 4), 3: (2, 3, 4)}

Block = TypeVar("Block", bound=nn.Module)

each_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)
each_ndim = pytest.mark.parametrize("ndim", POSITIONS)


def trained(block: Block) -> Block:
    """The block with weights of ordinary size everywhere, so that every part of it shows in the output."""
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.4 if parameter.ndim > 1 else 1.0)
    return block


@each_ndim
@each_block
@pytest.mark.parametrize("norm", ["batch", "group", None])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_fresh_block_is_an_identity(block, ndim, norm, training):
    for dtype in DTYPES:
        x = 100 * torch.randn(2, 16, *POSITIONS[ndim]).to(dtype)
        y = block(16, ndim=ndim, norm=norm, dtype=dtype).train(training)(x)
        assert torch.equal(y, x)
        assert (y.dtype, y.stride()) == (x.dtype, x.stride())


@each_block
@pytest.mark.parametrize("norm", ["batch", "group", None])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_fresh_block_keeps_the_sign_of_zero(block, norm, training):
    for dtype in DTYPES:
        x = torch.randn(2, 16, 3, 4).to(dtype) * torch.tensor([0.0, 1.0, -0.0, 0.0]).to(dtype)
        assert torch.equal(block(16, norm=norm, dtype=dtype).train(training)(x).signbit(), x.signbit())


@each_ndim
@each_kernel
def test_cgnl_is_the_papers_equation(kernel, ndim):
    block = trained(CGNL(8, ndim=ndim, groups=2, kernel=kernel, scale="sqrt").double())
    x = torch.randn(3, 8, *POSITIONS[ndim], dtype=torch.float64)
    y = ops.compact_generalized_non_local(
        block.theta(x), block.phi(x), block.g(x), kernel=kernel, groups=2, scale="sqrt"
    )
    assert relative_error(block(x), x + block.norm(block.z(y))) < EXACT


def test_cgnl_with_dot_kernel_is_the_exact_generalized_form():
    block = trained(CGNL(8, groups=2).double())
    x = torch.randn(3, 8, 3, 4, dtype=torch.float64)
    y = ops.generalized_non_local(block.theta(x), block.phi(x), block.g(x), groups=2)
    assert relative_error(block(x), x + block.norm(block.z(y))) < EXACT


@pytest.mark.parametrize("subsample", [True, False])
@each_ndim
def test_non_local_is_softmax_attention(ndim, subsample):
    block = trained(NonLocal(8, ndim=ndim, subsample=subsample).double())
    x = torch.randn(2, 8, *{1: (9,), 2: (5, 4), 3: (3, 5, 4)}[ndim], dtype=torch.float64)
    pool = {1: lambda t: F.max_pool1d(t, 2), 2: lambda t: F.max_pool2d(t, 2), 3: lambda t: F.max_pool3d(t, (1, 2, 2))}
    keys = pool[ndim](x) if subsample else x
    theta, phi, g = (t.flatten(2) for t in (block.theta(x), block.phi(keys), block.g(keys)))
    weights = torch.softmax(theta.transpose(1, 2) @ phi / 2, -1)  # sqrt of four inner channels
    y = (g @ weights.transpose(1, 2)).view(2, 4, *x.shape[2:])
    assert relative_error(block(x), x + block.norm(block.z(y))) < EXACT


def test_non_local_subsamples_a_map_of_one_row():
    assert NonLocal(8, subsample=True)(torch.randn(2, 8, 1, 6)).shape == (2, 8, 1, 6)


def test_group_norm_removes_the_attention_but_for_its_sign():
    x = torch.randn(3, 16, 6, 6, dtype=torch.float64)
    for norm, removed in (("group", True), ("batch", False)):
        block = trained(CGNL(16, groups=2, norm=norm).double())
        attention = block.phi(x).mul(block.g(x)).unflatten(1, (2, -1)).sum((2, 3, 4)).sign()  # [B, G]
        sign = attention.repeat_interleave(8, 1)[..., None, None]  # [B, C, 1, 1]
        error = relative_error(x + block.norm(sign * block.z(block.theta(x))), block(x))
        assert (error < 1e-3) == removed


def test_simple_residual_is_cgnl_with_attention_one():
    block = trained(SimpleResidual(8, groups=2).double())
    x = torch.randn(3, 8, 3, 4, dtype=torch.float64)
    assert relative_error(block(x), x + block.norm(block.z(block.theta(x)))) < EXACT


@pytest.mark.parametrize("amplitude", [1, 100], ids=["relu(N(0,1))", "100 relu(N(0,1))"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
def test_half_precision_block_stays_finite_and_matches_float64(kernel, dtype, amplitude):
    x = (amplitude * torch.randn(2, 512, 28, 28).relu()).to(dtype)
    block = CGNL(512, groups=1, kernel=kernel, dtype=dtype)
    assert torch.equal(block(x), x)
    nn.init.ones_(block.norm.weight)
    y, truth = block(x), copy.deepcopy(block).double()(x.double())
    assert y.dtype == dtype
    assert y.isfinite().all()
    assert relative_error(y, truth) < 2 * ROUNDING[dtype]
    assert all(buffer.isfinite().all() for buffer in block.buffers())


def with_energy(ndim: int = 2) -> CGNL:
    return trained(CGNL(8, 4, ndim=ndim, groups=2, norm=None, scale="energy").double())


@each_ndim
def test_energy_divides_the_attention_of_a_sample_by_its_mean_square(ndim):
    block, x = with_energy(ndim), torch.randn(3, 8, *POSITIONS[ndim], dtype=torch.float64)
    expected = []
    for sample in x.split(1):
        theta, phi, g = (t[0].flatten(1) for t in block.factors(sample))  # [4, N]
        mean_square = sum(v**2 for v in sample.flatten().tolist()) / sample.numel()
        s = [(phi[k] * g[k]).sum().item() / (mean_square + 1e-6) for k in (slice(0, 2), slice(2, 4))]
        y = torch.cat([s[0] * theta[:2], s[1] * theta[2:]])
        expected.append(sample + block.z(y.view(1, 4, *POSITIONS[ndim])))
    assert relative_error(block(x), torch.cat(expected)) < EXACT


def test_branch_with_energy_is_of_degree_one():
    block, x = with_energy(), torch.randn(3, 8, 3, 4, dtype=torch.float64)
    once, thrice = (block(c * x) - c * x for c in (1, 3))  # without a norm
    assert relative_error(thrice, 3 * once) < 2e-6
    block.scale = None
    once, thrice = (block(c * x) - c * x for c in (1, 3))
    assert relative_error(thrice, 27 * once) < EXACT


def test_gradients_with_energy_are_those_of_finite_differences():
    x = torch.randn(2, 8, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(with_energy(), (x,))
    assert torch.autograd.gradgradcheck(with_energy(), (x,))


@pytest.mark.parametrize("amplitude", [0, 1e-3, 1, 1e3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_energy_in_half_precision_stays_finite(dtype, amplitude):
    """Squares of 1000 are beyond float16."""
    x = (amplitude * torch.rand(2, 64, 14, 14)).to(dtype).requires_grad_()
    block = CGNL(64, groups=8, norm=None, zero_init=False, scale="energy", dtype=dtype)
    y = block(x)
    y.float().sum().backward()
    assert relative_error(y, copy.deepcopy(block).double()(x.double())) < 2 * ROUNDING[dtype]
    assert x.grad is not None
    assert all(t.isfinite().all() for t in (y, x.grad, *gradients(block)))


@each_block
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_autocast_keeps_the_block_close_to_float64(block, dtype):
    module, x = trained(block(16)), 3 * torch.randn(4, 16, 6, 6)
    truth = copy.deepcopy(module).double()(x.double())
    with torch.autocast("cpu", dtype):
        y = module(x)
    assert y.dtype == torch.float32
    assert relative_error(y, truth) < 20 * ROUNDING[dtype]


@each_block
def test_half_leaves_the_norm_in_float32(block):
    module = block(16).half()
    assert {p.dtype for n, p in module.named_parameters() if not n.startswith("norm")} == {torch.float16}
    assert {t.dtype for t in module.norm.state_dict().values() if t.is_floating_point()} == {torch.float32}
    assert module.double().norm.weight.dtype == torch.float64
    assert module.to("meta", torch.bfloat16).norm.weight.device.type == "meta"
    assert list(dict(module.named_children()))[-1] == "norm"


@pytest.mark.parametrize("steps", [("half",), ("double", "bfloat16"), ("half", "float")], ids="-".join)
@pytest.mark.parametrize("norm", ["batch", None])
def test_conversions_leave_a_working_block(norm, steps):
    block = CGNL(16, norm=norm)
    for step in steps:
        getattr(block, step)()
    x = torch.randn(2, 16, 4, 4, dtype=block.z.weight.dtype)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("kernel", ["rbf", kernels.GaussianRBF(beta="exact")], ids=["paper", "exact"])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.filterwarnings("ignore:.*single sample")
def test_large_constant_term_does_not_drown_the_rest(kernel, samples):
    x = torch.randn(samples, 64, 14, 14).relu()
    block = CGNL(64, groups=1, kernel=kernel, zero_init=False)
    truth, y = copy.deepcopy(block).double(), block(x)
    assert relative_error(y, truth(x.double())) < 100 * ROUNDING[torch.float32]
    for name in ("running_mean", "running_var"):
        assert relative_error(getattr(block.norm, name), getattr(truth.norm, name)) < 1e-5
    plain: Any = nn.BatchNorm2d(64, dtype=torch.float64)
    projections = (module(x.double()) for module in (truth.theta, truth.phi, truth.g))
    plain(truth.z(ops.compact_generalized_non_local(*projections, kernel=kernel)))
    assert relative_error(truth.norm.running_mean, plain.running_mean) < 1e-8


def test_function_transforms_differentiate_through_the_block():
    block = trained(CGNL(8, groups=2, kernel="rbf", norm="group").double())
    x, v = torch.randn(2, 1, 8, 3, 3, dtype=torch.float64).unbind()
    tangent = torch.func.jvp(block, (x,), (v,))[1]
    step = 1e-6
    assert relative_error(tangent, (block(x + step * v) - block(x - step * v)) / (2 * step)) < 1e-6
    gradient: Any = torch.func.grad(lambda t: block(t).square().sum())(x)
    x.requires_grad_()
    assert relative_error(gradient, torch.autograd.grad(block(x).square().sum(), x)[0]) < EXACT


@each_block
def test_every_parameter_learns_after_the_first_step(block):
    module, x = block(16), torch.randn(4, 16, 4, 4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(module(x), torch.randn(4, 16, 4, 4)).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


@each_kernel
def test_gradients_are_those_of_finite_differences(kernel):
    block = trained(CGNL(4, groups=2, kernel=kernel, norm="group").double())
    x = torch.randn(2, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*block.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(block, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *values))


@each_block
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_compile_has_no_graph_break_and_agrees(block, training):
    module, x = trained(block(16)).double().train(training), torch.randn(2, 16, 3, 4, dtype=torch.float64)
    torch.compiler.reset()  # every case compiles the same forward: do not count them against its limit
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, actual = module(a), compiled(b)
    assert relative_error(actual, expected) < EXACT
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for x, y in ((a, expected), (b, actual))]
    assert relative_error(*gradients) < EXACT


def test_flops_count_the_sums_beside_the_convolutions():
    positions, channels, inner, groups = 12, 16, 8, 2
    convolutions = 3 * positions * channels * inner + positions * channels * inner // groups
    for kernel, sums in (
        ("dot", positions * inner + positions * channels),  # s meets z, not theta
        ("rbf", 2 * 4 * positions * inner),  # P + 1 = 4 powers
    ):
        with FlopCounterMode(display=False) as counter:
            CGNL(channels, groups=groups, kernel=kernel).eval()(torch.randn(1, channels, 3, 4))
        assert counter.get_total_flops() == 2 * (convolutions + sums)


@pytest.mark.parametrize(("samples", "norm", "training", "warns"), [
    (1, "batch", True, True),
    (2, "batch", True, False),
    (1, "batch", False, False),
    (1, "group", True, False),
    (1, "frozen", True, False),
])  # fmt: skip
def test_training_batch_norm_on_one_sample_warns(samples, norm, training, warns):
    block = CGNL(16, norm="batch" if norm == "frozen" else norm).train(training)
    if norm == "frozen":
        block.norm.eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        block(torch.randn(samples, 16, 4, 4))
    assert ["single sample" in str(w.message) for w in caught] == [True] * warns


@each_block
def test_empty_batch_passes_through_and_reaches_every_parameter(block):
    module, x = block(16), torch.randn(0, 16, 4, 4)
    y = module(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())


@each_block
def test_channels_last_stays_channels_last(block):
    x = torch.randn(2, 16, 4, 5).to(memory_format=torch.channels_last)
    assert trained(block(16))(x).is_contiguous(memory_format=torch.channels_last)


@each_block
def test_block_survives_pickle_and_copy(block):
    module, x = trained(block(16)).eval(), torch.randn(2, 16, 4, 4)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))


def test_repr_tells_the_configuration():
    text = repr(CGNL(16, 8, groups=4, kernel=kernels.GaussianRBF(2), scale="sqrt"))
    assert "16, inner_channels=8, ndim=2, groups=4, kernel=GaussianRBF(order=2" in text
    assert "scale='sqrt'" in text
    assert "subsample=True" in repr(NonLocal(16, subsample=True))


@pytest.mark.parametrize("kernel", ["dot", "rbf", "embedded_gaussian"])
@pytest.mark.parametrize("norm", ["batch", "group", None])
def test_block_may_run_several_times_before_backward(kernel, norm):
    """As with two views of a sample, or a block that is shared."""
    block, x = trained(CGNL(16, 8, groups=2, kernel=kernel, norm=norm)).double(), torch.randn(2, 2, 16, 3, 4).double()
    (block(x[0]).square().sum() + block(x[1]).square().sum()).backward()
    together = gradients(block)
    block.zero_grad()
    for view in x:
        block(view).square().sum().backward()
    for a, b in zip(together, gradients(block), strict=True):
        assert relative_error(a, b) < EXACT


def gradients(block: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in block.parameters() if p.grad is not None]


def test_running_mean_is_batch_norms_own():
    """The part of it that the bias is goes there directly."""
    block, x = trained(CGNL(16, 8, groups=2, kernel="rbf")).double(), torch.randn(3, 16, 3, 4).double()
    without, norm = copy.deepcopy(block), copy.deepcopy(block.norm)
    without.norm = None
    norm(without(x) - x)
    block(x)
    assert relative_error(block.norm.running_mean, norm.running_mean) < EXACT
    assert relative_error(block.norm.running_var, norm.running_var) < EXACT


def test_hooks_on_z_see_what_it_returned():
    block, seen = trained(CGNL(16, 8, groups=2, kernel="rbf")), []
    block.z.register_forward_hook(lambda _m, _a, out: seen.extend((out, out.detach().clone())))
    block.z.register_full_backward_hook(lambda *_: None)
    block(torch.randn(2, 16, 3, 4)).sum().backward()
    assert torch.equal(*seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ["batch", None])
@pytest.mark.parametrize("kernel", [kernels.EmbeddedGaussian(80), kernels.Taylor((0,) * 9 + (1e-9,))], ids=["exp", "9"])
def test_block_with_a_long_series(kernel, norm, dtype):
    block, x = trained(CGNL(16, groups=2, kernel=kernel, norm=norm)), 0.3 * torch.randn(2, 16, 3, 4)
    truth = copy.deepcopy(block).double()(x.double())
    assert relative_error(block.to(dtype)(x.to(dtype)), truth) < 100 * ROUNDING[dtype]


class WithBypass(nn.Module):
    """A layer with an adapter beside it, as LoRA has it."""

    def __init__(self, base: nn.Conv2d):
        super().__init__()
        self.base, self.beside = (
            base,
            nn.Conv2d(base.in_channels, base.out_channels, 1, bias=False, dtype=torch.float64),
        )

    @property
    def weight(self):
        return self.base.weight

    def forward(self, y):
        return self.base(y) + self.beside(y)


def hook(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda _module, _inputs, output: output.sin())
    return layer


Z: dict[str, Any] = {
    "hook": hook,
    "bypass": WithBypass,
    "sequential": nn.Sequential,
    "bias": lambda _: nn.Conv2d(4, 8, 1, groups=2, dtype=torch.float64),
    "groups": lambda _: nn.Conv2d(4, 8, 1, bias=False, dtype=torch.float64),
    "pruned": lambda z: prune.l1_unstructured(z, "weight", amount=0.5),
    "spectral": nn.utils.spectral_norm,
    "parametrized": nn.utils.parametrizations.weight_norm,
}
ALL_TERMS: dict[str, Any] = {
    "dot": {},
    "rbf": {"kernel": "rbf"},
    "exact": {"kernel": KERNELS[4]},
    "normalized": {"kernel": KERNELS[4], "normalize": True},
}


@pytest.mark.parametrize("change", Z.values(), ids=Z)
@pytest.mark.parametrize("options", ALL_TERMS.values(), ids=ALL_TERMS)
def test_a_changed_z_gets_all_of_y(change, options):
    block = trained(CGNL(8, groups=2, norm=None, dtype=torch.float64, **options)).eval()
    x = torch.randn(3, 8, 3, 4, dtype=torch.float64)
    y = ops.compact_generalized_non_local(*block.factors(x), groups=2, **options)
    block.z = change(block.z).eval()
    assert relative_error(block(x) - x, block.z(y)) < EXACT


@pytest.mark.parametrize("name", ["pruned", "spectral", "weight"])
def test_z_whose_weight_is_made_by_a_hook_trains_and_loads(name):
    block, x = trained(CGNL(8, groups=2, kernel="rbf", norm=None)), torch.randn(3, 8, 3, 4)
    change = (Z | {"weight": nn.utils.weight_norm})[name]
    block.z = change(block.z)
    for _ in range(2):
        block(x).square().sum().backward()
    block.eval()
    block.load_state_dict({name: -3 * value for name, value in block.state_dict().items()})
    assert torch.equal(block(x), block(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [CGNL, BLOCKS["cgnlx"], BLOCKS["nl-dot"]], ids=["cgnl", "cgnlx", "nl-dot"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_changed_z_is_called_in_float32(make, dtype, autocast):
    block = trained(make(16))
    block.z = nn.Sequential(block.z, nn.Conv2d(16, 16, 1))
    x = 100 * torch.randn(2, 16, 5, 6)
    truth = copy.deepcopy(block).double()(x.double())
    if autocast:
        with torch.autocast("cpu", dtype):
            y = block(x)
    else:
        y = block.to(dtype)(x.to(dtype))
    assert block.z[0].weight.dtype == (torch.float32 if autocast else dtype)
    assert relative_error(y, truth) < 20 * ROUNDING[dtype]


def test_a_changed_z_compiles_and_exports():
    block = trained(CGNL(16, groups=2, kernel="rbf")).eval()
    block.z = nn.Sequential(block.z)
    x = torch.randn(2, 16, 3, 4)
    torch.compiler.reset()
    assert relative_error(torch.compile(block, fullgraph=True, backend="aot_eager")(x), block(x)) < 1e-5
    assert relative_error(torch.export.export(block, (x,)).module()(x), block(x)) < 1e-5


@pytest.mark.parametrize("make", [CGNL, NonLocal, SimpleResidual])
def test_block_follows_the_default_dtype(make):
    torch.set_default_dtype(torch.float64)
    try:
        block = make(16)
        assert {p.dtype for p in block.parameters()} == {torch.float64}
        assert block(torch.randn(2, 16, 3, 4)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: CGNL(200), "channels // 2 = 100 is not divisible by groups = 8"),
    (lambda: CGNL(20, 8, groups=8), "channels = 20 is not divisible by groups = 8"),
    (lambda: CGNL(16, 6, groups=4), "inner_channels = 6 is not divisible by groups = 4"),
    (lambda: CGNL(16, groups=0), "channels // 2 = 8 is not divisible by groups = 0"),
    (lambda: CGNL(1, groups=1), "channels = 1 and channels // 2 = 0 must both be at least 1"),
    (lambda: CGNL(16, ndim=4), "ndim must be 1, 2 or 3, got ndim = 4"),
    (lambda: CGNL(16, kernel="gauss"), "unknown kernel 'gauss'"),
    (lambda: CGNL(16, norm="layer"), "norm must be \"batch\", \"group\" or None, got 'layer'"),
    (lambda: CGNL(16, scale="half"), "scale must be None, \"sqrt\", \"resolution\" or \"energy\", got 'half'"),
    (lambda: CGNL(16, scale="energy", kernel="rbf"), 'scale="energy" is only for the dot kernel, got'),
    (lambda: CGNL(16, scale="energy", kernel=kernels.Taylor((0, 2))), 'scale="energy" is only for the dot kernel'),
    (lambda: CGNL(16, scale="energy", normalize=True), "normalize=True needs alpha_0^2 > 0"),
    (lambda: NonLocal(16, scale=cast(Any, "energy")), "must be True or False, got 'energy'"),
    (lambda: CGNL(16, normalize=True), "normalize=True needs alpha_0^2 > 0, Dot() has alpha_0^2 = 0"),
    (lambda: CGNL(16, backend=cast(Any, "cuda")), "backend must be \"auto\", \"reference\" or \"fused\", got 'cuda'"),
    (lambda: NonLocal(16, kernel="rbf"), "unknown kernel 'rbf'"),
    (lambda: NonLocal(16, scale=cast(Any, "resolution")), "must be True or False, got 'resolution'"),
    (lambda: CGNL(cast(Any, 16.0)), "channels must be a whole number, got 16.0"),
    (lambda: CGNL(16, cast(Any, "8")), "inner_channels must be a whole number, got '8'"),
    (lambda: CGNL(16, groups=True), "groups must be a whole number, got True"),
    (lambda: torch.jit.script(nn.Sequential(CGNL(16))), "CGNL cannot be scripted: use torch.jit.trace or torch.export"),
    (lambda: CGNL(16, groups=cast(Any, None)), "groups must be a whole number, got None"),
    (lambda: CGNL(16)(torch.ones(2, 16, 4, 4, dtype=torch.long)), "expected a floating-point tensor, got torch.int64"),
    (lambda: CGNL(16)(torch.randn(2, 16, 3, 4, 4)), "expected [B, 16, H, W] (ndim = 2), got [2, 16, 3, 4, 4]"),
    (lambda: CGNL(16, ndim=3)(torch.randn(2, 16, 4, 4)), "expected [B, 16, T, H, W] (ndim = 3), got [2, 16, 4, 4]"),
    (lambda: CGNL(16)(torch.randn(2, 8, 4, 4)), "expected [B, 16, H, W] (ndim = 2), got [2, 8, 4, 4]"),
    (lambda: CGNL(16)(cast(Any, (torch.randn(2, 16, 4, 4),))), "expected [B, 16, H, W] (ndim = 2), got a tuple"),
    (lambda: NonLocal(16)(torch.randn(2, 16, 0, 4)), "expected [B, 16, H, W] (ndim = 2), got [2, 16, 0, 4]"),
])  # fmt: skip
def test_wrong_arguments_name_the_numbers(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


@each_block
@pytest.mark.parametrize("norm", ["batch", "group", None])
@HALVES
def test_block_takes_over_a_state_dict_in_half_precision(block, norm, dtype):
    module, x = trained(block(16, norm=norm)), torch.randn(2, 16, 3, 4, dtype=dtype)
    halves = {name: t.to(dtype) if t.is_floating_point() else t for name, t in module.state_dict().items()}
    net: Any = nn.Sequential(block(16, norm=norm))
    net.load_state_dict({f"0.{name}": t for name, t in halves.items()}, assign=True)
    assert net[0].theta.weight.dtype == dtype
    assert {t.dtype for t in (net[0].norm or nn.Identity()).parameters()} <= {torch.float32}
    assert {t.dtype for t in halves.values() if t.is_floating_point()} == {dtype}
    module.load_state_dict(halves)
    assert torch.equal(net(x), module.to(dtype)(x))


@each_block
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("whole", [True, False], ids=["with-buffers", "parameters"])
@HALVES
def test_block_runs_with_its_norm_in_half_precision(block, norm, whole, dtype):
    """As FSDP makes it, with a dtype for parameters."""
    module, x = trained(block(16, norm=norm)).to(dtype), torch.randn(4, 16, 3, 4, dtype=dtype)
    truth = copy.deepcopy(module)
    for tensor in [*module.parameters(), *(module.buffers() if whole else ())]:
        tensor.data = tensor.data.to(dtype) if tensor.is_floating_point() else tensor.data
    y = module(x)
    assert relative_error(y, truth(x)) < 8 * ROUNDING[dtype]
    for name, buffer in truth.named_buffers():
        assert relative_error(module.get_buffer(name).double(), buffer.double()) < 8 * ROUNDING[dtype]
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    assert relative_error(module.eval()(x), truth.eval()(x)) < 8 * ROUNDING[dtype]


@each_block
def test_block_is_traced_as_the_root(block):
    module, x = trained(block(16)).eval(), torch.randn(2, 16, 3, 4)
    graph = torch.fx.symbolic_trace(module)
    assert torch.equal(graph(x), module(x))
    assert list(graph.state_dict()) == [f"block.{name}" for name in module.state_dict()]
    assert not graph.training
