import itertools
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cgnl.engine.config import load
from cgnl.engine.optimizer import (
    Average,
    freeze,
    layer_rates,
    lr_factor,
    make_optimizer,
    parameter_groups,
    peak_lr,
    set_lr,
)
from cgnl.engine.settings import Optim
from cgnl.models import create_model
from tests.engine.conftest import Tiny


def test_make_optimizer_follows_the_settings():
    given = {"optim.momentum": 0.8, "optim.weight_decay": 0.01, "optim.nesterov": True}
    optim = load(None, given).optim
    optimizer = make_optimizer(Tiny(3, 0.0), optim, lr=0.25)
    set_lr(optimizer, 0.2)
    (group,) = optimizer.param_groups
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.8, 0.01, True)
    assert group["lr"] == pytest.approx(0.25 / 5)


def test_make_optimizer_gives_new_layers_a_rate_of_their_own():
    network = create_model("resnet18", block="cgnl", num_classes=5)
    optim = load(None, {"optim.new_layers": 10}).optim
    optimizer = make_optimizer(network, optim, lr=0.02)
    set_lr(optimizer, 1.0)
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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet50", {"block": "cgnl", "blocks": 5}),
        ("resnet18", {"block": "nl", "head": "covariance"}),
        ("timm/vit_tiny_patch16_224", {"block": "cgnl"}),
        ("torchvision/convnext_tiny", {"block": "residual"}),
    ],
)
def test_layer_decay_does_not_depend_on_blocks_and_heads(name, options):
    with torch.device("meta"):
        plain, added = create_model(name, num_classes=3), create_model(name, num_classes=3, **options)
    rates = names_by_rate(plain, Optim(layer_decay=0.75))
    others = names_by_rate(added, Optim(layer_decay=0.75, new_layers=3.0))
    assert {n: rate for n, rate in others.items() if rate != 3} == {n: rates[n] for n in rates if others[n] != 3}
    assert len(set(rates.values())) > 5


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


VIT_STEM = {"cls_token", "pos_embed", "patch_embed"}


@pytest.mark.parametrize(
    ("build", "names", "frozen"),
    [
        (torchvision.models.resnet18, ["stem", "layer1"], {"conv1", "bn1", "layer1"}),
        (lambda: timm.create_model("vit_tiny_patch16_224"), ["stem", "blocks.0"], VIT_STEM | {"blocks.0"}),
        (lambda: timm.create_model("vit_tiny_patch16_224"), ["pos_embed"], {"pos_embed"}),
        (lambda: timm.create_model("convnext_atto"), ["stem"], {"stem"}),
    ],
)
def test_freeze_stops_weights_and_statistics(build, names, frozen):
    network = build().train()
    freeze(network, names)
    still = {name for name, p in network.named_parameters() if not p.requires_grad}
    within = tuple(f"{f}." for f in frozen)
    assert still == {name for name, _ in network.named_parameters() if f"{name}.".startswith(within)}
    assert not any(module.training for name, module in network.named_modules() if f"{name}.".startswith(within))
    assert network.training


def test_freeze_refuses_what_is_not_there():
    with pytest.raises(ValueError, match=r"optim\.freeze.*'layer9'"):
        freeze(torchvision.models.resnet18(), ["layer9"])
    with pytest.raises(ValueError, match="nothing to train"):
        freeze(nn.Sequential(nn.Linear(2, 2)), ["0"])


STEPS = 5
RELEASED = Optim(lr=0.01, batch_size=256, epochs=100, warmup_epochs=10, schedule="step", drops=(31, 61, 81))


def factors(optim: Optim) -> list[float]:
    return [lr_factor(optim, STEPS, step) for step in range(optim.total_epochs * STEPS)]


def test_lr_factor_of_the_released_schedule():
    after = factors(RELEASED)[10 * STEPS :]
    expected = {range(31): 1.0, range(31, 61): 0.1, range(61, 81): 0.01, range(81, 100): 0.001}
    for epochs, value in expected.items():
        for epoch in epochs:
            assert after[epoch * STEPS : (epoch + 1) * STEPS] == pytest.approx([value] * STEPS)
    assert len(after) == 100 * STEPS


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_lr_factor_rises_in_a_line_to_its_peak_lr(schedule):
    optim = Optim(schedule=schedule, warmup_epochs=10, epochs=20)
    rising = factors(optim)[: 10 * STEPS + 1]
    steps = [after - before for before, after in itertools.pairwise(rising)]
    assert rising[0] > 0
    assert steps == pytest.approx([rising[0]] * len(steps))
    assert rising[-1] == 1


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_lr_factor_without_a_warm_up_begins_at_its_peak_lr(schedule):
    assert lr_factor(Optim(schedule=schedule, warmup_epochs=0), STEPS, 0) == 1


def test_lr_factor_of_the_cosine_falls_to_nothing():
    after = factors(Optim(warmup_epochs=2, epochs=40))[2 * STEPS :]
    assert all(later < before for before, later in itertools.pairwise(after))
    assert after[len(after) // 2] == pytest.approx(0.5)
    assert after[len(after) // 4] == pytest.approx((1 + 0.5**0.5) / 2)
    assert 0 < after[-1] < 1e-3
    assert sum(after) / len(after) == pytest.approx(0.5, abs=0.01)


def test_lr_factor_of_the_cosine_stays_at_nothing():
    optim = Optim(warmup_epochs=1, epochs=2)
    assert [lr_factor(optim, STEPS, step) for step in (3 * STEPS, 4 * STEPS)] == [0, 0]


@pytest.mark.parametrize(("batch_size", "expected"), [(256, 0.01), (64, 0.0025), (512, 0.02), (8, 0.01 / 32)])
def test_peak_lr_follows_the_batch(batch_size, expected):
    assert peak_lr(RELEASED, batch_size, pretrained=True) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rate", "pretrained", "expected"),
    [(None, True, 0.01), (None, False, 0.1), (0.3, True, 0.3), (0.3, False, 0.3)],
)
def test_peak_lr_is_smaller_from_trained_weights_unless_given(rate, pretrained, expected):
    assert peak_lr(Optim(lr=rate), 256, pretrained) == pytest.approx(expected)


@pytest.mark.parametrize(("pretrained", "expected"), [(True, 1e-4), (False, 5e-4)])
def test_peak_lr_of_adamw_is_smaller(pretrained, expected):
    assert peak_lr(Optim(optimizer="adamw"), 256, pretrained) == pytest.approx(expected)
    assert peak_lr(Optim(optimizer="adamw"), 256, pretrained, default=0.32) == pytest.approx(expected)


def test_average_is_that_of_torch():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours = Average(network, 0.9)
    theirs = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(4):
        network(torch.randn(8, 3))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        ours.update(network)
        theirs.update_parameters(network)
    assert ours.updates == int(theirs.n_averaged) == 4
    for name, value in theirs.module.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(ours.module.state_dict()[name], value)
    assert ours.module.get_buffer("1.num_batches_tracked") == 4
