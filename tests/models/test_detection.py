"""Mask R-CNN: torchvision's, to the last bit, with blocks in its backbone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, maskrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

import cgnl
from cgnl.models import create_model, detection, load_weights
from cgnl.models.table import cost
from cgnl.surgery import inserted

SMALL = {"min_size": 64, "max_size": 100, "rpn_post_nms_top_n_test": 20, "box_detections_per_img": 5}


def pictures() -> list[Tensor]:
    draws = torch.Generator().manual_seed(3)
    return [torch.rand(3, height, width, generator=draws) for height, width in ((64, 90), (80, 60))]


def small(model: nn.Module) -> nn.Module:
    parts: dict[str, Any] = {name: model.get_submodule(name) for name in ("transform", "rpn", "roi_heads")}
    parts["transform"].min_size, parts["transform"].max_size = (64,), 100
    parts["rpn"]._post_nms_top_n = {"training": 20, "testing": 20}
    parts["roi_heads"].detections_per_img = 5
    parts["roi_heads"].fg_bg_sampler.batch_size_per_image = 8
    return model.eval()


def lively(model: nn.Module) -> nn.Module:
    """With statistics as training leaves them, and classes that are found."""
    draws = torch.Generator().manual_seed(0)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.copy_(torch.rand(buffer.shape, generator=draws) + 0.5)
        elif name.endswith("running_mean"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=draws))
    with torch.no_grad():
        model.get_parameter("roi_heads.box_predictor.cls_score.bias")[1:4] += 4
    return model.eval()


def same(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def trainable_norms() -> nn.Module:
    return maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5, **SMALL)


def frozen_norms() -> nn.Module:
    return MaskRCNN(resnet_fpn_backbone(backbone_name="resnet50", weights=None), 5, **SMALL)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(nn.init, "kaiming_normal_", lambda weight, **_: nn.init.uniform_(weight, -0.03, 0.03))


@pytest.mark.parametrize("theirs", [trainable_norms, frozen_norms])
@torch.no_grad()
def test_torchvision_weights_load_and_detect_the_same_to_the_last_bit(theirs: Callable[[], nn.Module]):
    torch.manual_seed(0)
    model = lively(theirs())
    ours = create_model("maskrcnn_resnet50_fpn", block="cgnl", num_classes=5)
    report = load_weights(ours, model.state_dict())
    (block,) = inserted(ours)
    assert block == "backbone.body.layer3.4_cgnl"
    assert {name.rpartition("_cgnl.")[0] + "_cgnl" for name in report.new} == {block}
    assert (len(report.new), report.ignored) == (len(ours.get_submodule(block).state_dict()), ())
    expected = model(pictures())
    assert sum(len(found["boxes"]) for found in expected) > 0
    assert same(small(ours)(pictures()), expected)
    again = create_model("maskrcnn_resnet50_fpn", block="cgnl", num_classes=5)
    again.load_state_dict(ours.state_dict())
    assert same(small(again)(pictures()), expected)
    ours.get_parameter(f"{block}.norm.weight").fill_(1.0)  # the block is on the way
    assert not same(ours(pictures()), expected)
    assert same(cgnl.remove(ours)(pictures()), expected)


def test_frozen_norm_carries_its_eps():
    norm = detection.FrozenBatchNorm2d(4)
    norm.eps = 0.0
    other = detection.FrozenBatchNorm2d(4)
    assert set(other.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    other.load_state_dict(norm.state_dict())
    assert other.eps == 0


def test_frozen_norm_is_never_trained():
    norm = detection.FrozenBatchNorm2d(4).train()
    assert list(norm.parameters()) == []
    before = copy.deepcopy(norm.state_dict())
    norm(torch.randn(2, 4, 3, 3))
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(("form", "res5"), [("fpn", "backbone.body."), ("c4", "roi_heads.box_head.")])
def test_image_weights_become_the_backbone(form, res5, tmp_path):
    image = create_model("resnet50_caffe", num_classes=7)
    torch.save(image.state_dict(), tmp_path / "r50.pt")
    model = create_model(f"maskrcnn_resnet50_{form}_caffe", block="nl", num_classes=3, weights=tmp_path / "r50.pt")
    state = model.state_dict()
    for name, value in image.state_dict().items():
        prefix = res5 if name.startswith("layer4") else "backbone.body."
        assert name.startswith("fc.") or name.endswith("tracked") or torch.equal(state[prefix + name], value)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen
    assert all(name.startswith(("backbone.body.conv1", "backbone.body.layer1")) for name in frozen)
    first = model.get_submodule(f"{res5}layer4.0")
    assert (first.get_submodule("conv1").stride, first.get_submodule("conv2").stride) == ((2, 2), (1, 1))


def test_image_weights_that_lack_a_layer_are_refused():
    state = create_model("resnet50").state_dict()
    del state["layer3.2.conv1.weight"]
    with pytest.raises(ValueError, match=r"backbone.body.layer3.2.conv1.weight missing"):
        load_weights(create_model("maskrcnn_resnet50_fpn", num_classes=3), state)


def test_weights_for_other_classes_keep_all_but_the_predictors():
    state = create_model("maskrcnn_resnet50_fpn", num_classes=4).state_dict()
    report = load_weights(create_model("maskrcnn_resnet50_fpn", num_classes=6), state)
    assert report.new == report.ignored or set(report.new) == set(report.ignored)
    assert {name.split(".")[1] for name in report.new} == {"box_predictor", "mask_predictor"}
    assert "roi_heads.mask_predictor.conv5_mask.weight" in report.loaded


@pytest.mark.parametrize("form", ["fpn", "c4"])
def test_every_parameter_learns_with_and_without_objects(form):
    torch.manual_seed(0)
    model = create_model(f"maskrcnn_resnet50_{form}", block="cgnl", num_classes=3)
    small(model).train()
    full = {"boxes": torch.tensor([[5.0, 5, 40, 50]]), "labels": torch.tensor([2])}
    full["masks"] = torch.ones(1, 64, 90, dtype=torch.uint8)
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "masks": torch.zeros(0, 80, 60)}
    losses = model(pictures(), [full, empty])
    torch.stack(list(losses.values())).sum().backward()
    assert sorted(losses) == sorted(
        ["loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg"]
    )
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    norm = model.get_submodule("backbone.body.layer3.4_cgnl.norm")
    assert int(norm.get_buffer("num_batches_tracked")) == 1


def test_c4_cuts_regions_out_of_res4_and_shares_res5():
    model = create_model("maskrcnn_resnet50_c4", num_classes=3)
    features = model.get_submodule("backbone")(torch.zeros(1, 3, 64, 96))
    assert [tuple(f.shape) for f in features.values()] == [(1, 1024, 4, 6)]
    heads = model.get_submodule("roi_heads")
    regions = torch.randn(2, 1024, 14, 14)
    shared = heads.get_submodule("mask_head")(regions)
    assert shared.shape == (2, 2048, 7, 7)
    assert torch.equal(heads.get_submodule("box_head")(regions).flatten(1), shared.mean((2, 3)))
    assert heads.get_submodule("mask_predictor")(shared).shape == (2, 3, 14, 14)
    assert not [name for name in model.state_dict() if "mask_head" in name]
    copied = copy.deepcopy(model).get_submodule("roi_heads")
    assert copied.get_submodule("mask_head")._other[0] is copied.get_submodule("box_head.layer4")  # pyright: ignore[reportIndexIssue]


def test_bfloat16_does_not_round_boxes():
    model = small(create_model("maskrcnn_resnet50_fpn", num_classes=3))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features = model.get_submodule("backbone")(torch.zeros(1, 3, 64, 64))
        scores, deltas = model.get_submodule("rpn.head")(list(features.values()))
        box = model.get_submodule("roi_heads.box_predictor")(torch.zeros(1, 1024))
        mask = model.get_submodule("roi_heads.mask_predictor")(torch.zeros(1, 256, 14, 14))
    assert features["0"].dtype == torch.bfloat16
    assert {t.dtype for t in (*scores, *deltas, *box, mask)} == {torch.float32}


def test_cost_is_torchvisions_and_a_hundred_masks():
    meta = torchvision.models.detection.MaskRCNN_ResNet50_FPN_Weights.COCO_V1.meta
    row = cost("maskrcnn_resnet50_fpn", size=800)
    convolutions, deconvolution, logits = 4 * 256 * 256 * 9 * 14**2, 256 * 256 * 4 * 14**2, 256 * 91 * 28**2
    masks = detection.DETECTIONS * (convolutions + deconvolution + logits) / 1e9
    assert row.parameters == meta["num_params"]
    assert row.gmacs - masks == pytest.approx(meta["_ops"], abs=0.005)


@pytest.mark.parametrize("form", ["fpn", "c4", "fpn_caffe", "c4_caffe"])
def test_placement_is_in_the_body(form):
    name = f"maskrcnn_resnet50_{form}"
    assert cgnl.placement(name) == ["backbone.body.layer3.4"]
    assert cgnl.placement(name, 5)[0] == "backbone.body.layer2.1"
    with pytest.raises(ValueError, match="no placement is known"):
        cgnl.placement("maskrcnn_resnet50")


def test_one_class_is_only_the_background():
    with pytest.raises(ValueError, match="at least 2, with the background, got num_classes = 1"):
        create_model("maskrcnn_resnet50_fpn", num_classes=1)


def test_caffe_variant_has_no_torchvision_weights():
    with pytest.raises(ValueError, match="torchvision has no weights for maskrcnn_resnet50_fpn_caffe"):
        create_model("maskrcnn_resnet50_fpn_caffe", weights="COCO_V1")
    with pytest.raises(ValueError, match="torchvision's weights: IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, COCO_V1"):
        create_model("maskrcnn_resnet50_fpn", weights="COCO_V9")
