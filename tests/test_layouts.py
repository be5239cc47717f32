"""Blocks after maps with channels last and after tokens, in networks of torchvision and timm."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torchvision
from timm.models import maxxvit
from torch import Tensor, nn
from torchvision.models import convnext, swin_transformer
from torchvision.models.feature_extraction import create_feature_extractor

import cgnl
from cgnl.layouts import Adapter
from cgnl.surgery import insert, inserted, remove

EXAMPLE = torch.zeros(2, 3, 32, 32)


def swin(version: int = 1, patch: int = 2) -> nn.Module:
    parts: dict[str, Any] = {}
    if version == 2:
        parts["block"] = swin_transformer.SwinTransformerBlockV2
        parts["downsample_layer"] = swin_transformer.PatchMergingV2
    return torchvision.models.SwinTransformer(
        [patch, patch], 16, [1, 2], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=4, **parts
    )


def vit() -> nn.Module:
    return torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=4)


def maxvit() -> nn.Module:
    return torchvision.models.MaxVit((32, 32), 16, 2, [16, 32], [1, 1], 8, 0.0, num_classes=4)


def convnext_of_torchvision() -> nn.Module:
    return convnext.ConvNeXt([convnext.CNBlockConfig(16, 32, 1), convnext.CNBlockConfig(32, None, 2)], num_classes=4)


def timm_swin(version: str = "swin_tiny_patch4_window7_224") -> nn.Module:
    return timm.create_model(
        version, img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(1, 2), num_heads=(2, 2), num_classes=4
    )


def timm_vit(name: str = "vit_tiny_patch16_224", **options) -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 4}
    return timm.create_model(name, **sizes, **options)


def timm_maxvit() -> nn.Module:
    sizes = maxxvit.MaxxVitTransformerCfg(dim_head=8, window_size=(2, 2), grid_size=(2, 2))
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16, 32), depths=(1, 1), block_type=("M", "M"), stem_width=16, transformer_cfg=sizes
    )
    return maxxvit.MaxxVit(config, img_size=32, num_classes=4)


def timm_convnext() -> nn.Module:
    return timm.create_model("convnext_atto", depths=(1, 2, 1, 1), dims=(16, 32, 32, 32), num_classes=4)


class Place(NamedTuple):
    """Where a block goes, and what must have been found out."""

    build: Callable[[], nn.Module]
    after: str
    layout: str
    channels: int
    prefix: int = 0
    needs_example: bool = False


PLACES = {
    "swin-patches": Place(swin, "features.0", "channels_last", 16),
    "swin-stage": Place(swin, "features.1", "channels_last", 16),
    "swin-merging": Place(swin, "features.2", "channels_last", 32),
    "swin-block": Place(swin, "features.3.0", "channels_last", 32),
    "swin-norm": Place(swin, "norm", "channels_last", 32),
    "swin-permute": Place(swin, "permute", "channels_first", 32, needs_example=True),
    "swin-v2-stage": Place(lambda: swin(2), "features.1", "channels_last", 16),
    "swin-v2-block": Place(lambda: swin(2), "features.3.1", "channels_last", 32),
    "vit-patches": Place(vit, "conv_proj", "channels_first", 32),
    "vit-dropout": Place(vit, "encoder.dropout", "tokens", 32, 1),
    "vit-block": Place(vit, "encoder.layers.encoder_layer_0", "tokens", 32, 1),
    "vit-norm": Place(vit, "encoder.ln", "tokens", 32, 1),
    "maxvit-block": Place(maxvit, "blocks.0", "channels_first", 16),
    "maxvit-layer": Place(maxvit, "blocks.1.layers.0", "channels_first", 32),
    "maxvit-attention": Place(
        maxvit, "blocks.1.layers.0.layers.window_attention", "channels_first", 32, needs_example=True
    ),
    "convnext-block": Place(convnext_of_torchvision, "features.3.0", "channels_first", 32),
    "convnext-stem": Place(convnext_of_torchvision, "features.0", "channels_first", 16),
    "timm-swin-patches": Place(timm_swin, "patch_embed", "channels_last", 16),
    "timm-swin-stage": Place(timm_swin, "layers.0", "channels_last", 16),
    "timm-swin-block": Place(timm_swin, "layers.1.blocks.0", "channels_last", 32),
    "timm-swin-v2": Place(lambda: timm_swin("swinv2_tiny_window8_256"), "layers.1.blocks.0", "channels_last", 32),
    "timm-vit-patches": Place(timm_vit, "patch_embed", "tokens", 32),
    "timm-vit-projection": Place(timm_vit, "patch_embed.proj", "channels_first", 32),
    "timm-vit-block": Place(timm_vit, "blocks.0", "tokens", 32, 1),
    "timm-vit-registers": Place(lambda: timm_vit(reg_tokens=4), "blocks.0", "tokens", 32, 5),
    "timm-vit-pooled": Place(lambda: timm_vit(class_token=False, global_pool="avg"), "blocks.0", "tokens", 32),
    "timm-deit": Place(lambda: timm_vit("deit_tiny_distilled_patch16_224"), "blocks.1", "tokens", 32, 2),
    "timm-convnext": Place(timm_convnext, "stages.1.blocks.0", "channels_first", 32),
    "timm-maxvit": Place(timm_maxvit, "stages.1.blocks.0", "channels_first", 32),
    "timm-maxvit-attention": Place(
        timm_maxvit, "stages.1.blocks.0.attn_block", "channels_last", 32, needs_example=True
    ),
}


def only_block(model: nn.Module) -> Any:
    (block,) = inserted(model).values()
    return block


def wake(model: nn.Module) -> None:
    """Make the block add 1 to all that it sees."""
    nn.init.ones_(only_block(model).norm.bias)


def get_output(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """What the module returned, before any block that a hook calls."""
    seen = []
    with model.get_submodule(name).register_forward_hook(lambda *given: seen.append(given[-1]), prepend=True):
        model(x)
    return seen[0]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen"])
def test_insert_finds_the_layout_and_keeps_keys_and_output(place, seen):
    model, x = place.build().eval(), torch.randn(2, 3, 32, 32)
    if place.needs_example and not seen:
        with pytest.raises(ValueError, match=rf"layout after '{place.after}': give example=, or layout="):
            insert(model, "cgnl", place.after)
        return
    keys, before, plain = list(model.state_dict()), model(x), str(model)
    insert(model, "cgnl", place.after, example=EXAMPLE if seen else None)
    block = only_block(model)
    adapters = [module for module in model.modules() if isinstance(module, Adapter)]
    assert [a.features.layout for a in adapters] == [place.layout] * (place.layout != "channels_first")
    assert (block.channels, block.ndim) == (place.channels, 1 if place.layout == "tokens" else 2)
    assert [key for key in model.state_dict() if key in keys] == keys
    assert torch.equal(model(x), before)

    wake(model)
    (holder,) = adapters or [block]
    y = get_output(model, place.after, x)
    with torch.no_grad():
        assert torch.equal(holder(y)[:, : place.prefix], y[:, : place.prefix])
        torch.testing.assert_close(holder(y)[:, place.prefix :], y[:, place.prefix :] + 1)
    calls = []
    with holder.register_forward_hook(lambda *given: calls.append(given[1][0])):
        model(x)
    assert [torch.equal(given, y) for given in calls] == [True]

    remove(model)
    assert (list(model.state_dict()), str(model)) == (keys, plain)
    assert torch.equal(model(x), before)


def test_insert_at_a_size_where_channels_height_and_width_are_alike():
    model, x = swin().eval(), torch.randn(2, 3, 32, 32)  # [2, 16, 16, 16]
    assert get_output(model, "features.1", x).shape == (2, 16, 16, 16)
    insert(model, "cgnl", "features.1", example=x)
    wake(model)
    block, seen = only_block(model), []
    block.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    y = get_output(model, "features.1", x)
    assert torch.equal(seen[0], y.permute(0, 3, 1, 2))


class Unknown(nn.Module):
    """Layers of both kinds: its maps may have their channels anywhere."""

    def __init__(self, last: bool = True):
        super().__init__()
        self.last, self.conv, self.linear = last, nn.Conv2d(3, 16, 1), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.conv(x).movedim(1, -1))
        return y if self.last else y.movedim(-1, 1)


@pytest.mark.parametrize("last", [True, False])
def test_insert_refuses_axes_that_it_cannot_tell_apart(last):
    model, x = nn.Sequential(Unknown(last)), torch.zeros(2, 3, 16, 16)
    message = (
        r"which axis of the output of '0', \[2, 16, 16, 16\], .* layout='channels_first' or layout='channels_last'"
    )
    with pytest.raises(ValueError, match=message):
        insert(model, "cgnl", "0", example=x)
    assert inserted(model) == {}
    layout = "channels_last" if last else "channels_first"
    insert(model, "cgnl", "0", example=x, layout=layout)
    assert isinstance(model[1], Adapter) == last
    insert(nn.Sequential(Unknown(last)), "cgnl", "0", example=torch.zeros(2, 3, 8, 8))


def test_insert_refuses_an_output_of_which_no_axis_fits_the_layers():
    """As in attention: weights of heads, and tokens beside a convolution of a part of their channels."""
    model = nn.Sequential(nn.Conv2d(3, 8, (4, 2), (4, 2)), nn.Flatten(1, 2))
    with pytest.raises(ValueError, match=r"'1', \[2, 64, 16\], are the channels: .* layout="):
        insert(model, "cgnl", "1", example=EXAMPLE)
    model = timm_vit()
    weights: Any = model.get_submodule("blocks.0.attn")
    weights.fused_attn = False
    with pytest.raises(ValueError, match=r"attn_drop', \[2, 2, 17, 17\], are the channels: .* layout="):
        insert(model, "cgnl", "blocks.0.attn.attn_drop", example=EXAMPLE)


@pytest.mark.parametrize("name", ["cait_xxs24_224", "xcit_nano_12_p16_224"])
def test_insert_before_the_class_token_is_added(name):
    """Not the first position passes by the block: it sees all, or says that it cannot know."""
    options: dict[str, Any] = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 4}
    model = timm.create_model(name, patch_size=16 if "p16" in name else 8, **options).eval()
    count = 4 if "p16" in name else 16
    insert(model, "residual", "blocks.0")
    with pytest.raises(ValueError, match=rf"the {count} tokens after 'blocks\.0' .* 1 class .* example="):
        model(EXAMPLE)
    insert(remove(model), "residual", "blocks.0", example=EXAMPLE)
    (block,), seen = inserted(model).values(), []
    block.register_forward_hook(lambda _module, args, _output: seen.append(args[0].shape))
    model(EXAMPLE)
    assert seen == [(2, 32, count)]


def count_positions(model: nn.Module, x: Tensor) -> list[int]:
    """How many positions the block sees."""
    seen = []
    with only_block(model).register_forward_hook(lambda _module, args, _output: seen.append(args[0].shape[-1])):
        model(x)
    return seen


OBLONG = torch.zeros(1, 3, 208, 240)  # 195 patches: with a class token a square


@pytest.mark.parametrize("options", [{"img_size": (208, 240)}, {"img_size": 32, "dynamic_img_size": True}])
def test_insert_counts_class_tokens_where_grids_are_no_squares(options):
    sizes: dict[str, Any] = {"patch_size": 16, "depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 4}
    model = timm.create_model("vit_tiny_patch16_224", **sizes, **options).eval()
    insert(model, "residual", "blocks.0", example=OBLONG)
    assert count_positions(model, OBLONG) == [195]
    insert(remove(model), "residual", "blocks.0", prefix=1)
    assert count_positions(model, OBLONG) == [195]
    insert(remove(model), "residual", "blocks.0")
    if "dynamic_img_size" in options:
        with pytest.raises(ValueError, match=r"the 196 tokens after 'blocks\.0' .* 1 class .* example=.* prefix="):
            model(OBLONG)
    else:
        assert count_positions(model, OBLONG) == [195]


def test_insert_counts_no_class_token_before_it_is_added_where_grids_are_no_squares():
    x = torch.zeros(1, 3, 224, 192)
    sizes: dict[str, Any] = {"img_size": 224, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 4}
    model = timm.create_model("xcit_nano_12_p16_224", patch_size=16, **sizes).eval()
    insert(model, "residual", "blocks.0", example=x)
    assert count_positions(model, x) == [168]
    insert(remove(model), "residual", "blocks.0")
    with pytest.raises(ValueError, match=r"the 168 tokens after 'blocks\.0' .* 1 class .* example="):
        model(x)
    insert(remove(model), "residual", "cls_attn_blocks.0", example=x)
    assert count_positions(model, x) == [168]


class Undeclared(nn.Module):
    """Puts tokens before the patches, of which no name tells."""

    def __init__(self, convolution: bool):
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, 4) if convolution else nn.Linear(48, 16)
        self.first, self.layer = nn.Parameter(torch.zeros(1, 1, 16)), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.embed, nn.Conv2d):
            x = self.embed(x).flatten(2).mT
        else:
            x = self.embed(nn.functional.unfold(x, 4, stride=4).mT)
        return self.layer(torch.cat([self.first.expand(len(x), -1, -1), x], 1))


@pytest.mark.parametrize("convolution", [True, False])
def test_insert_refuses_tokens_that_are_more_than_the_patches(convolution):
    model = Undeclared(convolution).eval()
    with pytest.raises(ValueError, match=r"the 65 tokens after 'layer' .* give prefix="):
        insert(model, "residual", "layer", example=EXAMPLE, layout="tokens")
    assert inserted(model) == {}
    insert(model, "residual", "layer", example=EXAMPLE, layout="tokens", prefix=1)
    assert count_positions(model, EXAMPLE) == [64]


@pytest.mark.parametrize("prefix", [-1, 1.5, "1"])
def test_insert_refuses_a_prefix_that_is_no_number(prefix):
    with pytest.raises(ValueError, match=f"prefix must be a whole number, 0 or more, got {prefix!r}"):
        insert(vit(), "residual", "encoder.ln", prefix=prefix)


@pytest.mark.parametrize("example", [None, EXAMPLE], ids=["unseen", "seen"])
def test_insert_refuses_a_prefix_of_maps(example):
    with pytest.raises(ValueError, match=r"prefix = 1 .* 'features\.1' is channels_last"):
        insert(swin(), "cgnl", "features.1", prefix=1, example=example)


def test_insert_wrong_guess_is_explained_when_the_block_is_called():
    x = torch.zeros(2, 3, 8, 9)
    model = insert(nn.Sequential(Unknown(last=True)), "cgnl", "0")
    with pytest.raises(ValueError, match=r"\[2, 8, 9, 16\] after '0': give cgnl\.insert an example= .*, or layout="):
        model(x)
    model = insert(nn.Sequential(Unknown(last=False)), "cgnl", "0", layout="channels_last")
    with pytest.raises(ValueError, match=r"\[B, H, W, 16\] .* \[2, 16, 8, 9\] after '0': .* layout="):
        model(x)
    model = insert(nn.Sequential(Unknown()), "cgnl", "0", layout="tokens")
    with pytest.raises(ValueError, match=r"\[B, N, 16\] \(tokens\)"):
        model(x)


class Contrary(nn.Module):
    """Moves its channels last without a word."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).movedim(1, -1)


def test_insert_refuses_what_contradicts_its_layers():
    model, x = nn.Sequential(Contrary()), torch.zeros(2, 3, 8, 9)
    with pytest.raises(ValueError, match=r"'0', \[2, 8, 9, 16\], seems to be channels_last, .* give layout="):
        insert(model, "cgnl", "0", example=x)
    insert(model, "cgnl", "0", example=x, layout="channels_last")
    assert model(x).shape == (2, 8, 9, 16)


def test_insert_refuses_an_unknown_layout():
    with pytest.raises(ValueError, match=r"layout must be one of auto, .*, got 'nhwc'"):
        insert(swin(), "cgnl", "features.1", layout="nhwc")


def test_insert_refuses_maps_that_are_said_to_be_tokens():
    with pytest.raises(ValueError, match=r"'features\.1' is not \[B, N, C\], .* \[2, 16, 16, 16\]"):
        insert(swin(), "cgnl", "features.1", layout="tokens", example=EXAMPLE)


def test_insert_refuses_a_block_of_two_axes_for_tokens():
    with pytest.raises(ValueError, match="one position axis, and the block has ndim = 2"):
        insert(vit(), "cgnl", "encoder.ln", ndim=2)


@pytest.mark.parametrize("example", [None, torch.zeros(5, 2, 16)], ids=["unseen", "seen"])
def test_insert_refuses_tokens_that_come_before_the_batch(example):
    model = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32))
    with pytest.raises(ValueError, match=r"batch_first=True|layout after '0'"):
        insert(model, "cgnl", "0", example=example)


def test_insert_into_a_plain_transformer():
    model, x = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval(), torch.randn(2, 5, 16)
    before = model(x)
    options: list[dict[str, Any]] = [{"layout": "tokens"}, {"example": x}]
    for option in options:
        insert(model, "cgnl", "0", **option)
        assert torch.equal(model(x), before)
        remove(model)


def test_insert_after_a_linear_layer_asks_for_the_layout():
    with pytest.raises(ValueError, match="layout after '0': give example="):
        insert(nn.Sequential(nn.Linear(3, 16)), "cgnl", "0")


def test_insert_into_a_video_network_with_channels_last():
    model = torchvision.models.video.swin_transformer.SwinTransformer3d(
        [2, 4, 4], 16, [1, 1], [2, 2], [2, 4, 4], stochastic_depth_prob=0.0, num_classes=4
    ).eval()
    x = torch.randn(1, 3, 4, 32, 32)
    before = model(x)
    insert(model, "cgnl", "features.0")
    assert only_block(model).ndim == 3
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("block", ["cgnl", "cgnlx", "nl", "residual"])
@pytest.mark.parametrize("build", [swin, vit], ids=["channels_last", "tokens"])
def test_every_block_may_follow(build, block):
    model, x = build().eval(), torch.randn(2, 3, 32, 32)
    before = model(x)
    assert torch.equal(insert(model, block, "features.3.0" if build is swin else "encoder.ln")(x), before)


def test_blocks_behind_blocks_and_stages_have_their_layout():
    model, x = swin().eval(), torch.randn(2, 3, 32, 32)
    before = model(x)
    insert(model, "cgnl", "features.3.1")
    insert(model, "nl", ["features.3.1_cgnl", "features.3"])
    insert(model, "residual", "features.3.1")
    inside = ["0", "1", "1_cgnl", "1_cgnl_nl", "1_residual"]
    assert [name for name, _ in model.get_submodule("features.3").named_children()] == inside
    assert len([module for module in model.modules() if isinstance(module, Adapter)]) == 4
    assert torch.equal(model(x), before)
    with pytest.raises(ValueError, match=r"'features\.3\.1' already has a block"):
        insert(model, "cgnl", "features.3.1")
    assert inserted(remove(model)) == {}


@pytest.mark.parametrize("build", [swin, vit], ids=["channels_last", "tokens"])
def test_adapted_models_are_copied_compiled_and_traced(build):
    name = "features.3.0" if build is swin else "encoder.layers.encoder_layer_0"
    model, x = insert(build(), "cgnl", name).eval(), torch.randn(2, 3, 32, 32)
    wake(model)
    y = model(x)
    assert torch.equal(copy.deepcopy(model)(x), y)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), y)
    found = create_feature_extractor(model, [f"{name}_cgnl"])(x)[f"{name}_cgnl"]
    torch.testing.assert_close(found, model.get_submodule(f"{name}_cgnl")(get_output(model, name, x)))


def test_a_module_of_somebody_elses_sees_channels_first():
    model = insert(vit(), lambda channels: nn.Conv1d(channels, channels, 1), "encoder.ln", example=EXAMPLE)
    assert model(EXAMPLE).shape == (2, 4)
    assert "prefix=1" in repr(model)


def test_weights_of_the_plain_network_are_loaded():
    model, plain = insert(swin(), "cgnl", "features.3.0"), swin().state_dict()
    new = cgnl.models.load_weights(model, plain).new
    assert {name.rpartition(".block.")[0] for name in new} == {"features.3.0_cgnl"}
