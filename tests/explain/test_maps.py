"""Each map is a row of the explicit pairwise matrix, and the network is left as it was."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cgnl
from cgnl.explain import Map, attention, find_blocks, grad_cam, unit_range
from cgnl.explain.maps import as_grid, patched
from cgnl.kernels import Dot, EmbeddedGaussian, GaussianRBF, Taylor
from tests.conftest import EXACT, relative_error

KERNELS = [
    Dot(),
    EmbeddedGaussian(order=3),
    GaussianRBF(order=3, gamma=0.1),
    GaussianRBF(order=2, gamma=0.01, beta="norm"),
    GaussianRBF(order=3, gamma=0.1, beta="exact"),
    Taylor([0.0, 0.5, 0.25]),
]
SIZES = {1: (12,), 2: (8, 12), 3: (4, 8, 12)}
AT = {1: (7.5,), 2: (7.5, 2), 3: (7.5, 2, 3.9)}
POSITION = {1: (3,), 2: (1, 3), 3: (1, 1, 3)}
"""On a grid of half the size."""


class Halving(nn.Module):
    """A network whose blocks see half the resolution. [B, 3, *P] -> [B, 5]."""

    def __init__(self, ndim: int, *blocks: nn.Module):
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[ndim]
        self.conv = convolution(3, 8, 2, stride=2)
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.conv(x)).flatten(2).mean(2))


def network(block: nn.Module, ndim: int) -> nn.Module:
    """In float64, with factors of size one."""
    model = Halving(ndim, block).double()
    for name in ("theta", "phi"):
        nn.init.normal_(model.get_parameter(f"blocks.0.{name}.weight"), std=0.5)
    return model


def sample(ndim: int) -> Tensor:
    return torch.randn(1, 3, *SIZES[ndim], dtype=torch.float64)


def factors(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """theta and phi [1, C, *P], by hand."""
    inside = model.get_submodule("conv")(x)
    theta, phi = (model.get_submodule(f"blocks.0.{name}")(inside) for name in ("theta", "phi"))
    return theta.detach(), phi.detach()


def explicit(theta: Tensor, phi: Tensor, kernel, group: int, groups: int) -> Tensor:
    """Theta Phi^T of one group, [C' N, C' N], with Theta and Phi written out as the paper's eq. 11 has them."""
    t, p = (f.flatten(1).unflatten(1, (groups, -1))[0, group] for f in (theta, phi))  # [C' N]
    gamma = getattr(kernel, "gamma", 0.0)
    alphas = [math.sqrt(a) for a in kernel.coefficients()]
    capital = [torch.stack([a * f**power for power, a in enumerate(alphas)], -1) for f in (t, p)]
    if getattr(kernel, "beta", "") == "exact":
        capital = [c * torch.exp(-gamma * f**2)[:, None] for c, f in zip(capital, (t, p), strict=True)]
    matrix = capital[0] @ capital[1].T
    if getattr(kernel, "beta", "") == "norm":
        matrix = matrix * torch.exp(-gamma * (t.square().sum() + p.square().sum()))
    return matrix


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_attention_is_rows_of_the_explicit_matrix(kernel, ndim, groups):
    model, x = network(cgnl.CGNL(8, 4, ndim=ndim, groups=groups, kernel=kernel), ndim), sample(ndim)
    result = attention(model, x, AT[ndim])
    theta, phi = factors(model, x)
    grid = tuple(theta.shape[2:])
    assert result.position == POSITION[ndim]
    assert result.maps.shape == (groups, 4 // groups, *grid)
    for channel in range(4):
        group, inside = divmod(channel, 4 // groups)
        place = torch.arange(4 // groups * math.prod(grid)).view(4 // groups, *grid)[(inside, *POSITION[ndim])]
        row = explicit(theta, phi, kernel, group, groups)[place].view(4 // groups, *grid)
        assert relative_error(result.row(channel), row) < EXACT
        if channel in result.references:
            assert relative_error(result.maps[group], row) < EXACT
            assert relative_error(result.group_maps[group], row.sum(0)) < EXACT
    at_reference = theta[(0, slice(None), *POSITION[ndim])].abs().view(groups, -1)
    assert [at_reference.flatten()[c] for c in result.references] == at_reference.amax(1).tolist()


def test_attention_leaves_out_the_energy():
    block, x = cgnl.CGNL(8, 4, groups=2), sample(2)
    model, maps = network(block, 2), []
    for block.scale in (None, "energy"):
        maps.append(attention(model, x, AT[2]).maps)
    assert torch.equal(*maps)


@pytest.mark.parametrize("kernel", [EmbeddedGaussian, lambda order: GaussianRBF(order, 0.1, "exact")])
def test_attention_converges_to_the_exact_kernel_with_the_order(kernel):
    x, errors = sample(2), []
    for order in (1, 4, 12):
        torch.manual_seed(1)
        model = network(cgnl.CGNL(8, 4, groups=2, kernel=kernel(order)), 2)
        result = attention(model, x, AT[2])
        theta, phi = factors(model, x)
        for group, channel in enumerate(result.references):
            query = theta[(0, channel, *POSITION[2])]
            exact = kernel(order).exact(query, phi[0].unflatten(0, (2, -1))[group])
            errors.append(relative_error(result.maps[group], exact))
    first, middle, last = (max(errors[i : i + 2]) for i in (0, 2, 4))
    assert 100 * last < middle < first
    assert last < 1e-4


@pytest.mark.parametrize("subsample", [False, True])
@pytest.mark.parametrize("kernel", ["embedded_gaussian", "dot"])
@pytest.mark.parametrize("ndim", [2, 3])
def test_attention_of_a_non_local_block_is_a_row_of_its_matrix(ndim, kernel, subsample):
    block = cgnl.NonLocal(8, 4, ndim=ndim, kernel=kernel, subsample=subsample)
    model, x = network(block, ndim), sample(ndim)
    result = attention(model, x, AT[ndim])
    inside = model.get_submodule("conv")(x)
    pool = nn.functional.max_pool2d if ndim == 2 else nn.functional.max_pool3d
    keys = pool(inside, (1,) * (ndim - 2) + (2, 2)) if subsample else inside
    theta, phi = block.theta(inside).flatten(2)[0].T, block.phi(keys).flatten(2)[0].T  # [N, C]
    matrix = torch.softmax(theta @ phi.T / 2, 1) if kernel == "embedded_gaussian" else theta @ phi.T / len(phi)
    place = torch.arange(len(theta)).view(inside.shape[2:])[POSITION[ndim]]
    assert result.maps.shape == (1, 1, *keys.shape[2:])
    assert relative_error(result.maps.flatten(), matrix[place]) < EXACT
    assert result.references == ()
    assert result.rank == min(matrix.shape[0], matrix.shape[1], 4 if kernel == "dot" else matrix.shape[1])
    assert "One map over all channels" in result.caption
    with pytest.raises(ValueError, match="one row for all channels"):
        result.row(0)


@pytest.mark.parametrize(
    ("kernel", "rank"), [(Dot(), 1), (EmbeddedGaussian(3), 4), (GaussianRBF(2, 0.1), 3), (Taylor([0, 1, 0, 2]), 2)]
)
def test_rank_is_that_of_all_rows_together(kernel, rank):
    model, x = network(cgnl.CGNL(8, 4, groups=1, kernel=kernel), 2), sample(2)
    rows = [
        attention(model, x, (column, row)).row(channel).flatten()
        for column in (0, 4, 11)
        for row in (0, 7)
        for channel in range(4)
    ]
    result = attention(model, x, (0, 0))
    assert result.rank == rank == torch.linalg.matrix_rank(torch.stack(rows))
    assert f"rank {rank}" in result.caption


def test_strongest_are_the_channels_of_largest_range():
    model, x = network(cgnl.CGNL(8, 8, groups=2), 2), sample(2)
    result = attention(model, x, AT[2])
    maps = result.maps.flatten(0, 1).flatten(1)
    ranges = (maps.max(1).values - maps.min(1).values).tolist()
    order = sorted(range(8), key=lambda c: -ranges[c])
    assert [m.name for m in result.strongest()] == [f"group {c // 4}, channel {c}" for c in order[:5]]
    second = [c for c in order if c >= 4]
    assert [m.name for m in result.strongest(2, group=1)] == [f"group 1, channel {c}" for c in second[:2]]
    assert torch.equal(result.strongest(1)[0].values.flatten(), maps[order[0]])
    assert [m.name for m in result.by_group()] == ["group 0", "group 1"]
    with pytest.raises(ValueError, match="group = 2 is none of the 2"):
        result.strongest(group=2)
    with pytest.raises(ValueError, match="channel = 8 is none of the 8"):
        result.row(8)


def test_map_is_scaled_by_its_own_range():
    values = torch.tensor([[-1.0, 0.0], [0.95, 1.0]])
    shown = Map("a", values)
    assert torch.equal(shown.scaled, torch.tensor([[0.0, 0.5], [0.975, 1.0]]))
    assert shown.related().tolist() == [[False, False], [True, True]]
    assert shown.related(0.5).tolist() == [[False, True], [True, True]]
    both = unit_range(torch.stack([values, 100 * values]), 2)
    assert torch.equal(both[0], both[1])


def test_constant_map_has_no_related_positions():
    constant = Map("a", torch.full((2, 2), 3.0))
    assert not constant.scaled.any()
    assert not constant.related().any()


@pytest.mark.parametrize("threshold", [0, -1, 1.1, float("nan")])
def test_map_refuses_a_threshold(threshold):
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        Map("a", torch.zeros(2, 2)).related(threshold)


def test_attention_leaves_the_network_as_it_was():
    model, x = network(cgnl.CGNL(8, 4, groups=2), 2), sample(2)
    model.train()
    model.get_submodule("blocks.0.norm").eval()
    before = {name: module.training for name, module in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    result = attention(model, x, AT[2])
    assert {name: module.training for name, module in model.named_modules()} == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(result.output, model.eval()(x))
    assert not result.maps.requires_grad


def test_attention_removes_its_hook_when_the_network_fails():
    model = network(cgnl.CGNL(8, 4, groups=2), 2)
    model.fc = nn.Linear(3, 5)
    with pytest.raises(RuntimeError):
        attention(model, sample(2), AT[2])
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_attention_of_a_named_block_or_the_last():
    model = Halving(2, cgnl.CGNL(8, 4, groups=2), nn.ReLU(), cgnl.NonLocal(8, 4))
    assert list(find_blocks(model)) == ["blocks.0", "blocks.2"]
    x = torch.randn(1, 3, 8, 12)
    assert attention(model, x, AT[2]).block == "blocks.2"
    assert attention(model, x, AT[2], "blocks.0").groups == 2
    with pytest.raises(ValueError, match=r"there is no block 'block\.2'; did you mean blocks\.2\?"):
        attention(model, x, AT[2], "block.2")


def test_attention_of_blocks_behind_hooks():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 2, stride=2)

        def forward(self, x):
            return self.stem(x).mean()

    model = cgnl.insert(Own(), "cgnl", "stem", groups=2)
    assert attention(model, torch.randn(1, 3, 8, 12), AT[2]).maps.shape == (2, 2, 4, 6)


def test_attention_in_half_precision_is_near_that_in_float64():
    model, x = network(cgnl.CGNL(8, 4, groups=2), 2), sample(2)
    truth = attention(model, x, AT[2]).maps
    half = attention(model.bfloat16(), x.bfloat16(), AT[2]).maps
    assert half.dtype == torch.float64
    assert 0 < relative_error(half, truth) < 0.05
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attention(model.float(), x.float(), AT[2]).maps
    assert relative_error(mixed, truth) < 0.05


def test_attention_of_a_compiled_network():
    model = Halving(2, cgnl.CGNL(8, 4, groups=2))
    x = torch.randn(1, 3, 8, 12)
    truth = attention(model, x, AT[2]).maps
    compiled: Any = torch.compile(model, backend="eager")
    assert torch.equal(attention(compiled, x, AT[2]).maps, truth)
    model.compile(backend="eager")
    assert torch.equal(attention(model, x, AT[2]).maps, truth)


def test_edges_of_the_input_are_edges_of_the_grid():
    model, x = network(cgnl.CGNL(8, 4, groups=2), 2), sample(2)
    assert attention(model, x, (0, 0)).position == (0, 0)
    assert attention(model, x, (11.99, 7.99)).position == (3, 5)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ((12, 0), r"at = \(12, 0\) is outside the input of 12 x 8"),
        ((0, -1), "outside the input"),
        ((float("nan"), 1), "outside the input"),
        ((1,), r"needs 2: \(x, y\)"),
        ((1, 2, 3), r"needs 2: \(x, y\)"),
    ],
)
def test_attention_refuses_a_position(at, words):
    with pytest.raises(ValueError, match=words):
        attention(network(cgnl.CGNL(8, 4, groups=2), 2), sample(2), at)


@pytest.mark.parametrize("x", [torch.zeros(2, 3, 8, 12), torch.zeros(3, 8), [torch.zeros(3, 8, 12)]], ids=str)
def test_attention_refuses_what_is_not_one_sample(x):
    with pytest.raises(ValueError, match="expected one sample"):
        attention(Halving(2, cgnl.CGNL(8, 4, groups=2)), x, (0, 0))


def test_attention_refuses_networks_without_blocks():
    with pytest.raises(ValueError, match="the network has no NL or CGNL block"):
        attention(Halving(2, cgnl.SimpleResidual(8, 4, groups=2)), torch.zeros(1, 3, 8, 12), (0, 0))


def test_attention_refuses_a_block_that_is_not_reached():
    model = Halving(2)
    model.spare = cgnl.CGNL(8, 4, groups=2)
    with pytest.raises(ValueError, match="the input never reached 'spare'"):
        attention(model, torch.zeros(1, 3, 8, 12), (0, 0))


def test_attention_refuses_infinite_factors():
    with pytest.raises(ValueError, match="not all finite"):
        attention(Halving(2, cgnl.CGNL(8, 4, groups=2)), torch.full((1, 3, 8, 12), torch.inf), (0, 0))


def test_arrays_hold_everything():
    import numpy as np

    result = attention(network(cgnl.CGNL(8, 4, groups=2), 2), sample(2), AT[2])
    arrays = result.arrays()
    assert np.array_equal(arrays["maps"], result.maps.numpy())
    assert arrays["maps"].shape == (2, 2, 4, 6)
    assert (arrays["rank"], arrays["block"], arrays["at"]) == (1, "blocks.0", AT[2])
    assert "share one pattern" in arrays["caption"]


class Net(nn.Module):
    """[B, 3, H, W] -> [B, 4]."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 2, stride=2)
        self.block = cgnl.CGNL(8, 4, groups=2)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.block(self.conv(x)).relu().mean((2, 3))))


@pytest.mark.parametrize("target", [None, 1])
@pytest.mark.parametrize("layer", [None, "conv"])
def test_grad_cam_is_the_weighted_sum_of_its_paper(target, layer):
    model, x = Net().train(), torch.randn(1, 3, 8, 6)
    nn.init.ones_(model.get_parameter("block.norm.weight"))
    with torch.no_grad():
        heat = grad_cam(model, x, target, layer)
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    kept = {}
    model.get_submodule(layer or "block").register_forward_hook(lambda _m, _i, out: kept.update(out=out))
    scores = model(x)
    score = scores[0, int(scores.argmax()) if target is None else target]
    (slope,) = torch.autograd.grad(score, kept["out"])
    truth = (slope.mean((2, 3), keepdim=True) * kept["out"]).sum(1)[0].relu()
    assert heat.shape == (4, 3)
    assert relative_error(heat, truth) < 1e-5


def test_grad_cam_needs_a_block_or_a_layer():
    with pytest.raises(ValueError, match="no NL or CGNL block"):
        grad_cam(nn.Conv2d(3, 2, 1), torch.zeros(1, 3, 4, 4))


def test_patched_restores_what_there_was():
    block = cgnl.CGNL(8, 4, groups=2, backend="reference")
    with patched(block, backend="auto", factors=len):
        assert (block.backend, block.factors) == ("auto", len)
    assert block.backend == "reference"
    assert "factors" not in vars(block)


def test_tokens_are_drawn_as_the_grid_that_they_are():
    torch.manual_seed(0)
    model = cgnl.create_model("timm/vit_tiny_patch16_224", block="cgnl", groups=4, num_classes=3, zero_init=False)
    found = attention(model, torch.randn(1, 3, 224, 224), at=(40, 200))
    assert found.theta.shape[1:] == found.maps.shape[2:] == (14, 14)
    assert found.position == (12, 2)
    row = found.theta[found.references[0], 12, 2] * found.phi[: found.maps.shape[1]]
    torch.testing.assert_close(found.maps[0], row)
    assert grad_cam(model, torch.randn(1, 3, 224, 224)).shape == (14, 14)


@pytest.mark.parametrize(
    ("tokens", "sizes", "shape"),
    [(6, (32, 48), (2, 3)), (5, (32, 32), (5,)), (8, (32, 32), (8,)), (4, (8,), (4,)), (1, (16, 16), (1, 1))],
)
def test_as_grid_needs_square_patches(tokens, sizes, shape):
    values = torch.arange(2 * tokens).view(2, tokens)
    assert as_grid(values, sizes).shape == (2, *shape)
    assert torch.equal(as_grid(values, sizes).flatten(), values.flatten())
