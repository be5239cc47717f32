"""Networks of timm and torchvision by name."""

import pytest
import timm
import torch
import torchvision

from cgnl import create_model
from cgnl.models.backbones import Input, find_input, place_block, read_pretrained
from cgnl.models.weights import find_classifiers
from cgnl.surgery import inserted, remove

PLACES = {
    "timm/convnext_atto": "stages.2.blocks.4_cgnl",
    "timm/vit_tiny_patch16_224": "blocks.10_cgnl.block",
    "timm/resnet18": "layer3.0_cgnl",
    "timm/efficientnet_b0": "blocks.5.2_cgnl",
    "torchvision/swin_t": "features.5.4_cgnl.block",
    "torchvision/efficientnet_b0": "features.6.2_cgnl",
    "torchvision/regnet_x_400mf": "trunk_output.block3.block3-5_cgnl",
}


@pytest.mark.parametrize("name", PLACES)
def test_block_is_placed_by_the_networks_own_structure(name):
    torch.manual_seed(0)
    model = create_model(name, block="cgnl", num_classes=5).eval()
    assert list(inserted(model)) == [PLACES[name]]
    size = 224 if "vit" in name else 64
    x = torch.randn(1, 3, size, size)
    with torch.no_grad():
        with_block, without = model(x), remove(model)(x)
    assert with_block.shape == (1, 5)
    assert torch.equal(with_block, without)


def test_backbone_is_the_librarys_own():
    torch.manual_seed(0)
    ours = create_model("torchvision/mobilenet_v3_small", num_classes=7)
    torch.manual_seed(0)
    theirs = torchvision.models.mobilenet_v3_small(num_classes=7)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_blocks_go_where_they_are_asked_for():
    model = create_model("timm/convnext_atto", block="nl", after=["stages.1.blocks.0", "stages.3.blocks.0"])
    assert list(inserted(model)) == ["stages.1.blocks.0_nl", "stages.3.blocks.0_nl"]


@pytest.mark.parametrize("name", ["torchvision/resnext50_32x4d", "timm/resnet26", "torchvision/regnet_x_400mf"])
def test_second_order_head_of_networks_that_end_like_a_resnet(name):
    model = create_model(name, head="covariance", reduced=16, num_classes=3).eval()
    assert model.get_submodule("fc").in_features == 16 * 17 // 2
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("timm/convnextt", {}, r"convnextt.*convnext"),
        ("torchvision/resnet5", {}, r"resnet5.*resnet50"),
        ("torchvision/maskrcnn_resnet50_fpn", {}, "no image network"),
        ("torchvision/vgg11", {"block": "cgnl"}, "model.after"),
        ("timm/vit_tiny_patch16_224", {"block": "cgnl", "blocks": 5}, "blocks = 5"),
        ("timm/convnext_atto", {"head": "covariance"}, "head = 'covariance'"),
        ("torchvision/resnet18", {"dropout": 0.2}, "dropout = 0.2"),
    ],
)
def test_create_model_refuses(name, options, words):
    with torch.device("meta"), pytest.raises(ValueError, match=words):
        create_model(name, **options)


def test_dropout_is_that_before_the_classifier():
    own, other = (create_model("torchvision/efficientnet_b0", dropout=p) for p in (0.5, 0.3))
    assert [model.get_submodule("classifier.0").p for model in (own, other)] == [0.2, 0.3]
    assert create_model("timm/efficientnet_b0", dropout=0.3).drop_rate == 0.3


@pytest.mark.parametrize("name", ["timm/convnext_atto", "torchvision/mobilenet_v3_small"])
def test_weights_of_another_number_of_classes_load(name, tmp_path):
    source = create_model(name, num_classes=11)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    model = create_model(name, block="cgnl", num_classes=4, weights=tmp_path / "weights.pth")
    (classifier,) = find_classifiers(model)
    state = source.state_dict()
    kept = [n for n, value in model.state_dict().items() if n in state and torch.equal(value, state[n])]
    assert len(kept) == len(state) - 2
    assert not any(n.startswith(classifier) for n in kept)


def test_input_is_the_networks_own():
    assert find_input("timm/vit_small_patch16_384") == Input(384, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert find_input("torchvision/inception_v3") == Input(299, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert find_input("resnet50") is None


@pytest.mark.parametrize("find", [create_model, find_input])
def test_misspelt_network_of_torchvision_gets_a_suggestion(find):
    with pytest.raises(ValueError, match=r"swin_tt.*did you mean swin_t\?"):
        find("torchvision/swin_tt")


def test_read_pretrained_of_timm_takes_a_tag(monkeypatch):
    asked = []
    plain = timm.create_model

    def create(name, pretrained=False, **options):
        asked.append((name, pretrained))
        return plain(name.partition(".")[0], **options)

    monkeypatch.setattr(timm, "create_model", create)
    state = read_pretrained("timm/convnext_atto", "d2_in1k")
    assert asked == [("convnext_atto.d2_in1k", True)]
    assert "head.fc.weight" in state
    with pytest.raises(ValueError, match=r"nonsense.*DEFAULT, d2_in1k"):
        read_pretrained("timm/convnext_atto", "nonsense")


@pytest.mark.parametrize("name", ["timm/convnext_atto", "torchvision/mobilenet_v3_small"])
def test_read_pretrained_without_a_connection_says_so(name, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no connection") if name.startswith("timm") else OSError("no connection")

    monkeypatch.setattr(timm, "create_model", fail)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    with pytest.raises(OSError, match=r"DEFAULT cannot be downloaded \(no connection\)"):
        read_pretrained(name, "DEFAULT")


def test_place_block_of_a_stage_with_one_block():
    network = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(4, 1, 4) for _ in range(2)))
    assert place_block(network, "two") == ["0"]
