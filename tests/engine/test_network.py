"""Settings become the network that they say."""

import pytest
import torch

from cgnl import kernels
from cgnl.engine.config import load
from cgnl.engine.datasets import view_in_training
from cgnl.engine.network import build_network, check_input
from cgnl.engine.tasks import TASKS
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


def test_build_network_takes_the_scale_of_the_attention():
    network = build_network(load(None, {"model.options.scale": "energy"}).model, 3)
    assert network.get_submodule("layer3.0_cgnl").scale == "energy"


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


@pytest.mark.parametrize(
    ("settings", "kind", "samples", "sentence"),
    [
        ({"model.name": "c2d_resnet18", "data.frames": 4}, "videos", 0, "4 x 32 x 32: make data.frames larger"),
        ({"model.name": "resnet18"}, "images", 1, "1 x 32 x 32, .*: make optim.batch_size or data.size larger"),
        ({"model.name": "resnet18"}, "videos", 2, "32 x 32 x 32: Expected"),
        ({"model.name": "timm/vit_tiny_patch16_224"}, "images", 0, "32 x 32: it takes 224 x 224 alone"),
    ],
)
def test_check_input_names_the_setting_to_change(settings, kind, samples, sentence):
    config = load(None, {"data.root": "pictures", "data.size": 32, **settings})
    with torch.device("meta"):
        outline = build_network(config.model, 3)
    with pytest.raises(ValueError, match=rf"^{config.model.name} cannot .*{sentence}"):
        check_input(outline, config.model.name, view_in_training(config.data), TASKS[kind], samples)


@pytest.mark.parametrize(("size", "samples"), [(32, 0), (32, 2), (64, 1)])
def test_check_input_lets_norms_see_more_than_one_value(size, samples):
    config = load(None, {"data.root": "pictures", "data.size": size})
    with torch.device("meta"):
        outline = build_network(config.model, 3)
    check_input(outline, "resnet18", view_in_training(config.data), TASKS["images"], samples)
