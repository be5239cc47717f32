from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from cgnl.engine.config import Optim, load
from cgnl.engine.optimizer import freeze, layer_rates, make_optimizer, parameter_groups
from cgnl.engine.schedule import set_lr
from cgnl.models import create_model
from tests.engine.conftest import Tiny


def test_make_optimizer_follows_the_settings():
    given = {"optim.momentum": 0.8, "optim.weight_decay": 0.01, "optim.nesterov": True, "optim.warmup_epochs": 1}
    optim = load(None, given).optim
    optimizer = make_optimizer(Tiny(3, 0.0), optim, lr=0.25)
    set_lr(optimizer, optim, steps_per_epoch=4, step=0)
    (group,) = optimizer.param_groups
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.8, 0.01, True)
    assert group["lr"] == pytest.approx(0.25 / 5)  # the first of four steps of warm-up


def test_make_optimizer_gives_new_layers_a_rate_of_their_own():
    network = create_model("resnet18", block="cgnl", num_classes=5)
    optim = load(None, {"optim.new_layers": 10, "optim.warmup_epochs": 0}).optim
    optimizer = make_optimizer(network, optim, lr=0.02)
    set_lr(optimizer, optim, steps_per_epoch=4, step=0)
    old, new = optimizer.param_groups
    assert (old["lr"], new["lr"]) == (pytest.approx(0.02), pytest.approx(0.2))
    names = {p: name for name, p in network.named_parameters()}
    assert {names[p].rpartition(".")[0] for p in new["params"]} == {
        "fc",
        *(f"layer3.0_cgnl.{part}" for part in ("theta", "phi", "g", "z", "norm")),
    }
    assert len(old["params"]) + len(new["params"]) == len(names)


def names_by_rate(network: nn.Module, optim: Optim) -> dict[str, float]:
    names = {p: name for name, p in network.named_parameters()}
    return {names[p]: g["initial_lr"] for g in parameter_groups(network, optim, 1.0) for p in g["params"]}


def test_layer_rates_fall_towards_the_input():
    network = torchvision.models.resnet18()
    rates = layer_rates(network, 0.5)
    assert rates["fc.weight"] == 1
    assert rates["layer4.1.conv2.weight"] == rates["layer4.1.bn1.bias"] == 0.5
    assert rates["layer4.0.downsample.0.weight"] == 0.25
    assert rates["conv1.weight"] == 0.5**10


def test_layer_decay_leaves_new_layers_at_their_own_rate():
    network = create_model("resnet18", block="cgnl", num_classes=5)
    rates = names_by_rate(network, Optim(layer_decay=0.5, new_layers=3.0))
    assert rates["fc.weight"] == rates["layer3.0_cgnl.z.weight"] == 3.0
    assert rates["layer4.1.conv1.weight"] == 0.5
    assert rates["conv1.weight"] < 0.5**9


def test_without_layer_decay_there_is_one_group():
    (group,) = parameter_groups(Tiny(3, 0.0), Optim(), 0.1)
    assert (group["initial_lr"], group["weight_decay"]) == (0.1, 1e-4)


def test_norms_and_biases_may_be_spared_from_the_decay():
    network = timm.create_model("vit_tiny_patch16_224", num_classes=3)
    names = {p: name for name, p in network.named_parameters()}
    decayed, spared = parameter_groups(network, Optim(decay_norms=False, optimizer="adamw"), 1.0), set()
    for group in decayed:
        spared |= {names[p] for p in group["params"]} if group["weight_decay"] == 0 else set()
    assert {"pos_embed", "cls_token", "blocks.0.norm1.weight", "blocks.0.attn.qkv.bias"} <= spared
    assert {g["weight_decay"] for g in decayed} == {0.0, 0.05}
    assert "blocks.0.attn.qkv.weight" not in spared


def test_adamw_is_torch_adamw():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizer = make_optimizer(ours, Optim(optimizer="adamw", betas=(0.8, 0.9), weight_decay=0.1), lr=0.01)
    expected = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.8, 0.9), weight_decay=0.1, fused=False)
    for step in range(3):
        x = torch.full((4, 3), float(step + 1))
        for network, optim in ((ours, optimizer), (theirs, expected)):
            optim.zero_grad()
            network(x).square().sum().backward()
            optim.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_adamw_skips_a_step_that_is_not_finite():
    network = nn.Linear(3, 2)
    optimizer: Any = make_optimizer(network, Optim(optimizer="adamw"), lr=0.01)
    before = network.weight.detach().clone()
    network(torch.full((1, 3), torch.nan)).sum().backward()
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(network.weight, before)
    assert all(float(state["step"]) == 0 for state in optimizer.state.values())


@pytest.mark.parametrize(
    ("build", "names", "frozen"),
    [
        (torchvision.models.resnet18, ["stem", "layer1"], {"conv1", "bn1", "layer1"}),
        (lambda: timm.create_model("vit_tiny_patch16_224"), ["stem", "blocks.0"], {"patch_embed", "blocks.0"}),
        (lambda: timm.create_model("convnext_atto"), ["stem"], {"stem"}),
    ],
)
def test_freeze_stops_weights_and_statistics(build, names, frozen):
    network = build().train()
    freeze(network, names)
    still = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert still == {name for name, _ in network.named_parameters() if name.startswith(tuple(f"{f}." for f in frozen))}
    assert not any(module.training for f in frozen for module in network.get_submodule(f).modules())
    assert network.training


def test_freeze_refuses_what_is_not_there():
    with pytest.raises(ValueError, match=r"optim\.freeze.*'layer9'"):
        freeze(torchvision.models.resnet18(), ["layer9"])
    with pytest.raises(ValueError, match="nothing to train"):
        freeze(nn.Sequential(nn.Linear(2, 2)), ["0"])
