"""The block as a function of tensors: against the operator, against the module, and beside the fused one."""

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cgnl import CGNL, kernels, ops
from cgnl.ops import block, dispatch, fused
from cgnl.ops.block import BlockNorm, cgnl_block
from tests.conftest import EXACT, relative_error
from tests.test_blocks import KERNELS, POSITIONS, trained

GROUPS = 2


def draw(ndim: int = 2, channels: int = 8, inner: int = 4) -> Any:
    """x, W_theta, W_phi, W_g and W_z."""
    ones = (1,) * ndim
    projections = [0.4 * torch.randn(inner, channels, *ones) for _ in range(3)]
    tensors = (torch.randn(3, channels, *POSITIONS[ndim]), *projections, torch.randn(channels, inner // GROUPS, *ones))
    return tuple(t.double() for t in tensors)


def batch_norm(channels: int = 8, training: bool = True) -> BlockNorm:
    weight, bias, mean, variance = torch.randn(4, channels, dtype=torch.float64)
    count = torch.tensor(0)
    return BlockNorm("batch", weight, bias, 1e-5, mean, variance.exp(), count, 0.1, training)


def expected(x, w_theta, w_phi, w_g, w_z, *, kernel: Any = "dot", **options):
    """W_z y, by the operator."""
    conv = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    factors = (conv(x, w) for w in (w_theta, w_phi, w_g))
    y = ops.compact_generalized_non_local(*factors, kernel=kernel, groups=GROUPS, **options)
    return conv(y, w_z, groups=GROUPS)


@pytest.mark.parametrize("ndim", POSITIONS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_block_is_the_papers_equation(kernel, ndim):
    tensors = draw(ndim)
    y = cgnl_block(*tensors, kernel=kernel, groups=GROUPS, scale="sqrt")
    assert relative_error(y, tensors[0] + expected(*tensors, kernel=kernel, scale="sqrt")) < EXACT


def test_block_with_normalized_rows():
    tensors, kernel = draw(), kernels.GaussianRBF(3, gamma=0.1, beta="exact")
    y = cgnl_block(*tensors, kernel=kernel, groups=GROUPS, normalize=True)
    assert relative_error(y, tensors[0] + expected(*tensors, kernel=kernel, normalize=True)) < EXACT


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
def test_block_with_batch_norm_moves_its_statistics_in_training(kernel, training):
    tensors, norm = draw(), batch_norm(training=training)
    mean, variance = (t.clone() for t in (norm.running_mean, norm.running_var) if t is not None)
    y = cgnl_block(*tensors, norm=norm, kernel=kernel, groups=GROUPS)
    z = F.batch_norm(expected(*tensors, kernel=kernel), mean, variance, norm.weight, norm.bias, training, 0.1, norm.eps)
    assert relative_error(y, tensors[0] + z) < EXACT
    for found, wanted in ((norm.running_mean, mean), (norm.running_var, variance)):
        assert found is not None
        assert relative_error(found, wanted) < EXACT
    assert norm.num_batches_tracked == int(training)


def test_block_with_group_norm():
    tensors, norm = draw(), batch_norm()._replace(kind="group")
    y = cgnl_block(*tensors, norm=norm, groups=GROUPS)
    z = F.group_norm(expected(*tensors), GROUPS, norm.weight, norm.bias, norm.eps)
    assert relative_error(y, tensors[0] + z) < EXACT


@pytest.mark.parametrize("scale", [None, "sqrt", "resolution", "energy"])
@pytest.mark.parametrize("norm", ["batch", "group", None])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_block_of_tensors_is_the_module_to_the_last_bit(norm, scale, training):
    module = trained(CGNL(8, 4, groups=GROUPS, norm=norm, scale=scale)).train(training)
    x, weights = (
        torch.randn(3, 8, 3, 4),
        [module.get_parameter(f"{name}.weight") for name in ("theta", "phi", "g", "z")],
    )
    state: Any = dispatch._read_norm(module.norm)
    if norm == "batch":
        state = state._replace(running_mean=state.running_mean.clone(), running_var=state.running_var.clone())
    assert torch.equal(cgnl_block(x, *weights, norm=state, groups=GROUPS, scale=scale), module(x))
    if norm == "batch":
        assert torch.equal(state.running_mean, module.norm.running_mean)


def test_block_takes_another_attention():
    tensors, seen = draw(), []

    def attention(theta, phi, g):
        seen.append((theta.shape, phi.shape, g.shape))
        return 1, torch.ones(3, GROUPS, 1, dtype=torch.float64), None

    y = cgnl_block(*tensors, groups=GROUPS, attention=attention)
    x, w_theta, *_, w_z = tensors
    assert relative_error(y, x + F.conv2d(F.conv2d(x, w_theta), w_z, groups=GROUPS)) < EXACT
    assert seen == [((3, GROUPS, 2, 3, 4),) * 3]


def test_block_refuses_statistics_of_several_ranks():
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        cgnl_block(*draw(), norm=batch_norm()._replace(process_group=object()), groups=GROUPS)


def test_fused_block_has_the_same_signature():
    reference, kernels_, public = (
        list(inspect.signature(f).parameters.values())
        for f in (block.cgnl_block, fused.cgnl_block, dispatch.cgnl_block)
    )
    assert [p.name for p in reference] == [*(p.name for p in kernels_), "attention", "fused"]
    assert [p.name for p in public] == [*(p.name for p in reference[:-1]), "backend"]
    assert [(p.default, p.kind) for p in kernels_] == [(p.default, p.kind) for p in reference[:-2]]
