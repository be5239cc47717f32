"""The arguments of a network survive JSON."""

import json

import pytest

import cgnl
from cgnl.kernels import EmbeddedGaussian, GaussianRBF, Taylor
from cgnl.models.arguments import build_again, get_arguments

KERNELS = {
    "rbf:order=2,gamma=0.5,beta=exact": GaussianRBF(2, 0.5, "exact"),
    "taylor:1.0,0.5": Taylor([1, 0.5]),
}


@pytest.mark.parametrize(("text", "kernel"), KERNELS.items(), ids=KERNELS)
def test_config_spells_the_kernel(text, kernel):
    config = get_arguments(cgnl.create_model("resnet18", block="cgnl", kernel=kernel, num_classes=3))
    assert config["kernel"] == text
    again = build_again(**json.loads(json.dumps(config)))
    assert again.get_submodule("layer3.0_cgnl").kernel == kernel
    assert get_arguments(again) == config


def test_network_takes_a_kernel_as_older_files_name_it():
    old = {"kernel": "EmbeddedGaussian", "arguments": [2]}
    network = build_again("resnet18", block="cgnl", kernel=old, num_classes=3)
    assert network.get_submodule("layer3.0_cgnl").kernel == EmbeddedGaussian(2)
