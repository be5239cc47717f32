"""timm's ResNets with blocks."""

import subprocess
import sys
from typing import Any

import pytest
import timm
import torch

import cgnl
from cgnl.heads import KINDS, second_order_pools
from cgnl.surgery import STAGES, inserted, placement
from cgnl.timm_models import run_script

create: Any = timm.create_model


def test_every_depth_and_block_is_registered():
    names = [f"{kind}_resnet{depth}" for depth in STAGES for kind in ("cgnl", "cgnlx", "nl", "covariance")]
    assert set(names) <= set(timm.list_models())


def test_create_model_takes_timms_arguments():
    model = create("cgnl_resnet18", num_classes=7, in_chans=1, block_options={"groups": 4})
    (name,) = inserted(model)
    assert name == f"{placement('resnet18')[0]}_cgnl"
    assert model.get_submodule(name).groups == 4
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 7)
    model.reset_classifier(3)
    features = model.forward_features(torch.randn(2, 1, 64, 64))
    assert features.shape == (2, 512, 2, 2)
    assert model.forward_head(features, pre_logits=True).shape == (2, 512)
    assert model.forward_head(features).shape == (2, 3)


def test_create_model_places_five_blocks():
    model = create("nl_resnet34", blocks=5)
    assert list(inserted(model)) == [f"{place}_nl" for place in placement("resnet34", 5)]


def test_create_model_takes_other_places():
    assert list(inserted(create("cgnl_resnet18", after=["layer2.0", "layer4.1"]))) == ["layer2.0_cgnl", "layer4.1_cgnl"]


def test_features_only_gives_what_the_stages_give():
    network = create("cgnl_resnet18", features_only=True, out_indices=(2, 3)).eval()
    assert network.feature_info.channels() == [128, 256]
    assert "layer3.0_cgnl.theta.weight" in network.state_dict()
    whole, seen, x = create("cgnl_resnet18").eval(), [], torch.randn(1, 3, 64, 64)
    whole.load_state_dict(network.state_dict(), strict=False)
    whole.layer3.register_forward_hook(lambda m, a, y: seen.append(y))  # noqa: ARG005
    whole(x)
    assert torch.equal(network(x)[1], seen[0])


def test_pretrained_is_the_plain_network_until_it_is_trained(tmp_path):
    plain, x = create("resnet18").eval(), torch.randn(1, 3, 64, 64)
    torch.save(plain.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    model = create("cgnl_resnet18", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    assert torch.equal(model(x), plain(x))
    assert model.pretrained_cfg["architecture"] == "cgnl_resnet18"
    for name in ("mean", "std", "input_size", "interpolation", "crop_pct", "hf_hub_id"):
        assert model.pretrained_cfg[name] == plain.pretrained_cfg[name]


def test_pretrained_takes_weights_with_blocks(tmp_path):
    trained = create("cgnl_resnet18", num_classes=1000).eval()
    torch.nn.init.normal_(trained.get_submodule("layer3.0_cgnl").norm.weight)
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    overlay, x = {"file": str(tmp_path / "weights.pth")}, torch.randn(1, 3, 64, 64)
    model = create("cgnl_resnet18", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    assert torch.equal(model(x), trained(x))


def test_pretrained_refuses_weights_of_another_network(tmp_path):
    state = create("resnet18").state_dict()
    state.pop("layer1.0.conv1.weight")
    torch.save(state, tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    with pytest.raises(RuntimeError, match=r"layer1\.0\.conv1\.weight"):
        create("cgnl_resnet18", pretrained=True, pretrained_cfg_overlay=overlay)


def saved(model, tmp_path) -> dict[str, str]:
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    return {"file": str(tmp_path / "weights.pth")}


def shake(model) -> None:
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.add_(0.01 * torch.randn_like(value))


@pytest.mark.parametrize("head", KINDS)
def test_head_takes_the_place_of_the_average(head):
    """The same weights in the network of create_model give the same."""
    model = create("cgnl_resnet18", head=head, reduced=8, num_classes=5).eval()
    ours = cgnl.create_model("resnet18", block="cgnl", head=head, reduced=8, num_classes=5).eval()
    ours.load_state_dict({n.replace("global_pool.", "avgpool."): v for n, v in model.state_dict().items()})
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model(x), ours(x))
    assert list(second_order_pools(model)) == ["global_pool"]


def test_head_works_with_timms_methods():
    model = create("covariance_resnet18", reduced=8, num_classes=5).eval()
    pool, x = model.global_pool, torch.randn(2, 3, 64, 64)
    assert not inserted(model)
    assert (model.num_features, model.head_hidden_size) == (512, 36)
    assert model.get_classifier() is model.fc
    assert model.fc.in_features == 36
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    assert (features.shape, pooled.shape) == ((2, 512, 2, 2), (2, 36))
    torch.testing.assert_close(model.forward_head(features), model.fc(pooled))
    torch.testing.assert_close(model(x), model.fc(pooled))
    model.reset_classifier(3)
    assert model.global_pool is pool
    assert (model.fc.in_features, model.fc.out_features, model.fc.training) == (36, 3, False)
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), pooled)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), features)
    assert model.head_hidden_size == 512
    model.reset_classifier(7)
    assert isinstance(model.global_pool, cgnl.SecondOrderPool)
    assert model(x).shape == (2, 7)


def test_bilinear_head_keeps_its_gain_with_a_new_classifier():
    model = create("cgnl_resnet18", head="bilinear", reduced=16, num_classes=5).eval()
    model.reset_classifier(3)
    x = torch.randn(2, 3, 64, 64)
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    torch.testing.assert_close(model(x), 4 * features @ model.fc.weight.T + model.fc.bias)


def test_no_classes_give_the_features_of_a_head():
    model, x = create("covariance_resnet18", reduced=8, num_classes=0).eval(), torch.randn(2, 3, 64, 64)
    assert model(x).shape == (2, model.head_hidden_size) == (2, 36)
    assert create("covariance_resnet18", num_classes=0, global_pool="").eval()(x).shape == (2, 512, 2, 2)


@pytest.mark.parametrize("options", [{}, {"feature_cls": "getter"}], ids=str)
def test_features_only_leaves_a_head_out(options, tmp_path):
    plain, x = create("resnet18").eval(), torch.randn(1, 3, 64, 64)
    network = create(
        "covariance_resnet18",
        features_only=True,
        out_indices=(3, 4),
        pretrained=True,
        pretrained_cfg_overlay=saved(plain, tmp_path),
        **options,
    ).eval()
    last = network(x)[-1]
    assert torch.equal(last, plain.forward_features(x))


@pytest.mark.parametrize("classes", [1000, 10, 0])
def test_pretrained_keeps_a_new_head_and_its_classifier(tmp_path, classes):
    plain = create("resnet18").eval()
    shake(plain)
    options = {"reduced": 8, "num_classes": classes, "pretrained_cfg_overlay": saved(plain, tmp_path)}
    model = create("cgnl_resnet18", head="covariance", pretrained=True, **options).eval()
    theirs, ours = plain.state_dict(), model.state_dict()
    shared = [name for name in theirs if not name.startswith("fc.")]
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    new = {name.split(".")[0] for name in ours if name not in shared and "_cgnl" not in name}
    assert new == ({"global_pool", "fc"} if classes else {"global_pool"})
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model.forward_features(x), plain.forward_features(x))


@pytest.mark.parametrize("name", ["cgnl_resnet18", "covariance_resnet18"])
def test_pretrained_takes_weights_with_a_head(tmp_path, name):
    options = {"head": "covariance", "reduced": 8, "num_classes": 1000}
    trained, x = create(name, **options).eval(), torch.randn(2, 3, 64, 64)
    shake(trained)
    model = create(name, pretrained=True, pretrained_cfg_overlay=saved(trained, tmp_path), **options).eval()
    assert torch.equal(model(x), trained(x))
    assert all(torch.equal(v, trained.state_dict()[n]) for n, v in model.state_dict().items())


def test_pretrained_takes_trained_blocks_beside_a_new_head(tmp_path):
    trained = create("cgnl_resnet18").eval()
    shake(trained)
    options = {"head": "compact", "pretrained": True, "pretrained_cfg_overlay": saved(trained, tmp_path)}
    model, name = create("cgnl_resnet18", **options), "layer3.0_cgnl.theta.weight"
    assert torch.equal(model.state_dict()[name], trained.state_dict()[name])
    assert model.fc.in_features == 256


def test_pretrained_refuses_half_of_a_head(tmp_path):
    trained = create("covariance_resnet18", reduced=8)
    trained.global_pool.norm = torch.nn.Identity()
    options = {"reduced": 8, "pretrained": True, "pretrained_cfg_overlay": saved(trained, tmp_path)}
    with pytest.raises(RuntimeError, match=r"global_pool\.norm\.weight"):
        create("covariance_resnet18", **options)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("cgnl_resnet18", {"reduced": 8}, "reduced = 8"),
        ("cgnl_resnet18", {"head": "gap"}, "gap.*covariance"),
        ("covariance_resnet18", {"global_pool": "max"}, "global_pool = 'max'"),
        ("covariance_resnet18", {"blocks": 5}, "no block"),
        ("covariance_resnet18", {"reduced": 513}, "reduced = 513"),
    ],
    ids=str,
)
def test_head_refuses(name, options, says):
    with pytest.raises(ValueError, match=says):
        create(name, **options)


def test_reset_classifier_refuses_another_pooling_and_changes_nothing():
    model = create("covariance_resnet18", reduced=8, num_classes=5)
    fc = model.fc
    with pytest.raises(ValueError, match="global_pool = 'avgmax'"):
        model.reset_classifier(3, "avgmax")
    assert (model.fc, model.num_classes) == (fc, 5)


def test_run_script_gives_it_the_networks_and_its_arguments(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text("import sys, timm\nprint(__name__, sys.argv[1:], timm.is_model('cgnlx_resnet101'))\n")
    monkeypatch.setattr(sys, "argv", [])
    run_script(str(script), "--model", "cgnlx_resnet101")
    assert capsys.readouterr().out == "__main__ ['--model', 'cgnlx_resnet101'] True\n"
    with pytest.raises(SystemExit, match="usage: "):
        run_script()


def test_cgnl_does_not_import_timm():
    script = "import cgnl, sys; cgnl.create_model; print('timm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
