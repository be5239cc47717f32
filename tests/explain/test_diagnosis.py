"""What is put in the attention's place is what it says, and everything is put back."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import cgnl
from cgnl.explain.diagnosis import (
    by_mean,
    by_next,
    by_sign,
    compare_classes,
    diagnose_blocks,
    frames_shuffled,
    mcnemar,
    off,
    pairs_replaced,
    replaced,
    uniform,
)
from cgnl.kernels import EmbeddedGaussian
from cgnl.ops import compact_generalized_non_local
from tests.conftest import EXACT, relative_error


def make(block: Any) -> Any:
    """In float64 and eval mode, with a branch that can be seen."""
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block.double().eval()


def explicit(block, x, s):
    """A dot block whose attention is s [B, G], by hand."""
    theta = block.theta(x).unflatten(1, (block.groups, -1)) * s[:, :, None, None, None]
    return x + block.norm(block.z(theta.flatten(1, 2)))


def attention_by_hand(block, x):
    s = (block.phi(x) * block.g(x)).unflatten(1, (block.groups, -1)).sum((2, 3, 4))  # [B, G]
    return s / (x.square().mean((1, 2, 3)) + 1e-6)[:, None] if block.scale == "energy" else s


@pytest.mark.parametrize("scale", [None, "energy"])
def test_replaced_puts_in_mean_sign_and_next(scale):
    block, x = make(cgnl.CGNL(8, 4, groups=2, scale=scale)), torch.randn(5, 8, 3, 4, dtype=torch.float64)
    s = attention_by_hand(block, x)
    truth = {
        by_mean(s[..., None]): s.mean(0, keepdim=True).expand_as(s),
        by_sign(s[..., None]): s.sign() * s.abs().mean(0),
        by_next(s[..., None]): torch.cat([s[1:], s[:1]]),
    }
    plain = block(x)
    assert relative_error(plain, explicit(block, x, s)) < EXACT
    for change, expected in truth.items():
        with replaced(block, change):
            changed = torch.cat([block(part) for part in x.split(2)])  # whatever the batches
        assert relative_error(changed, explicit(block, x, expected)) < EXACT
        assert relative_error(changed, plain) > 1e-3
    assert torch.equal(block(x), plain)
    assert "attention" not in vars(block)
    assert block.backend == "auto"


def test_next_is_of_the_same_view():
    values = torch.arange(6.0)[:, None, None]  # three samples of two views
    assert by_next(values, views=2)(torch.zeros(6, 1, 1), 0).flatten().tolist() == [2, 3, 4, 5, 0, 1]


def test_replaced_is_undone_after_an_error():
    block = make(cgnl.CGNL(8, 4, groups=2, backend="reference"))
    with pytest.raises(RuntimeError, match="stop"), replaced(block, lambda c, _: c):
        raise RuntimeError("stop")
    assert "attention" not in vars(block)
    assert block.backend == "reference"


@pytest.mark.parametrize("normalize", [False, True])
def test_replaced_by_its_own_changes_nothing(normalize):
    block = make(cgnl.CGNL(8, 4, groups=2, kernel=EmbeddedGaussian(2), normalize=normalize))
    x, seen = torch.randn(3, 8, 3, 4, dtype=torch.float64), []
    plain = block(x)
    with replaced(block, lambda c, _: seen.append(c) or c):
        assert torch.equal(block(x), plain)
    assert seen[0].shape == (3, 2, 6 if normalize else 3)


def test_uniform_is_the_mean_of_g():
    block, x = make(cgnl.NonLocal(8, 4)), torch.randn(2, 8, 3, 4, dtype=torch.float64)
    plain = block(x)
    with uniform(block):
        changed = block(x)
    mean = block.g(x).mean((2, 3), keepdim=True).expand(-1, -1, 3, 4)
    assert relative_error(changed, x + block.norm(block.z(mean))) < EXACT
    assert torch.equal(block(x), plain)


@pytest.mark.parametrize("block", [cgnl.CGNL(8, 4, groups=2), cgnl.NonLocal(8, 4)], ids=["cgnl", "nl"])
def test_off_is_an_identity(block):
    block, x = make(block), torch.randn(2, 8, 3, 4, dtype=torch.float64)
    with off(block):
        assert torch.equal(block(x), x)
    assert not torch.equal(block(x), x)


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 0), (5, 5), (12, 3), (40, 2), (300, 250), (9800, 10200)])
def test_mcnemar_is_the_binomial_test(lost, won):
    """All splits that are as far from even as this one, each with its chance."""
    n = lost + won
    log_chance = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in range(n + 1)
    ]
    truth = sum(math.exp(c) for k, c in enumerate(log_chance) if abs(2 * k - n) >= abs(lost - won))
    assert mcnemar(lost, won) == pytest.approx(truth, rel=1e-9)


def test_compare_counts_samples_that_change_sides():
    outcome = compare_classes("x", [True, True, True, False], [False, False, True, True])
    assert (outcome.top1, outcome.lost, outcome.won, outcome.change) == (50, 2, 1, -25)
    with pytest.raises(ValueError, match="3 samples cannot be compared with 4"):
        compare_classes("x", [True] * 4, [True] * 3)


def test_diagnose_blocks_finds_an_attention_that_decides():
    """The class is the sign of the attention: its mean and that of the next sample lose it, its sign does not."""
    block = make(cgnl.CGNL(4, 4, groups=1, norm=None))
    x = torch.randn(40, 4, 2, 2, dtype=torch.float64)
    labels = attention_by_hand(block, x)[:, 0] > 0
    theta = block.theta(x)
    direction = block.z(theta).flatten(1)

    def test() -> list[bool]:
        with torch.no_grad():
            moved = torch.cat([block(part) for part in x.split(7)]) - x
        return ((moved.flatten(1) * direction).sum(1) > 0).eq(labels).tolist()

    result = diagnose_blocks({"block": block}, test)
    outcome = {o.attention: o for o in result.outcomes}
    assert list(outcome) == ["as it is", "its mean", "its sign x mean size", "another sample's", "block off"]
    assert outcome["as it is"].top1 == outcome["its sign x mean size"].top1 == 100
    wrong = int(labels.ne(labels.roll(-1)).sum())
    assert (outcome["another sample's"].lost, outcome["another sample's"].won) == (wrong, 0)
    s = attention_by_hand(block, x)[:, 0].detach()
    assert outcome["its mean"].lost == int((labels != (s.mean() > 0)).sum())
    assert outcome["block off"].lost == int(labels.sum())
    assert outcome["its mean"].p == mcnemar(outcome["its mean"].lost, 0)
    (spread,) = result.spreads
    assert (spread.block, spread.group, spread.order) == ("block", 0, "1")
    assert spread.mean == pytest.approx(float(s.mean()))
    assert spread.deviation == pytest.approx(float(s.std(correction=0)))
    assert spread.negative == float((s < 0).double().mean())
    assert spread.variation == pytest.approx(spread.deviation / abs(spread.mean))


def test_diagnose_blocks_of_a_non_local_network():
    block = make(cgnl.NonLocal(4, 4))
    result = diagnose_blocks({"block": block}, lambda: [True, False])
    assert [o.attention for o in result.outcomes] == ["as it is", "uniform", "block off"]
    assert result.spreads == ()
    dot = make(cgnl.NonLocal(4, 4, kernel="dot"))
    assert [o.attention for o in diagnose_blocks({"b": dot}, lambda: [True]).outcomes] == ["as it is", "block off"]


@pytest.mark.parametrize("block", [cgnl.CGNL(8, 4, groups=2), cgnl.NonLocal(8, 4)], ids=["cgnl", "nl"])
def test_diagnose_blocks_measures_what_a_block_adds(block):
    block, x = make(block), torch.randn(5, 8, 3, 4, dtype=torch.float64)
    branch = (block(x) - x).detach()
    result = diagnose_blocks({"b": block}, lambda: [bool(block(part).isfinite().all()) for part in x.split(2)])
    shares = sorted(100 * float(b.norm() / a.norm()) for a, b in zip(x, branch, strict=True))
    assert result.added["b"] == pytest.approx((100 * float(branch.norm() / x.norm()), shares[2]), rel=1e-6)
    said = [(o.added, o.added_median) for o in result.outcomes]
    assert said == [result.added["b"]] + [(None, None)] * (len(result.outcomes) - 1)
    assert not block._forward_hooks


def test_diagnose_blocks_of_an_untrained_block_finds_nothing_added():
    block, x = cgnl.CGNL(8, 4, groups=2), torch.randn(2, 8, 3, 4)
    assert diagnose_blocks({"b": block}, lambda: [bool(block(x).any())]).added == {"b": (0.0, 0.0)}


def test_spread_of_every_group_and_order():
    kernel = EmbeddedGaussian(2)
    block, x = make(cgnl.CGNL(8, 4, groups=2, kernel=kernel)), torch.randn(6, 8, 2, 2, dtype=torch.float64)
    result = diagnose_blocks({"b": block}, lambda: [bool(v) for v in block(x).flatten(1).sum(1) > 0])
    assert [(s.group, s.order) for s in result.spreads] == [(g, p) for g in (0, 1) for p in "012"]
    theta, phi, g = block.theta(x), block.phi(x), block.g(x)
    flat = phi.unflatten(1, (2, -1))
    s_2 = (flat**2 * g.unflatten(1, (2, -1))).sum((2, 3, 4)) / math.factorial(2)
    assert relative_error(result.values["b"][..., 2], s_2) < EXACT
    assert torch.isfinite(compact_generalized_non_local(theta, phi, g, kernel=kernel, groups=2)).all()


@pytest.mark.parametrize("kind", ["covariance", "bilinear"])
def test_pairs_replaced_leaves_the_diagonal(kind):
    head, x = make(cgnl.SecondOrderPool(6, 3, kind=kind)), torch.randn(4, 6, 5, 5, dtype=torch.float64)
    plain, by = head(x).detach(), torch.arange(6.0, dtype=torch.float64)
    with pairs_replaced(head, by):
        changed = head(x).detach()
    diagonal = torch.tensor([0, 3, 5])  # of the upper triangle of 3 x 3, row by row
    rest = torch.tensor([1, 2, 4])
    assert torch.equal(changed[:, diagonal], plain[:, diagonal])
    assert torch.equal(changed[:, rest], by[rest].expand(4, 3))
    assert torch.equal(head(x), plain)


def test_diagnosis_of_a_head_puts_the_mean_and_nothing_in_place_of_pairs():
    head, x = make(cgnl.SecondOrderPool(6, 3)), torch.randn(7, 6, 5, 5, dtype=torch.float64)
    seen = []

    def test():
        seen.append(torch.cat([head(part).detach() for part in x.split(2)]))
        return [True] * 6 + [len(seen) < 3]

    result = diagnose_blocks({}, test, heads={"head": head})
    plain, mean, nothing = seen
    rest = torch.tensor([1, 2, 4])
    assert relative_error(mean[:, rest], plain[:, rest].mean(0).expand(7, 3)) < EXACT
    assert nothing[:, rest].count_nonzero() == 0
    assert [o.lost for o in result.outcomes] == [0, 0, 1]
    assert len({o.attention for o in result.outcomes}) == 3
    assert (result.added, result.spreads, result.outcomes[0].added) == ({}, (), None)


def test_diagnosis_of_block_and_head_has_all():
    block, head = make(cgnl.CGNL(6, 4, groups=2)), make(cgnl.SecondOrderPool(6, 3))
    x = torch.randn(3, 6, 5, 5, dtype=torch.float64)
    result = diagnose_blocks({"block": block}, lambda: head(block(x))[:, 0].gt(0).tolist(), heads={"head": head})
    assert len(result.outcomes) == 7


def test_diagnosis_refuses_a_compact_head_alone():
    with pytest.raises(ValueError, match="no attention and no pairs"):
        diagnose_blocks({}, list, heads={"head": cgnl.SecondOrderPool(6, 3, kind="compact")})


def test_frames_shuffled_gives_each_clip_its_frames_in_another_order():
    network = nn.Identity()
    x = torch.arange(2 * 3 * 16.0).view(2, 3, 16, 1, 1)
    with frames_shuffled(network):
        y = network(x)
    with frames_shuffled(network):
        assert torch.equal(network.forward(x), y)  # the same each time, and as tests call it
    assert torch.equal(network(x), x)
    assert torch.equal(y.sort(2).values, x)
    orders = y[:, 0].flatten(1) - x[:, 0, :1].flatten(1)
    assert not torch.equal(orders[0], orders[1])
    assert not torch.equal(y, x)


def test_diagnosis_takes_more_to_test_with():
    network, x = nn.Conv3d(3, 2, (4, 1, 1)), torch.randn(6, 3, 4, 2, 2)
    seen = []

    def test():
        seen.append(network(x).detach())
        return [True] * 6

    result = diagnose_blocks({}, test, more={"frames": lambda: frames_shuffled(network)})
    assert [o.attention for o in result.outcomes] == ["as it is", "frames"]
    assert not torch.allclose(seen[0], seen[1])
