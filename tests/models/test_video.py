import pytest
import torch
from torch import nn

from cgnl.models import create_model, load_weights
from cgnl.models.video import inflate_weight
from tests.conftest import EXACT, relative_error

NETWORKS = ["c2d_resnet50", "c2d_resnet101", "i3d_resnet50", "i3d_resnet101"]


def on_meta(network: str) -> nn.Module:
    with torch.device("meta"):
        return create_model(network)


def convolutions(network: str) -> dict[str, nn.Conv3d]:
    return {name: m for name, m in on_meta(network).named_modules() if isinstance(m, nn.Conv3d)}


@pytest.fixture(scope="module")
def image_network() -> nn.Module:
    return create_model("resnet50", num_classes=10).double().eval()


@pytest.mark.parametrize("network", NETWORKS)
def test_video_resnet_has_the_papers_feature_maps(network):
    model, sizes = on_meta(network), {}
    expected = {
        "conv1": (16, 112, 112),
        "maxpool": (8, 56, 56),
        "layer1.2": (8, 56, 56),
        "layer1": (4, 56, 56),
        "layer2": (4, 28, 28),
        "layer3": (4, 14, 14),
        "layer4": (4, 7, 7),
    }
    for place in expected:
        note = lambda _module, _args, out, place=place: sizes.update({place: tuple(out.shape[2:])})  # noqa: E731
        model.get_submodule(place).register_forward_hook(note)
    assert model(torch.empty(1, 3, 32, 224, 224, device="meta")).shape == (1, 1000)
    assert sizes == expected


@pytest.mark.parametrize("network", NETWORKS)
def test_video_resnet_pools_and_strides_over_time(network):
    model = on_meta(network)
    pools = [(m.kernel_size, m.stride) for m in model.modules() if isinstance(m, nn.MaxPool3d)]
    assert pools == [((2, 3, 3), (2, 2, 2)), ((2, 1, 1), (2, 1, 1))]
    strides = {name: conv.stride[0] for name, conv in convolutions(network).items()}
    assert strides == {name: 2 if name == "conv1" else 1 for name in strides}


@pytest.mark.parametrize("network", ["c2d_resnet18", "i3d_resnet50"])
def test_video_resnet_names_the_fewest_frames_it_takes(network):
    model = on_meta(network).eval()
    assert model(torch.empty(1, 3, 7, 32, 32, device="meta")).shape == (1, 1000)
    with pytest.raises(ValueError, match="at least 7 frames, got 6"):
        model(torch.empty(1, 3, 6, 32, 32, device="meta"))


@pytest.mark.parametrize("depth", [50, 101])
def test_c2d_resnet_kernels_are_flat_in_time(depth):
    convs = convolutions(f"c2d_resnet{depth}")
    assert convs["conv1"].kernel_size == (1, 7, 7)
    assert {conv.kernel_size for conv in convs.values()} == {(1, 1, 1), (1, 3, 3), (1, 7, 7)}


@pytest.mark.parametrize(("depth", "res4"), [(50, (0, 2, 4)), (101, range(0, 23, 2))])
def test_i3d_resnet_kernels_are_long_where_the_paper_has_them(depth, res4):
    convs = convolutions(f"i3d_resnet{depth}")
    blocks = ["layer1.0", "layer1.1", "layer1.2", "layer2.0", "layer2.2", *(f"layer3.{i}" for i in res4), "layer4.1"]
    long = {name: conv.kernel_size for name, conv in convs.items() if conv.kernel_size[0] > 1}
    assert long == {"conv1": (5, 7, 7)} | {f"{block}.conv1": (3, 1, 1) for block in blocks}


@pytest.mark.parametrize("width", [1, 3, 5])
def test_inflate_weight_adds_up_to_the_flat_kernel(width):
    weight = torch.randn(4, 3, 7, 7, dtype=torch.float64)
    inflated = inflate_weight(weight, width)
    assert inflated.shape == (4, 3, width, 7, 7)
    assert torch.equal(inflated.amin(2), inflated.amax(2))
    assert relative_error(inflated.sum(2), weight) < EXACT


def inflated(network: str, image_network: nn.Module) -> nn.Module:
    model = create_model(network, num_classes=10).double().eval()
    load_weights(model, image_network.state_dict())
    return model


def still_clip(frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    image = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    return image, image.unsqueeze(2).expand(-1, -1, frames, -1, -1)


@torch.no_grad()
def test_c2d_resnet_on_a_still_clip_gives_the_image_networks_logits(image_network):
    image, clip = still_clip(8)
    assert relative_error(inflated("c2d_resnet50", image_network)(clip), image_network(image)) < EXACT


@torch.no_grad()
def test_i3d_resnet_on_a_still_clip_gives_the_image_networks_features_away_from_its_ends(image_network):
    model = inflated("i3d_resnet50", image_network)
    image, clip = still_clip(40)
    for stage in ("conv1", "bn1", "relu", "maxpool", "layer1"):
        clip, image = model.get_submodule(stage)(clip), image_network.get_submodule(stage)(image)
    assert clip.shape[2] == 5
    assert relative_error(clip[:, :, 2], image) < EXACT < relative_error(clip[:, :, 0], image)


def test_video_resnet_starts_from_an_inflated_image_network():
    weight = create_model("i3d_resnet50", num_classes=2).get_parameter("conv1.weight")
    assert torch.equal(weight.amin(2), weight.amax(2))
