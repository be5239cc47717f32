"""When the kernels apply, and what happens where they do not."""

import copy
from typing import Any, cast

import pytest
import torch
from torch import nn

from cgnl import CGNL, kernels
from cgnl.ops import fused
from tests.conftest import relative_error
from tests.ops.fused.helpers import DEVICE, FLOOR, HALF, INTERPRETED, Case, fill, reference_of, run


class Ignorant(nn.Conv2d):
    """Another layer, as far as anybody can tell."""


def make(*args, **options) -> CGNL:
    return fill(CGNL(*(args or (64,)), groups=options.pop("groups", 2), **options)).to(DEVICE)


def changed(change, **options) -> CGNL:
    block = make(**options)
    change(block)
    return block.to(DEVICE)


def hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda *given: 2 * given[-1])


def parametrize(module: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(module)


def set_norm(norm: nn.Module):
    return lambda block: setattr(block, "norm", norm)


def without_bias(norm: nn.Module) -> nn.Module:
    norm.register_parameter("bias", None)
    return norm


def set_projections(**options):
    def change(block):
        for name in ("theta", "phi", "g"):
            setattr(block, name, nn.Conv2d(64, 32, **{"kernel_size": 1, "bias": False, **options}))

    return change


REASONS: dict[str, tuple[Any, str]] = {
    "normalize": (lambda: make(kernel=kernels.EmbeddedGaussian(2), normalize=True), "no kernels for normalize=True"),
    "energy": (lambda: make(scale="energy"), 'no kernels for scale="energy"'),
    "order": (lambda: make(kernel=kernels.EmbeddedGaussian(9)), "order 9, and the kernels go up to 8"),
    "inner-width": (lambda: make(64, 8, groups=2), "groups of 4 inner channels and 32 channels are no multiples of 8"),
    "outer-width": (lambda: make(40, 16, groups=2), "groups of 8 inner channels and 20 channels are no multiples of 8"),
    **{
        f"hook-{name}": (lambda name=name: changed(lambda b: hook(getattr(b, name))), f"{name} has hooks")
        for name in ("theta", "phi", "g", "z", "norm")
    },
    "replaced-theta": (lambda: changed(lambda b: setattr(b, "theta", Ignorant(64, 32, 1))), "theta is a Ignorant"),
    "replaced-norm": (lambda: changed(set_norm(nn.Identity())), "norm is a Identity"),
    "instance-norm": (lambda: changed(set_norm(nn.InstanceNorm2d(64))), "norm is a InstanceNorm2d"),
    "parametrized": (lambda: changed(lambda b: parametrize(b.g)), "g is a ParametrizedConv2d"),
    "bias": (lambda: changed(set_projections(bias=True)), "theta has a bias"),
    "norm-without-weight": (lambda: changed(set_norm(nn.BatchNorm2d(64, affine=False))), "norm has no weight"),
    "norm-without-bias": (lambda: changed(set_norm(without_bias(nn.BatchNorm2d(64)))), "norm has no bias"),
    "group-norm-without-bias": (lambda: changed(set_norm(without_bias(nn.GroupNorm(2, 64)))), "norm has no bias"),
    "group-norm-of-other-groups": (lambda: changed(set_norm(nn.GroupNorm(4, 64))), "norm has 4 groups"),
    "larger-convolutions": (lambda: changed(set_projections(kernel_size=3, padding=1)), "theta"),
    "grouped-convolutions": (lambda: changed(set_projections(groups=2)), "theta"),
    "z-of-other-groups": (lambda: changed(lambda b: setattr(b, "z", nn.Conv2d(32, 64, 1, bias=False))), "z"),
}


@pytest.mark.parametrize(("build", "says"), REASONS.values(), ids=REASONS)
def test_block_falls_back_to_the_reference_and_says_why_if_asked(build, says):
    block = build()
    x, gradient = (torch.randn(4, block.channels, 3, 3, device=DEVICE) for _ in range(2))
    assert block.backend == "auto"
    found, expected = run(block, x, gradient), run(reference_of(block), x, gradient)
    for name, true in expected.items():  # not the same bits: the operator's kernels still run
        torch.testing.assert_close(found[name], true, rtol=1e-3, atol=1e-3)
    block.backend = "fused"
    with pytest.raises(ValueError, match=rf'\Abackend="fused" is not possible: .*{says}'):
        block(x)


def test_block_in_float64_falls_back():
    block, x = make().double(), torch.randn(2, 64, 3, 3, dtype=torch.float64, device=DEVICE)
    assert torch.equal(copy.deepcopy(block)(x), reference_of(block)(x))
    block.backend = "fused"
    with pytest.raises(ValueError, match=r"is not possible: there are no kernels for torch\.float64"):
        block(x)


def test_block_on_the_cpu_falls_back(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    block, x = make().cpu(), torch.randn(2, 64, 3, 3)
    assert torch.equal(copy.deepcopy(block)(x), reference_of(block)(x))
    block.backend = "fused"
    with pytest.raises(ValueError, match="is not possible: the input is on cpu, and the kernels run on CUDA"):
        block(x)


def test_block_without_triton_falls_back(monkeypatch):
    monkeypatch.setattr(fused, "TRITON", False)
    block, x = make(backend="fused"), torch.randn(2, 64, 3, 3, device=DEVICE)
    with pytest.raises(ValueError, match="is not possible: triton is not installed"):
        block(x)
    block.backend = "auto"
    assert torch.equal(copy.deepcopy(block)(x), reference_of(block)(x))


def test_block_on_meta_has_a_shape():
    block = make().to("meta")
    for x in (torch.empty(2, 64, 3, 3, device="meta"), torch.empty(2, 3, 3, 64, device="meta").movedim(-1, 1)):
        y = block(x)
        assert (y.shape, y.stride(), y.dtype, y.device) == (x.shape, x.stride(), x.dtype, x.device)
    with pytest.raises(ValueError, match="is not possible: the input is on meta"):
        make(backend="fused").to("meta")(torch.empty(2, 64, 3, 3, device="meta"))


TRANSFORMS: dict[str, Any] = {
    "trace": lambda f, x: cast(Any, torch.jit.trace(f, x, check_trace=False))(x),
    "grad": lambda f, x: torch.func.grad(lambda t: f(t).square().sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x.unsqueeze(1)),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),)),
    "functional_call": lambda f, x: torch.func.grad(
        lambda p: torch.func.functional_call(f, p, x).square().sum()
    )(dict(f.named_parameters())),
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_block_under_a_function_transform_falls_back(transform):
    block, x = make(norm="group", kernel="embedded_gaussian"), torch.randn(2, 64, 3, 3, device=DEVICE)
    found, expected = transform(block, x), transform(reference_of(block), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    block.backend = "fused"
    with pytest.raises(ValueError, match=r"is not possible: torch\.func, forward-mode derivatives"):
        transform(block, x)


def test_block_under_forward_mode_falls_back():
    block, x = make(norm="group"), torch.randn(2, 64, 3, 3, device=DEVICE)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x.cos())
        found, expected = (torch.autograd.forward_ad.unpack_dual(b(dual)) for b in (block, reference_of(block)))
    torch.testing.assert_close(found.tangent, expected.tangent, rtol=0, atol=0)


def test_block_exports_plain_tensor_code():
    block, x = make(kernel="rbf").eval(), torch.randn(2, 64, 3, 3, device=DEVICE)
    program = torch.export.export(block, (x,))
    assert "fused" not in program.graph_module.code
    assert relative_error(program.module()(x) - x, block(x) - x) < 1e-5


def test_why_not_refuses_more_samples_than_a_grid_holds():
    x = torch.empty(1, 1, 1, device=DEVICE).expand(65536, 64, 1)
    said = [fused.why_not(t, 64, 32, 2, kernels.Dot(), False) for t in (x, x[:65535])]
    assert said == ["a batch of 65536 is beyond what a grid holds", None]


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_auto_takes_the_kernels_in_half_precision(train, monkeypatch):
    called = []
    monkeypatch.setattr(fused, "cgnl_block", lambda x, *_, **__: (called.append(x), x)[1])
    x = torch.randn(2, 64, 3, 3, device=DEVICE)
    block = make().train(train)
    assert block(x) is not x
    assert not called
    with torch.autocast(DEVICE, HALF):
        assert block(x) is x
    assert block.to(HALF)(x.to(HALF)).dtype == HALF
    assert len(called) == 2


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kernel", ["dot", "rbf-exact"])
def test_autocast_is_as_exact_as_the_reference(kernel, train):
    case = Case(kernel=kernel, train=train)
    block, (x, gradient) = case.block(), case.inputs()
    truth = run(reference_of(block).double(), x.double(), gradient.double())
    found = []
    for each in (block, reference_of(block)):
        with torch.autocast(DEVICE, HALF):
            found.append(run(each, x, gradient))
    for name, true in truth.items():
        mine, plain = (relative_error(f[name], true) for f in found)
        assert mine <= 3 * plain + FLOOR * torch.finfo(torch.float32).eps, name
        assert found[0][name].dtype == found[1][name].dtype


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_autocast_adds_to_x_itself(train):
    block, x = CGNL(64, groups=2, backend="fused").to(DEVICE).train(train), torch.randn(2, 64, 3, 3, device=DEVICE)
    with torch.autocast(DEVICE, HALF), torch.set_grad_enabled(train):
        y = block(x)  # norm weight 0: an identity
    assert y.dtype == torch.float32
    assert torch.equal(y, x)


def test_autocast_passes_the_gradient_on_unrounded():
    block, x = CGNL(64, groups=2, backend="fused").to(DEVICE), torch.randn(2, 64, 3, 3, device=DEVICE)
    x.requires_grad_()
    gradient = torch.randn_like(x)
    with torch.autocast(DEVICE, HALF):
        y = block(x)
    assert torch.equal(torch.autograd.grad(y, x, gradient)[0], gradient)


def test_autocast_takes_a_half_precision_input():
    block, x = make(backend="fused"), torch.randn(2, 64, 3, 3, device=DEVICE)
    with torch.autocast(DEVICE, HALF):
        y = block(x.to(HALF))
    assert y.dtype == HALF
    assert relative_error(y, reference_of(block).double()(x.double())) < 4 * torch.finfo(HALF).eps


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("norm", ["batch", "group", None])
@pytest.mark.parametrize("kernel", ["dot", "embedded_gaussian"])
def test_new_block_keeps_the_sign_of_zero(kernel, norm, train):
    block = CGNL(64, groups=2, kernel=kernel, norm=norm, backend="fused").to(DEVICE).train(train)
    x = torch.randn(2, 64, 3, 3, device=DEVICE) * torch.tensor([0.0, 1.0, -0.0], device=DEVICE)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert torch.equal(block(x).signbit(), x.signbit())


@pytest.mark.skipif(not INTERPRETED, reason="the interpreter alone gets bfloat16 wrong")
def test_block_in_bfloat16_falls_back_from_the_interpreter():
    block, x = make().bfloat16(), torch.randn(2, 64, 3, 3, dtype=torch.bfloat16)
    assert torch.equal(copy.deepcopy(block)(x), reference_of(block)(x))
    block.backend = "fused"
    with pytest.raises(ValueError, match=r"is not possible: .*TRITON_INTERPRET=1.* bfloat16"):
        block(x)


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
def test_block_under_the_newer_settings_of_precision():
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # pyright: ignore[reportAttributeAccessIssue]
    try:
        block, x = make(backend="fused"), torch.randn(2, 64, 3, 3, device=DEVICE)
        found, expected = run(block, x, x), run(reference_of(block), x, x)
    finally:
        torch.backends.cudnn.conv.fp32_precision = "none"  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cudnn.allow_tf32 = True
    for name, true in expected.items():
        torch.testing.assert_close(found[name], true, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("recompute", [True, False])
def test_backward_inside_autocast(recompute):
    """Of a float32 block, whose products autocast would round."""
    block, x = make(backend="fused", recompute=recompute), torch.randn(2, 64, 3, 3, device=DEVICE)
    expected = run(block, x, x)
    y = block(x := x.requires_grad_())
    with torch.autocast(DEVICE, torch.float16):
        found = torch.autograd.grad(y, [*block.parameters()], x.detach())
    for (name, _), mine in zip(block.named_parameters(), found, strict=True):
        torch.testing.assert_close(mine, expected[name], rtol=1e-4, atol=1e-4)
