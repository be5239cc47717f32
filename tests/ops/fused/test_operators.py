import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.ops.fused.helpers import KERNELS, SIZES, Case, draw, reference_of

SIZE = SIZES["groups-left-over"]._replace(batch=2)
BATCH, POSITIONS, GROUPS, WIDTH, _ = SIZE
INNER, CHANNELS = SIZE.inner, SIZE.channels


def arguments() -> dict[str, tuple]:
    x, rows = draw(BATCH, POSITIONS, CHANNELS), draw(BATCH, POSITIONS, CHANNELS)
    theta, weight = draw(BATCH, POSITIONS, INNER), draw(3 * INNER, CHANNELS)
    projection, z = weight[:INNER], draw(CHANNELS, WIDTH)
    c, each, vector = draw(BATCH, GROUPS, 3), draw(BATCH, CHANNELS), draw(CHANNELS)
    moments, p = draw(2, BATCH, CHANNELS).square(), draw(CHANNELS).square()
    factors, standard, found = draw(BATCH, 3, CHANNELS), draw(3, BATCH, CHANNELS), draw(3, CHANNELS)
    backward = (weight, z, c, factors, draw(BATCH, GROUPS), 0, [1.0, 0.5, 0.2], 0.0)
    return {
        "fused_coefficients": (x, weight[INNER:].view(2, INNER, CHANNELS), GROUPS, 0, [1.0, 0.5, 0.2], 0.1),
        "fused_output": (x, rows, projection, z, vector, c, [vector, p, vector, vector], 1e-5, 0, 0.1),
        "fused_output without a norm": (x, rows, projection, z, None, c, [], 0.0, 1, 0.1),
        "fused_wide_output": (*draw(2, 2, 9, 256), draw(136, 256), draw(256, 136), draw(2, 1, 1), [], 0.0),
        "fused_moments": (theta, z, c, 0, 0.1),
        "fused_apply": (rows, theta, z, c, standard, 0, 0.1),
        "fused_gradient_sums": (rows, theta, z, c, each, 0, 0.1),
        "fused_batch_norm": (moments, c, vector, vector, vector, POSITIONS, 1e-5, 0, False),
        "fused_batch_norm_backward": (moments, moments, c, vector, vector, standard, found, POSITIONS, 0, False),
        "fused_backward": (rows, x, theta, *backward, 0.0, None, True),
        "fused_backward recomputing": (rows, x, None, *backward, 0.1, draw(BATCH, GROUPS, 1), False),
    }


def with_positions_last(name: str) -> tuple:
    """The same, where maps [B, N, C] have positions last in memory."""
    given = arguments()[name]
    maps = {"fused_coefficients": [0], "fused_gradient_sums": [0], "fused_apply": [0]}.get(name, [0, 1])
    return tuple(t.mT.contiguous().mT if i in maps else t for i, t in enumerate(given))


NAMES = list(arguments())
WITH_MAPS = [name for name in NAMES if name != "fused_moments" and "norm" not in name.split()[0]]


def test_every_operator_is_checked():
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("cgnl::fused_")}
    assert {name.removeprefix("cgnl::") for name in registered} == {name.split()[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_operator_keeps_its_schema_and_its_shapes(name):
    operator = getattr(torch.ops.cgnl, name.split()[0]).default
    torch.library.opcheck(operator, arguments()[name], test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", WITH_MAPS)
def test_operator_keeps_its_schema_and_its_shapes_where_positions_come_last(name):
    operator = getattr(torch.ops.cgnl, name.split()[0]).default
    given = with_positions_last(name)
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
    found, expected = operator(*given), operator(*arguments()[name])
    if name.split()[0] not in ("fused_coefficients", "fused_gradient_sums"):
        out = found[0] if isinstance(found, tuple) else found
        assert out.stride() == given[0].stride()
    assert [t.shape for t in flatten(found)] == [t.shape for t in flatten(expected)]


def flatten(found: torch.Tensor | tuple) -> tuple:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.usefixtures("eight_processors")
@pytest.mark.parametrize("name", ["fused_moments", "fused_gradient_sums"])
def test_operator_keeps_its_shapes_when_positions_are_shared_out(name):
    theta, z, c = draw(2, 200, 32), draw(64, 16), draw(2, 2, 1)
    before = (draw(2, 200, 64), theta) if name == "fused_gradient_sums" else (theta,)
    after = (draw(2, 64),) if name == "fused_gradient_sums" else ()
    inputs = (*before, z, c, *after, 1, 0.0)
    torch.library.opcheck(getattr(torch.ops.cgnl, name).default, inputs, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "rbf-norm"])  # which projects x once more
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_flops_are_those_of_the_reference(kernel, train):
    case = Case((2, 96, 5, 5), kernel=kernel, train=train)
    block, (x, _) = case.block(), case.inputs()
    counts = []
    for each in (block, reference_of(block)):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(train):
            each(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
