import functools

import pytest
import timm
import torch
import torchvision
from torch import nn

from cgnl.models.layers import find_layers, find_stages, find_stem

NETWORKS = {
    "resnet18": torchvision.models.resnet18,
    "convnext": torchvision.models.convnext_tiny,
    "vit": torchvision.models.vit_b_32,
    "swin": torchvision.models.swin_t,
    "efficientnet": torchvision.models.efficientnet_b0,
    "vgg": torchvision.models.vgg11,
    "timm-convnext": lambda: timm.create_model("convnext_atto"),
    "timm-vit": lambda: timm.create_model("vit_tiny_patch16_224"),
    "timm-regnet": lambda: timm.create_model("regnetx_002"),
}
LAYERS = {
    "resnet18": (11, {"conv1", "bn1", "layer2.1", "fc"}),
    "convnext": (28, {"features.0.0", "features.5.8", "classifier.2"}),
    "vit": (17, {"conv_proj", "encoder.layers.encoder_layer_11", "heads.head"}),
    "efficientnet": (21, {"features.1.0", "features.4.2", "classifier.1"}),
    "timm-convnext": (21, {"stem.0", "stages.2.blocks.5", "head"}),
    "timm-vit": (16, {"patch_embed", "blocks.11", "head"}),
}
STAGES = {
    "resnet18": {"layer1.0": 2, "layer2.0": 2, "layer3.0": 2, "layer4.0": 2},
    "convnext": {"features.1.0": 3, "features.3.0": 3, "features.5.0": 9, "features.7.0": 3},
    "vit": {"encoder.layers.encoder_layer_0": 12},
    "swin": {"features.1.0": 2, "features.3.0": 2, "features.5.0": 6, "features.7.0": 2},
    "efficientnet": dict(zip((f"features.{n}.0" for n in range(1, 8)), (1, 2, 2, 3, 3, 4, 1), strict=True)),
    "vgg": {},
    "timm-convnext": {"stages.0.blocks.0": 2, "stages.1.blocks.0": 2, "stages.2.blocks.0": 6, "stages.3.blocks.0": 2},
    "timm-vit": {"blocks.0": 12},
    "timm-regnet": {"s1": 4},
}
STEMS = {
    "resnet18": ["conv1", "bn1"],
    "convnext": ["features.0.0", "features.0.1"],
    "vit": ["class_token", "conv_proj", "encoder.pos_embedding"],
    "timm-convnext": ["stem.0", "stem.1"],
    "timm-vit": ["cls_token", "pos_embed", "patch_embed"],
}


@functools.cache
def build(name: str) -> nn.Module:
    with torch.device("meta" if name in ("vgg", "vit") else "cpu"):  # large
        return NETWORKS[name]()


@pytest.mark.parametrize("name", LAYERS)
def test_find_layers_gives_every_parameter_a_layer(name):
    count, some = LAYERS[name]
    layers = find_layers(build(name))
    assert list(layers) == [name for name, _ in build(name).named_parameters()]
    assert len(set(layers.values())) == count
    assert some <= set(layers.values())


@pytest.mark.parametrize("name", STAGES)
def test_find_stages_gives_the_residual_blocks(name):
    assert {blocks[0]: len(blocks) for blocks in find_stages(build(name))} == STAGES[name]


@pytest.mark.parametrize("name", STEMS)
def test_find_stem_is_what_comes_before_them(name):
    assert find_stem(build(name)) == STEMS[name]


def test_layers_of_a_plain_network_are_its_children():
    network = nn.Module()
    network.first, network.second = nn.Linear(2, 2), nn.Linear(2, 2)
    assert find_layers(network) == {f"{n}.{p}": n for n in ("first", "second") for p in ("weight", "bias")}
