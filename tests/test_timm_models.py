"""timm's ResNets with blocks."""

import subprocess
import sys
from typing import Any

import pytest
import timm
import torch

from cgnl.surgery import STAGES, inserted, placement
from cgnl.timm_models import run_script

create: Any = timm.create_model


def test_every_depth_and_block_is_registered():
    names = [f"{block}_resnet{depth}" for depth in STAGES for block in ("cgnl", "cgnlx", "nl")]
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
