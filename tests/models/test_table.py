import math

import pytest
from torchvision.models import get_model_weights

import cgnl
from cgnl.models.table import cost

# Position axes and channels of the feature maps a block sits on, for 224 x 224 (x 32 frames).
RES3, RES4, RES4_VIDEO = (28 * 28, 512), (14 * 14, 1024), (4 * 14 * 14, 1024)


def cgnl_macs(n: int, c: int, groups: int = 8) -> int:
    """theta, phi and g; z in groups; the sum phi . g; the sum times z(theta)."""
    inner = c // 2
    return 3 * n * c * inner + n * inner * c // groups + n * inner + n * c


def cgnlx_macs(n: int, c: int, groups: int = 8) -> int:
    """Four powers, in the sums and in what they are multiplied with."""
    inner = c // 2
    return 3 * n * c * inner + n * inner * c // groups + 2 * 4 * n * inner


def nl_macs(n: int, c: int) -> int:
    """Four projections; the attention, and what it is multiplied with."""
    inner = c // 2
    return 4 * n * c * inner + 2 * n**2 * inner


def residual_macs(n: int, c: int, groups: int = 8) -> int:
    inner = c // 2
    return n * c * inner + n * inner * c // groups


def weights(c: int, projections: int, groups: int) -> int:
    inner = c // 2
    return projections * c * inner + inner * c // groups + 2 * c


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"])
def test_cost_is_torchvisions(name):
    published = get_model_weights(name).__members__["IMAGENET1K_V1"].meta
    found = cost(name)
    assert found.parameters == published["num_params"]
    assert found.gmacs == pytest.approx(published["_ops"], abs=6e-4)
    assert (found.network, found.blocks, found.input) == (name, "-", "224 x 224")


def test_cost_of_resnet50_is_the_known_one():
    assert (round(cost("resnet50").parameters / 1e6, 3), round(cost("resnet50").gmacs, 3)) == (25.557, 4.089)


@pytest.mark.parametrize(
    ("network", "options", "macs"),
    [
        pytest.param("resnet50", {"block": "cgnl"}, cgnl_macs(*RES4), id="cgnl"),
        pytest.param("resnet50", {"block": "cgnl", "groups": 1}, cgnl_macs(*RES4, groups=1), id="cgnl-one-group"),
        pytest.param("resnet50", {"block": "cgnl", "size": 448}, cgnl_macs(28 * 28, 1024), id="cgnl-448"),
        pytest.param(
            "resnet50", {"block": "cgnl", "blocks": 5}, 2 * cgnl_macs(*RES3) + 3 * cgnl_macs(*RES4), id="cgnl-5"
        ),
        pytest.param("resnet50", {"block": "cgnlx"}, cgnlx_macs(*RES4), id="cgnlx"),
        pytest.param("resnet50", {"block": "nl"}, nl_macs(*RES4), id="nl"),
        pytest.param("resnet50", {"block": "nl", "blocks": 5}, 2 * nl_macs(*RES3) + 3 * nl_macs(*RES4), id="nl-5"),
        pytest.param("resnet50", {"block": "residual"}, residual_macs(*RES4), id="residual"),
        pytest.param("c2d_resnet50", {"block": "cgnl"}, cgnl_macs(*RES4_VIDEO), id="c2d-cgnl"),
        pytest.param("c2d_resnet50", {"block": "nl"}, nl_macs(*RES4_VIDEO), id="c2d-nl"),
        pytest.param("c2d_resnet50", {"block": "nl", "frames": 16}, nl_macs(2 * 14 * 14, 1024), id="c2d-nl-16-frames"),
    ],
)
def test_cost_of_a_block_is_what_a_hand_counts(network, options, macs):
    plain = {key: value for key, value in options.items() if key in ("size", "frames")}
    added = cost(network, **options).gmacs - cost(network, **plain).gmacs
    assert added * 1e9 == pytest.approx(macs, rel=1e-9)


@pytest.mark.parametrize(
    ("block", "projections", "groups"), [("cgnl", 3, 8), ("cgnlx", 3, 8), ("nl", 3, 1), ("residual", 1, 8)]
)
def test_cost_counts_a_blocks_parameters(block, projections, groups):
    added = cost("resnet50", block=block).parameters - cost("resnet50").parameters
    assert added == weights(1024, projections, groups)


def head_macs(kind: str, n: int, c: int, r: int, classes: int) -> tuple[int, int]:
    """Multiply-adds and parameters of a head and its classifier.

    A root of five iterations: A W, then in each of four Z Y, Y W and, but for Z = W in the first, W Z.
    """
    features = r if kind == "compact" else r * (r + 1) // 2
    projections = 2 if kind == "compact" else 1
    macs = projections * c * r * n + features * classes
    macs += {"covariance": r**2 * n + 12 * r**3, "bilinear": r**2 * n, "compact": 0}[kind]
    return macs, projections * c * r + 2 * r + (features + 1) * classes


@pytest.mark.parametrize(
    ("network", "options", "n"),
    [
        ("resnet50", {"head": "covariance"}, 7 * 7),
        ("resnet50", {"head": "covariance", "reduced": 64, "size": 448, "num_classes": 200}, 14 * 14),
        ("resnet50", {"head": "bilinear", "reduced": 128}, 7 * 7),
        ("resnet50", {"head": "compact", "reduced": 4096}, 7 * 7),
        ("c2d_resnet50", {"head": "covariance"}, 4 * 7 * 7),
    ],
    ids=str,
)
def test_cost_of_a_head_is_what_a_hand_counts(network, options, n):
    classes, reduced = options.get("num_classes", 1000), options.get("reduced", 256)
    macs, weights = head_macs(options["head"], n, 2048, reduced, classes)
    plain = {key: value for key, value in options.items() if key in ("size", "num_classes")}
    found, without = cost(network, **options), cost(network, **plain)
    assert (found.gmacs - without.gmacs) * 1e9 == pytest.approx(macs - 2048 * classes, rel=1e-9)
    assert found.parameters - without.parameters == weights - 2049 * classes
    assert (found.head, without.head) == (f"{options['head']} {reduced}", "average")


def test_cost_grows_with_the_input_as_convolutions_do():
    fc = 512 * 1000 / 1e9
    assert cost("resnet18", size=448).gmacs - fc == pytest.approx(4 * (cost("resnet18").gmacs - fc))


def test_cost_names_its_blocks():
    assert cost("resnet18", size=32, block="cgnl").blocks == "1 cgnl"
    assert math.isclose(cost("resnet18", size=32, block=cgnl.CGNL).gmacs, cost("resnet18", size=32, block="cgnl").gmacs)
