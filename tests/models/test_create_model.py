import functools
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.models import WeightsEnum

import cgnl
from cgnl.heads import KINDS, second_order_pools
from cgnl.models import NETWORKS, create_model, is_detector, is_video
from cgnl.models.detection import dense_pass
from cgnl.surgery import BLOCKS, inserted

small = functools.partial(create_model, "resnet18", num_classes=4)


def make_input(network: str) -> torch.Tensor:
    return torch.randn(2, 3, 8, 32, 32) if network.startswith(("c2d", "i3d")) else torch.randn(2, 3, 32, 32)


def test_is_video_tells_networks_with_convolutions_over_time():
    with torch.device("meta"):
        for network in NETWORKS:
            convolutions = (m for m in create_model(network).modules() if isinstance(m, nn.Conv2d | nn.Conv3d))
            assert is_video(network) == isinstance(next(convolutions), nn.Conv3d), network


def test_networks_are_those_of_the_paper_and_small_ones():
    images = [f"resnet{depth}" for depth in (18, 34, 50, 101, 152)]
    caffe = [f"resnet{depth}_caffe" for depth in (50, 101, 152)]
    c2d = ["c2d_resnet18", "c2d_resnet34", "c2d_resnet50", "c2d_resnet101", "c2d_resnet50_caffe", "c2d_resnet101_caffe"]
    i3d = [f"i3d_resnet{depth}" for depth in ("50", "101", "50_caffe", "101_caffe")]
    maskrcnn = [f"maskrcnn_resnet50_{form}" for form in ("fpn", "c4", "fpn_caffe", "c4_caffe")]
    assert list(NETWORKS) == [*images, *caffe, *c2d, *i3d, *maskrcnn]


VARIANTS = ("34", "101", "152", "_caffe")
"""They differ from the others in the number of their layers or in a stride alone."""


@pytest.mark.parametrize(
    ("network", "block"), [(n, b) for n in NETWORKS for b in (None, *BLOCKS) if b == "cgnl" or not n.endswith(VARIANTS)]
)
def test_create_model_builds(network, block):
    with torch.device("meta"):
        model = create_model(network, block=block, num_classes=7)
        if is_detector(network):
            dense_pass(model, make_input(network))
        else:
            assert model(make_input(network)).shape == (2, 7)
    expected = [f"{place}_{block}" for place in cgnl.placement(network)] if block else []
    assert list(inserted(model)) == expected
    assert {module.ndim for module in inserted(model).values()} <= {make_input(network).ndim - 2}


def test_create_model_places_five_blocks():
    with torch.device("meta"):
        model = create_model("resnet50", block="cgnl", blocks=5)
    assert list(inserted(model)) == [f"{place}_cgnl" for place in cgnl.placement("resnet50", blocks=5)]


def test_create_model_places_blocks_after_given_names():
    assert list(inserted(small(block="nl", after=["layer1.1", "layer2.0"]))) == ["layer1.1_nl", "layer2.0_nl"]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_create_model_has_torchvisions_keys_and_shapes(name):
    with torch.device("meta"):
        ours, theirs = create_model(name).state_dict(), torchvision.models.get_model(name).state_dict()
    assert [(key, value.shape) for key, value in ours.items()] == [(key, value.shape) for key, value in theirs.items()]


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_create_model_caffe_strides_on_the_1x1(depth):
    with torch.device("meta"):
        caffe, plain = create_model(f"resnet{depth}_caffe"), create_model(f"resnet{depth}")

    def strided(model: nn.Module) -> list[str]:
        convs = {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}
        return [name for name, m in convs.items() if m.stride == (2, 2) and "layer" in name and "down" not in name]

    assert strided(caffe) == ["layer2.0.conv1", "layer3.0.conv1", "layer4.0.conv1"]
    assert strided(plain) == ["layer2.0.conv2", "layer3.0.conv2", "layer4.0.conv2"]


@pytest.mark.parametrize("block", BLOCKS)
def test_create_model_fresh_block_changes_nothing(block):
    plain, model = small().eval(), small(block=block).eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    x = make_input("resnet18")
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("options", [{"groups": 4, "norm": "group"}, {"kernel": "rbf", "scale": "sqrt"}], ids=str)
def test_create_model_passes_block_options_on(options):
    (block,) = inserted(small(block="cgnl", **options)).values()
    (expected,) = inserted(small(block=functools.partial(cgnl.CGNL, **options))).values()
    assert repr(block) == repr(expected) != repr(cgnl.CGNL(256))


def test_create_model_takes_a_block_of_ones_own():
    (block,) = inserted(small(block=lambda channels: nn.Conv2d(channels, channels, 1))).values()
    assert isinstance(block, nn.Conv2d)


def test_create_model_drops_out_in_training_only():
    fc = small(dropout=0.75).get_submodule("fc")
    features = torch.ones(1, 512)
    plain = F.linear(features, fc.get_parameter("weight"), fc.get_parameter("bias"))
    assert torch.equal(fc.eval()(features), plain)
    mean = torch.stack([fc.train()(features) for _ in range(4000)]).mean(0)
    assert not torch.equal(fc(features), fc(features))
    torch.testing.assert_close(mean, plain, atol=0.1, rtol=0)


@pytest.mark.parametrize(("dropout", "same"), [(None, False), (0.0, True)], ids=["default", "0"])
def test_create_model_dropout_can_be_switched_off(dropout, same):
    fc = small(**({} if dropout is None else {"dropout": dropout})).get_submodule("fc")
    features = torch.ones(1, 512)
    assert getattr(fc, "dropout") == (0.5 if dropout is None else dropout)  # noqa: B009
    assert torch.equal(fc(features), fc(features)) is same


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (None, {}, "unknown network None: choose one of resnet18, "),
        ("resnet51", {}, "unknown network 'resnet51': choose one of resnet18, "),
        ("resnet18", {"num_classes": 0}, "num_classes = 0"),
        ("resnet18", {"dropout": 1.0}, "dropout = 1.0"),
        ("resnet18", {"dropout": -0.1}, "dropout = -0.1"),
        ("resnet18", {"block": "gcnl"}, "unknown block 'gcnl'"),
        ("resnet18", {"block": "cgnl", "blocks": 5}, "blocks = 5 is known for 'resnet18'"),
        ("resnet18", {"block": "cgnl", "blocks": 2}, "blocks = 2"),
        ("resnet18", {"block": "cgnl", "groups": 7}, "'layer3.0': channels // 2 = 128 .* groups = 7"),
        ("resnet18", {"block": "cgnl", "after": ["layer5.0"]}, "no module 'layer5.0'"),
        ("resnet18", {"num_classes": 10.0}, "num_classes must be a whole number, got 10.0"),
        ("resnet18", {"block": "cgnl", "blocks": "5"}, "blocks must be a whole number, got '5'"),
        ("resnet18", {"blocks": 5}, "no block is asked for, .* blocks"),
        ("resnet18", {"block": "cgnl", "after": []}, "no place given: after is empty"),
        ("resnet18", {"groups": 4}, "no block is asked for, but options of one are given: groups"),
        ("resnet18", {"after": ["layer3.0"]}, "no block is asked for, .* after"),
        ("resnet18", {"weights": "IMAGENET1K_V9"}, "neither a file nor .* IMAGENET1K_V1"),
        ("resnet50_caffe", {"weights": "IMAGENET1K_V1"}, "no file IMAGENET1K_V1, .* resnet50_caffe"),
    ],
)
def test_create_model_refuses(name, options, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message) as error:
        create_model(name, **options)
    assert "\n" not in str(error.value)


def test_create_model_loads_a_file_and_logs_the_report(tmp_path, caplog):
    plain, path = small(), tmp_path / "plain.pt"
    torch.save(plain.state_dict(), path)
    with caplog.at_level(logging.INFO, logger="cgnl"):
        model = small(block="nl", weights=path)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in plain.state_dict().items())
    assert "122 entries loaded, 9 new, 0 ignored" in caplog.text
    assert "new: layer3.0_nl.theta.weight" in caplog.text


@pytest.mark.parametrize(
    ("network", "weights"),
    [("resnet50", "IMAGENET1K_V2"), ("c2d_resnet50", "IMAGENET1K_V2"), ("i3d_resnet50", "DEFAULT")],
)
def test_create_model_takes_torchvisions_weights_by_name(network, weights, monkeypatch):
    asked = []

    def state_dict(self: WeightsEnum, **_):
        asked.append(self)
        return torchvision.models.resnet50().state_dict()

    monkeypatch.setattr(WeightsEnum, "get_state_dict", state_dict)
    with torch.device("meta"):
        create_model(network, block="cgnl", num_classes=10, weights=weights)
    assert asked == [torchvision.models.ResNet50_Weights.IMAGENET1K_V2]


def test_create_model_every_parameter_learns():
    model = small(block="cgnl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    for _ in range(2):  # a fresh block's norm has weight 0: the layers before it learn from the second step on
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


@pytest.mark.parametrize("network", ["resnet18", "resnet50_caffe", "c2d_resnet18", "i3d_resnet50"])
@pytest.mark.parametrize("head", KINDS)
def test_create_model_puts_a_head_in_place_of_the_average(network, head):
    with torch.device("meta"):
        model = create_model(network, head=head, reduced=32, num_classes=7)
        assert model(make_input(network)).shape == (2, 7)
    pool = second_order_pools(model)["avgpool"]
    assert (pool.kind, pool.reduced, pool.ndim) == (head, 32, make_input(network).ndim - 2)
    assert model.get_submodule("fc").in_features == pool.features


def test_create_model_has_a_head_and_a_block():
    model = small(head="covariance", reduced=8, block="cgnl")
    assert list(inserted(model)) == ["layer3.0_cgnl"]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head": "gap"}, "gap.*average, covariance, bilinear, compact"),
        ({"head": "covariance", "reduced": 1}, "reduced = 1"),
        ({"head": "covariance", "reduced": 513}, "reduced = 513.*512"),
        ({"reduced": 64}, "reduced = 64"),
    ],
)
def test_create_model_refuses_heads(options, says):
    with pytest.raises(ValueError, match=says):
        small(**options)


def test_create_model_refuses_a_head_on_a_detector():
    with pytest.raises(ValueError, match=r"covariance.*maskrcnn_resnet50_fpn is a detector"), torch.device("meta"):
        create_model("maskrcnn_resnet50_fpn", head="covariance")


def test_classifier_of_unit_length_features_has_a_gain():
    model = small(head="bilinear", reduced=16, dropout=0.0).eval()
    x = torch.randn(2, 3, 64, 64)
    features = []
    handle = model.get_submodule("avgpool").register_forward_hook(lambda _module, _args, y: features.append(y))
    logits = model(x)
    handle.remove()
    fc: Any = model.get_submodule("fc")
    assert torch.allclose(logits, F.linear(4 * features[0], fc.weight, fc.bias), atol=1e-6)
