"""Settings become the network that they say."""

import pytest

from cgnl import kernels
from cgnl.engine.config import load
from cgnl.engine.network import build_network
from cgnl.surgery import inserted
from tests.engine.conftest import Tiny


def test_build_network_puts_in_the_blocks_of_the_settings():
    model = load(None, {"model.name": "resnet18", "model.blocks": 1, "model.options": {"groups": 4}}).model
    (place,) = inserted(build_network(model, 7))
    assert place.startswith("layer3")


def test_build_network_without_loading_does_not_look_for_weights(tmp_path):
    model = load(None, {"model.name": "tiny", "model.block": None, "model.weights": str(tmp_path / "gone.pth")}).model
    assert isinstance(build_network(model, 3, load=False), Tiny)


def test_build_network_puts_blocks_where_it_is_told():
    network = build_network(load(None, {"model.after": ["layer4.0", "layer2.1"]}).model, 3)
    assert set(inserted(network)) == {"layer4.0_cgnl", "layer2.1_cgnl"}


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("{name: rbf, beta: exact, order: 2}", kernels.GaussianRBF(order=2, beta="exact")),
        ("{name: taylor, coefficients: [0, 1, 0.5]}", kernels.Taylor((0.0, 1.0, 0.5))),
        ("embedded_gaussian", kernels.EmbeddedGaussian()),
    ],
)
def test_build_network_makes_a_kernel_of_its_name_and_arguments(kernel, expected):
    network = build_network(load(None, {"model.options.kernel": kernel}).model, 3)
    assert network.get_submodule("layer3.0_cgnl").kernel == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.options.kernel": "{name: gauss}"}, "name = gauss must be one of dot, embedded_gaussian, rbf, taylor"),
        ({"model.options.kernel": "{name: rbf, sigma: 2}"}, "unexpected keyword argument 'sigma'"),
        ({"model.options.kernel": "{name: rbf, beta: odd}"}, "odd"),
        ({"model.after": ["layer9"]}, "layer9"),
        ({"model.block": None, "model.after": ["layer4.0"]}, "no block is asked for"),
    ],
)
def test_build_network_refuses_what_there_is_not(settings, message):
    with pytest.raises(ValueError, match=message):
        build_network(load(None, settings).model, 3)
