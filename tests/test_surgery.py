import copy
import functools
import io
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision.models import convnext, vgg
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.feature_extraction import create_feature_extractor

import cgnl
from cgnl.surgery import insert, inserted, placement, remove

IMAGE = (2, 3, 32, 32)


class Residual(nn.Sequential):
    """A Sequential that does not run its children one after the other."""

    def forward(self, input):
        for layer in self:
            input = input + layer(input)
        return input


class Looped(nn.Module):
    """A stem, then a body: a module, or a list of them that the forward loops over."""

    def __init__(self, body: nn.Module | None = None):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2)
        self.body = nn.ModuleList([conv(), conv()]) if body is None else body

    def forward(self, x):
        x = self.stem(x)
        for layer in self.body if isinstance(self.body, nn.ModuleList) else [self.body]:
            x = layer(x).relu()
        return x


class Nested(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return {"features": self.inner(x)}


def conv() -> nn.Module:
    return nn.Conv2d(16, 16, 3, padding=1)


def conv1d_network() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 32, 5), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 16, 3))


def small_convnext() -> nn.Module:
    return convnext.ConvNeXt([convnext.CNBlockConfig(16, 32, 1), convnext.CNBlockConfig(32, None, 2)], num_classes=4)


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=4)


class Place(NamedTuple):
    """Where a block goes, and what it must be called and have found out by itself."""

    build: Callable[[], nn.Module]
    after: str
    name: str | None  # None: any
    channels: int
    shape: tuple[int, ...] = IMAGE


PLACES = {
    "resnet18": Place(resnet18, "layer3.0", "layer3.0_cgnl", 256),
    "resnet50": Place(torchvision.models.resnet50, "layer3.4", "layer3.4_cgnl", 1024),
    "resnet18-stage": Place(resnet18, "layer2", "layer2_cgnl", 128),
    "resnet18-pool": Place(resnet18, "maxpool", "maxpool_cgnl", 64),
    "resnet18-inside-a-residual-block": Place(resnet18, "layer2.0.bn1", "layer2.0.bn1_cgnl", 128),
    "timm-resnet26": Place(lambda: timm.create_model("resnet26"), "layer3.1", "layer3.1_cgnl", 1024),
    "timm-seresnet18": Place(lambda: timm.create_model("seresnet18"), "layer3.1", "layer3.1_cgnl", 256),
    "timm-ecaresnet26t": Place(lambda: timm.create_model("ecaresnet26t"), "layer3.1", "layer3.1_cgnl", 1024),
    "timm-features-only": Place(lambda: timm.create_model("resnet18", features_only=True), "layer3", None, 256),
    "convnext": Place(small_convnext, "features.3.1", "features.3.1_cgnl", 32),
    "timm-convnext": Place(
        lambda: timm.create_model("convnext_atto"), "stages.2.blocks.1", "stages.2.blocks.1_cgnl", 160
    ),
    "vgg11_bn": Place(lambda: vgg.make_layers(vgg.cfgs["A"], batch_norm=True), "10", "10_cgnl", 256),
    "mc3_18": Place(torchvision.models.video.mc3_18, "layer3.0", "layer3.0_cgnl", 256, (1, 3, 4, 32, 32)),
    "fpn": Place(
        lambda: resnet_fpn_backbone(backbone_name="resnet18", weights=None), "body.layer3.0", "body.layer3.0_cgnl", 256
    ),
    "fpn-stage": Place(
        lambda: resnet_fpn_backbone(backbone_name="resnet18", weights=None), "body.layer3", "body_layer3_cgnl", 256
    ),
    "attribute": Place(Looped, "stem", "stem_cgnl", 16),
    "ModuleList": Place(Looped, "body.0", "body_0_cgnl", 16),
    "own-Sequential": Place(lambda: Looped(Residual(conv(), conv())), "body.1", "body_1_cgnl", 16),
    "own-Sequential-as-model": Place(lambda: Residual(conv(), conv()), "1", None, 16, shape=(2, 16, 8, 8)),
    "nested": Place(lambda: Nested(Nested(Looped())), "inner.inner.body.1", "inner.inner.body_1_cgnl", 16),
    "sequence": Place(conv1d_network, "2", "2_cgnl", 32, (2, 3, 20)),
}


def run(model: nn.Module, shape=IMAGE) -> list[Tensor]:
    """Every output on a fixed input, in eval mode."""
    like = next(model.parameters())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(like.device, like.dtype)
    training = {module: module.training for module in model.modules()}
    with torch.no_grad():
        leaves = [leaf.clone() for leaf in tree_leaves(model.eval()(x))]
    for module, flag in training.items():
        module.training = flag
    return leaves


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def only_block(model: nn.Module) -> Any:
    (block,) = inserted(model).values()
    return block


def wake(model: nn.Module) -> None:
    """Make every block add 1, so that it shows whether it is called."""
    for block in inserted(model).values():
        nn.init.ones_(block.get_submodule("norm").get_parameter("bias"))


def structure(model: nn.Module) -> list:
    return [(name, type(m), len(m._forward_hooks), m.training) for name, m in model.named_modules()]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_insert_keeps_keys_and_output_until_removed(place):
    model = place.build()
    keys, output = list(model.state_dict()), run(model, place.shape)

    assert insert(model, "cgnl", place.after) is model
    block = only_block(model)
    assert place.name in (None, *inserted(model))
    assert (block.channels, block.ndim) == (place.channels, len(place.shape) - 2)
    assert [key for key in model.state_dict() if key in keys] == keys
    assert len(model.state_dict()) == len(keys) + len(block.state_dict())
    assert same(run(model, place.shape), output)

    wake(model)
    assert not same(run(model, place.shape), output)

    assert remove(model) is model
    assert list(model.state_dict()) == keys
    assert same(run(model, place.shape), output)
    assert inserted(model) == {}


def test_insert_into_a_detector_keeps_detections():
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    limits = {"box_detections_per_img": 2, "rpn_post_nms_top_n_test": 20, "rpn_pre_nms_top_n_test": 20}
    model = MaskRCNN(backbone, num_classes=2, min_size=64, max_size=64, **limits).eval()
    image = [torch.rand(3, 64, 64)]
    before = tree_leaves(model(image))
    assert before[0].shape == (2, 4)
    insert(model, "cgnl", ["backbone.body.layer3.0", "backbone.fpn.layer_blocks.0"])
    assert same(tree_leaves(model(image)), before)
    wake(model)
    assert not same(tree_leaves(model(image)), before)


def test_insert_puts_a_sequential_child_right_behind_its_target():
    model = insert(resnet18(), "nl", ["layer3.0", "layer3.1"])
    assert [name for name, _ in model.get_submodule("layer3").named_children()] == ["0", "0_nl", "1", "1_nl"]
    assert list(inserted(model)) == ["layer3.0_nl", "layer3.1_nl"]
    assert model.get_submodule("layer3.1_nl") is inserted(model)["layer3.1_nl"]


def test_insert_stacks_different_blocks_and_blocks_behind_blocks():
    model = resnet18()
    output = run(model)
    insert(insert(insert(model, "cgnl", "layer3.0"), "nl", "layer3.0_cgnl"), "residual", "layer3.0")
    children = [name for name, _ in model.get_submodule("layer3").named_children()]
    assert children == ["0", "0_cgnl", "0_cgnl_nl", "0_residual", "1"]
    assert same(run(model), output)
    assert same(run(remove(model)), output)


def test_remove_leaves_other_hooks():
    model, calls = Looped(), []
    model.stem.register_forward_hook(lambda *_: calls.append(1))
    remove(insert(model, "cgnl", "stem"))
    run(model)
    assert calls == [1]


def through_a_file(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_a_file])
@pytest.mark.parametrize("after", ["stem", "body.1"])
def test_insert_copied_model_calls_its_own_block(after, duplicate):
    model = insert(Looped(), "cgnl", after)
    twin, output = duplicate(model), run(model)
    wake(twin)
    assert same(run(model), output)
    assert not same(run(twin), output)
    assert list(twin.state_dict()) == list(model.state_dict())
    assert same(run(remove(twin)), output)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


def test_blocks_still_follow_a_norm_that_is_converted():
    model = insert(insert(Nested(Normed()), "cgnl", "inner.norm"), "nl", "inner.norm")
    plain = run(model)
    wake(model)
    keys, output = list(model.state_dict()), run(model)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model.get_submodule("inner.norm"), nn.SyncBatchNorm)
    assert list(model.state_dict()) == keys
    for twin in (model, copy.deepcopy(model), through_a_file(model), nn.SyncBatchNorm.convert_sync_batchnorm(model)):
        assert same(run(twin), output)
    with pytest.raises(ValueError, match="already has a block after it"):
        insert(model, "cgnl", "inner.norm")
    assert same(run(remove(model)), plain)


@pytest.mark.parametrize("shared", [False, True])
def test_a_converted_norm_calls_only_blocks_that_followed_it(shared):
    model, other = insert(Normed(), "cgnl", "norm"), Normed()
    if shared:
        other.norm = model.norm  # a hook follows every call
    for network in (model, other):
        nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert [len(network.norm._forward_hooks) for network in (model, other)] == [1, int(shared)]
    for another in (nn.SyncBatchNorm(16), nn.Identity()):  # no conversion
        insert(remove(model), "cgnl", "norm").set_submodule("norm", another)
        assert not another._forward_hooks


@pytest.mark.parametrize("example", [None, torch.zeros(IMAGE)], ids=["unseen", "seen"])
def test_networks_compiled_before_have_the_block_and_lose_it_again(example):
    model, x = Looped().eval(), torch.randn(IMAGE)
    model.requires_grad_(False)
    compiled = torch.compile(model, backend="eager")
    before = compiled(x)
    insert(model, "cgnl", "stem", example=example)
    wake(model)
    torch.testing.assert_close(compiled(x), model(x))
    assert not torch.equal(compiled(x), before)
    remove(model)
    assert torch.equal(compiled(x), before)


def test_insert_runs_the_example_uncompiled():
    model = Looped().eval()
    model.compile(backend="eager")
    run(model)
    insert(model, "cgnl", "stem", example=EXAMPLE)
    assert list(inserted(model)) == ["stem_cgnl"]


@pytest.mark.parametrize("body", [nn.Sequential(conv(), conv()), None], ids=["child", "hook"])
def test_insert_compiles_without_breaks(body):
    model = insert(Looped(body), "cgnl", "body.0").eval()
    wake(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(IMAGE)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("block", ["cgnl", "cgnlx", "nl", "residual"])
def test_insert_leaves_a_model_fit_for_create_feature_extractor(block):
    model = insert(resnet18(), block, "layer3.0").eval()
    wake(model)
    x = torch.randn(IMAGE)
    features = create_feature_extractor(model, [f"layer3.0_{block}", "fc"])(x)
    assert features[f"layer3.0_{block}"].shape == (2, 256, 2, 2)
    assert torch.equal(features["fc"], model(x))


@pytest.mark.parametrize(
    "option",
    [
        {"example": torch.zeros(IMAGE)},
        {"example": (torch.zeros(IMAGE),)},
        {"example": {"x": torch.zeros(IMAGE)}},
        {"channels": 48},
    ],
    ids=["example", "example-arguments", "example-keywords", "channels"],
)
def test_insert_takes_channels_it_cannot_read_off(option):
    model = torchvision.models.DenseNet(growth_rate=16, block_config=(2, 2, 2, 2), num_init_features=16, bn_size=2)
    output = run(model)
    insert(model, "cgnl", "features.denseblock1", **option)
    assert (only_block(model).channels, only_block(model).ndim) == (48, 2)
    assert same(run(model), output)


def test_insert_example_tells_the_axes():
    model = nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(16))
    insert(model, "cgnl", "1", example=torch.zeros(2, 16, 3, 3))
    assert only_block(model).ndim == 1


def test_insert_example_leaves_training_flags_and_statistics():
    model = resnet18()
    model.get_submodule("layer1").eval()
    before, state = structure(model), copy.deepcopy(model.state_dict())
    remove(insert(model, "cgnl", ["layer1.0", "layer3.0"], example=torch.randn(IMAGE)))
    assert structure(model) == before
    assert same(list(model.state_dict().values()), list(state.values()))


@pytest.mark.parametrize("training", [True, False])
def test_insert_block_trains_when_its_surroundings_do(training):
    assert only_block(insert(Looped().train(training), "cgnl", "stem")).training is training


@pytest.mark.parametrize(
    ("dtype", "norm_dtype"),
    [(torch.float64, torch.float64), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)],
    ids=str,
)
@pytest.mark.parametrize("after", ["stem", "body.1"])
def test_insert_block_has_the_dtype_of_its_surroundings(after, dtype, norm_dtype):
    model = Looped(nn.Sequential(conv(), conv())).to(dtype)
    output = run(model)
    block = only_block(insert(model, "cgnl", after))
    assert {m.weight.dtype for m in (block.theta, block.phi, block.g, block.z)} == {dtype}
    assert block.norm.weight.dtype == norm_dtype
    assert same(run(model), output)


def test_insert_behind_a_module_without_parameters_follows_the_model():
    block = only_block(insert(conv1d_network().double(), "cgnl", "2"))
    assert block.theta.weight.dtype == torch.float64


def test_insert_block_is_on_the_device_of_its_surroundings():
    block = only_block(insert(Looped().to("meta"), "cgnl", "stem"))
    assert {p.device.type for p in [*block.parameters(), *block.buffers()]} == {"meta"}


class Custom(nn.Conv2d):
    def __init__(self, channels, kernel_size=1):
        super().__init__(channels, channels, kernel_size)


@pytest.mark.parametrize(
    ("block", "kind", "suffix"),
    [
        pytest.param("cgnl", cgnl.CGNL, "cgnl", id="name"),
        pytest.param("cgnlx", cgnl.CGNL, "cgnlx", id="name-of-a-variant"),
        pytest.param("nl", cgnl.NonLocal, "nl", id="name-nl"),
        pytest.param("residual", cgnl.SimpleResidual, "residual", id="name-residual"),
        pytest.param(cgnl.NonLocal, cgnl.NonLocal, "nl", id="class"),
        pytest.param(functools.partial(cgnl.CGNL, groups=4), cgnl.CGNL, "cgnl", id="partial"),
        pytest.param(
            lambda channels: cgnl.SimpleResidual(channels, groups=1), cgnl.SimpleResidual, "residual", id="callable"
        ),
        pytest.param(Custom, Custom, "custom", id="own-class"),
    ],
)
def test_insert_takes_blocks_as(block, kind, suffix):
    model = insert(Looped(), block, "stem")
    assert list(inserted(model)) == [f"stem_{suffix}"]
    assert type(only_block(model)) is kind


def test_insert_cgnlx_is_the_order_3_rbf_block():
    assert only_block(insert(Looped(), "cgnlx", "stem")).kernel == cgnl.kernels.GaussianRBF(order=3)


@pytest.mark.parametrize(
    "block", ["cgnl", cgnl.CGNL, functools.partial(cgnl.CGNL, groups=2)], ids=["name", "class", "partial"]
)
def test_insert_passes_options_and_axes_on(block):
    made = only_block(insert(conv1d_network(), block, "0", groups=4, norm="group", inner_channels=8))
    assert (made.groups, made.inner_channels, made.ndim, type(made.norm)) == (4, 8, 1, nn.GroupNorm)


def test_insert_partial_keeps_its_own_options():
    made = only_block(insert(conv1d_network(), functools.partial(cgnl.CGNL, groups=2, ndim=2), "0"))
    assert (made.groups, made.ndim) == (2, 2)


def test_insert_passes_options_to_a_callable():
    assert only_block(insert(Looped(), Custom, "stem", kernel_size=3)).kernel_size == (3, 3)


EXAMPLE = torch.zeros(IMAGE)


@pytest.mark.parametrize(
    ("after", "options", "message"),
    [
        pytest.param(["layer2.0", "layer3.9"], {}, "no module 'layer3.9'", id="unknown-name"),
        pytest.param(["layer2.0", "layer1.0"], {}, "'layer1.0' already has a block", id="place-taken"),
        pytest.param(["layer2.0", "layer2.0"], {}, "named twice: layer2.0, layer2.0", id="place-named-twice"),
        pytest.param([], {}, "after is empty", id="no-place"),
        pytest.param("", {}, "no module ''", id="the-model-itself"),
        pytest.param(
            ["layer4.0", "layer2.0"],
            {"groups": 256},
            "after 'layer2.0': channels // 2 = 64 .* groups = 256",
            id="groups",
        ),
        pytest.param(["layer2.0", "fc"], {"example": EXAMPLE}, r"output of 'fc' .* \[2, 4\]", id="no-feature-map"),
        pytest.param(["layer2.0", "spare"], {"example": EXAMPLE}, "never reached spare", id="example-misses-it"),
        pytest.param("layer2.0", {"channels": 0}, "channels = 0", id="no-channels"),
        pytest.param("layer2.0", {"grups": 3}, "'layer2.0': .* 'grups'; did you mean groups", id="unknown-option"),
        pytest.param("layer2.0", {"groups": True}, "groups must be a whole number, got True", id="truth"),
        pytest.param("layer2.0", {"channels": -8}, "channels = -8", id="negative-channels"),
    ],
)
def test_insert_refusal_changes_nothing(after, options, message):
    model = resnet18()
    model.add_module("spare", nn.Conv2d(3, 64, 1))
    insert(model, "cgnl", "layer1.0")
    before = structure(model)
    with pytest.raises(ValueError, match=message) as error:
        insert(model, "cgnl", after, **options)
    assert "\n" not in str(error.value)
    assert structure(model) == before


@pytest.mark.parametrize("after", ["layer2.0", "layer2.0.conv1"], ids=["child", "hook"])
def test_insert_refuses_a_second_block_of_a_kind(after):
    model = insert(resnet18(), "cgnl", after)
    with pytest.raises(ValueError, match=f"'{after}' already has a block after it"):
        insert(model, "cgnl", after)


@pytest.mark.parametrize("after", ["inner.stem", "inner.body.0"])
def test_insert_refuses_a_second_block_of_a_kind_by_another_name(after):
    model = Nested(Looped())
    insert(model.inner, "cgnl", after.removeprefix("inner."))
    for root, name in ((model, after), (nn.DataParallel(model), f"module.{after}")):
        with pytest.raises(ValueError, match=f"'{name}' already has a block"):
            insert(root, "cgnl", name)
    assert len(inserted(insert(model, "nl", after))) == 2


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("layer3.2", "layer3.0"),
        ("layr4.1", "layer4.1"),
        ("layer1.0.conv9", "layer1.0.conv1"),
        ("zzz", "conv1, bn1, relu"),
    ],
)
def test_insert_unknown_name_lists_close_ones(name, close):
    with pytest.raises(ValueError, match=f"no module '{name}' in the model; close to it: .*{close}"):
        insert(resnet18(), "cgnl", name)


def test_insert_refuses_an_unknown_block():
    with pytest.raises(ValueError, match="unknown block 'gcnl': choose one of cgnl, cgnlx, nl, residual"):
        insert(resnet18(), "gcnl", "layer3.0")


def test_insert_refuses_a_block_that_is_already_made():
    with pytest.raises(ValueError, match="block is an instance of CGNL: give its class"):
        insert(resnet18(), cast(Any, cgnl.CGNL(256)), "layer3.0")


@pytest.mark.parametrize("container", [nn.ModuleList([nn.Conv2d(3, 16, 1)]), nn.ModuleDict({"0": nn.Conv2d(3, 16, 1)})])
def test_insert_refuses_a_container_that_is_never_called(container):
    model = nn.Module()
    model.stages = container
    kind = type(container).__name__
    with pytest.raises(ValueError, match=rf"^'stages' is a {kind}, which is never called: name one of stages\.0$"):
        insert(model, "cgnl", "stages")


class Concatenating(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 16, 1), nn.Conv2d(3, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.other(x)], 1)  # [B, 32, H, W]


def test_insert_misread_channels_are_explained_when_the_block_is_called():
    x = torch.zeros(2, 3, 4, 4)
    model = insert(nn.Sequential(Concatenating()), "cgnl", "0")
    with pytest.raises(ValueError, match=r"got \[2, 32, 4, 4\] after '0': give cgnl\.insert an example= of the model"):
        model(x)
    assert insert(nn.Sequential(Concatenating()), "cgnl", "0", example=x)(x).shape == (2, 32, 4, 4)


class Counted(nn.Module):
    """Returns what each of its stages makes, by their numbers, as networks for features do."""

    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(*(nn.Conv2d(c, 16, 1) for c in (3, 16, 16)))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x := self.stages[i](x) for i in range(3)]


class Enumerated(Counted):
    """Runs them all, and returns some."""

    def forward(self, x: Tensor) -> list[Tensor]:
        features = [x := stage(x) for stage in self.stages]
        return [features[0], features[2]]


class Stage(nn.Module):
    """Runs its children, as timm's RegNets do."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.children():
            x = block(x)
        return x


class Staged(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage = Stage()

    def forward(self, x: Tensor) -> Tensor:
        return self.stage(x)


def count_calls(model: nn.Module, name: str, x: Tensor) -> int:
    calls = []
    handle = inserted(model)[name].register_forward_hook(lambda *_: calls.append(1))
    model(x)
    handle.remove()
    return len(calls)


@pytest.mark.parametrize("kind", [Counted, Enumerated])
def test_insert_example_finds_children_that_are_counted(kind):
    model, x = kind().eval(), torch.randn(2, 3, 4, 4)
    before = model(x)
    insert(model, "cgnl", "stages.1", example=x)
    assert list(inserted(model)) == ["stages_1_cgnl"]
    assert same(model(x), before)
    assert count_calls(model, "stages_1_cgnl", x) == 1
    with pytest.raises(ValueError, match=r"'stages\.1' already has a block after it: 'stages_1_cgnl'"):
        insert(model, "cgnl", "stages.1", example=x)
    assert list(remove(model).state_dict()) == list(kind().state_dict())


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3, 4, 4)], ids=["unseen", "seen"])
def test_insert_behind_a_child_of_a_stage_that_runs_its_children(example):
    model, x = Staged().eval(), torch.randn(2, 3, 4, 4)
    before = model(x)
    insert(model, "cgnl", "stage.a", example=example)
    assert count_calls(model, "stage_a_cgnl", x) == 1
    assert same([model(x)], [before])
    wake(model)
    first, block = model.stage.a, inserted(model)["stage_a_cgnl"]
    assert same([model(x)], [model.stage.b(block(nn.functional.conv2d(x, first.weight, first.bias)))])


class Nosy(Stage):
    """Does something else as soon as it has another child."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(vars(self)["_modules"]) == 2 else self.a(x)


def test_insert_refuses_where_a_child_more_changes_what_runs_wherever_it_is():
    model, x = Nosy(), torch.randn(2, 3, 4, 4)
    model.set_submodule("a", Nosy())
    with pytest.raises(ValueError, match=r"after 'a': .*other modules run"):
        insert(model, "cgnl", "a", example=x, groups=1)
    assert inserted(model) == {}


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3, 4, 4)], ids=["unseen", "seen"])
@pytest.mark.parametrize("channels", [16, 32])
@pytest.mark.parametrize("after", ["1", "3"])
def test_insert_behind_a_shared_module_takes_each_of_its_names(example, channels, after):
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 16, 1), relu, nn.Conv2d(16, channels, 1), relu)
    before = structure(model)
    insert(model, "cgnl", after, example=example)
    assert list(model._modules) == [*"0123"[: int(after) + 1], f"{after}_cgnl", *"0123"[int(after) + 1 :]]
    assert only_block(model).channels == (16 if after == "1" else channels)
    assert count_calls(model, f"{after}_cgnl", torch.zeros(2, 3, 4, 4)) == 1
    assert model[1] is model[3 if after == "3" else 4] is relu
    assert structure(remove(model)) == before


@pytest.mark.parametrize("example", [None, torch.zeros(2, 3, 9, 9)], ids=["unseen", "seen"])
def test_insert_behind_a_shared_module_of_a_list_follows_every_call(example):
    one = conv()
    model = insert(Looped(nn.ModuleList([one, one])), "cgnl", "body.1", example=example)
    assert count_calls(model, "body_1_cgnl", torch.zeros(2, 3, 9, 9)) == 2


def named_convs(*names: str) -> nn.Module:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, conv())
    return model


def test_insert_follows_its_own_target_where_names_begin_alike():
    model = named_convs("conv", "conv_b", "tail")
    insert(insert(model, "cgnl", "conv_b"), "cgnl", "conv")
    assert list(model._modules) == ["conv", "conv_cgnl", "conv_b", "conv_b_cgnl", "tail"]


@pytest.mark.parametrize("example", [None, torch.zeros(2, 16, 4, 4)], ids=["unseen", "seen"])
def test_insert_refuses_a_sequential_that_has_a_child_of_the_blocks_name(example):
    model = named_convs("a", "a_cgnl", "b")
    with pytest.raises(ValueError, match=r"'a': .* taken by 'a_cgnl'"):
        insert(model, "cgnl", ["b", "a"], example=example)
    assert list(model._modules) == ["a", "a_cgnl", "b"]


def test_insert_at_two_places_gives_each_its_block():
    """Both would be called a_0_cgnl."""
    model = nn.Module()
    model.a, model.a_0 = nn.ModuleList([nn.Conv2d(3, 16, 1)]), nn.Conv2d(16, 16, 1)
    assert len(inserted(insert(model, "cgnl", ["a.0", "a_0"]))) == 2


@pytest.mark.parametrize("whole", [True, False])
def test_insert_refuses_a_script_module(whole):
    model: Any = torch.jit.script(named_convs("a", "b"))
    model, name = (model, "a") if whole else (nn.Sequential(model), "0")
    with pytest.raises(ValueError, match=f"'{name}' is in a ScriptModule"):
        insert(model, "cgnl", name, channels=16)


def test_insert_example_refuses_a_module_that_is_called_with_different_channels():
    message = (
        "'layer3.0.relu' is called several times, with 256 and with 1024 channels: name a module that is called once"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        insert(torchvision.models.resnet50(), "cgnl", "layer3.0.relu", example=torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("hooked", [False, True], ids=["child", "hook"])
def test_insert_second_block_runs_behind_the_first(hooked):
    model, order = Looped() if hooked else resnet18(), []
    after = "stem" if hooked else "layer3.0"
    insert(insert(model, "cgnl", after), "nl", after)
    for name, block in inserted(model).items():
        block.register_forward_hook(lambda *_, name=name: order.append(name))
    run(model)
    assert [name.rpartition("_")[2] for name in order] == ["cgnl", "nl"]


def test_insert_takes_no_name_that_is_taken():
    """Behind a child of a list, the name made of the path to it may be another target's."""
    model = nn.Module()
    model.a, model.a_0 = nn.ModuleList([nn.Conv2d(3, 16, 1)]), nn.Conv2d(16, 16, 1)
    insert(insert(model, "cgnl", "a.0"), "cgnl", "a_0")
    assert sorted(inserted(model)) == ["a_0.a_0_cgnl", "a_0_cgnl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cgnl", None), "no place given"),
        ((None, "layer3.0"), "unknown block None: choose one of cgnl"),
        ((lambda c: 3, "layer3.0"), "after 'layer3.0': block makes a int, not a module"),  # noqa: ARG005
    ],
)
def test_insert_refuses_what_is_no_name_or_block(arguments, message):
    with pytest.raises(ValueError, match=message):
        insert(resnet18(), *arguments)


def test_insert_says_what_it_needs_where_nothing_tells_the_channels():
    with pytest.raises(ValueError, match="channels after '0': give channels= or example="):
        insert(nn.Sequential(nn.ReLU()), "cgnl", "0")


@pytest.mark.parametrize(
    ("name", "one", "five"),
    [
        ("resnet18", "layer3.0", None),
        ("resnet34", "layer3.4", ["layer2.1", "layer2.3", "layer3.1", "layer3.3", "layer3.5"]),
        ("resnet50", "layer3.4", ["layer2.1", "layer2.3", "layer3.1", "layer3.3", "layer3.5"]),
        ("resnet101", "layer3.21", ["layer2.1", "layer2.3", "layer3.6", "layer3.13", "layer3.20"]),
        ("resnet152", "layer3.34", ["layer2.3", "layer2.7", "layer3.11", "layer3.23", "layer3.35"]),
    ],
)
def test_placement_is_the_papers(name, one, five):
    assert placement(name) == placement(name, blocks=1) == [one]
    if five:
        assert placement(name, blocks=5) == five
    else:
        with pytest.raises(ValueError, match=rf"blocks = 5 is known for '{name}' \(only 1\)"):
            placement(name, blocks=5)


@pytest.mark.parametrize("variant", ["resnet{}_caffe", "c2d_resnet{}", "i3d_resnet{}"])
@pytest.mark.parametrize("depth", [50, 101])
@pytest.mark.parametrize("blocks", [1, 5])
def test_placement_of_a_variant_is_that_of_its_resnet(variant, depth, blocks):
    assert placement(variant.format(depth), blocks) == placement(f"resnet{depth}", blocks)


@pytest.mark.parametrize("blocks", [0, 2, -1, 6])
def test_placement_refuses_other_counts(blocks):
    with pytest.raises(ValueError, match=rf"blocks = {blocks} .* 'resnet50' \(only 1 or 5\): .* model\.after="):
        placement("resnet50", blocks)


@pytest.mark.parametrize("name", ["resnet", "resnet49", "vgg16", "my_resnet50", "resnet50_v2", "", None])
def test_placement_refuses_unknown_networks(name):
    with pytest.raises(ValueError, match=f"no placement is known for {name!r}"):
        placement(name)
