"""The sentence on whether a block is used says what is measured."""

import json

import pytest
import torch
from torch import nn

import cgnl
from cgnl.explain.verdict import (
    ADVICE,
    Verdict,
    fingerprint,
    quick_verdict,
    read_verdict,
    save_verdict,
)


def network(*, zero_init: bool = False, blocks: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    made = [cgnl.CGNL(8, 4, groups=2, zero_init=zero_init) for _ in range(blocks)]
    for block in made:
        if not zero_init:
            for parameter in block.parameters():
                nn.init.normal_(parameter, std=0.8)
    return nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), *made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


@torch.no_grad()
def by_hand(model: nn.Sequential, x: torch.Tensor) -> tuple[float, int]:
    """What the one block adds in the median sample, in percent, and how many predictions change without it."""
    model = model.eval()
    given = model[0](x)
    branch = model[1](given) - given
    shares = 100 * branch.flatten(1).norm(dim=1) / given.flatten(1).norm(dim=1)
    return float(shares.median()), int((model(x).argmax(1) != model[2:](given).argmax(1)).sum())


def test_quick_verdict_measures_the_median_and_the_changes():
    model, x = network(), torch.randn(41, 3, 8, 8)
    found = quick_verdict(model.train(), x.split(7))
    assert model.training
    added, changed = by_hand(model, x)
    assert found.added == {"1": pytest.approx(added, rel=1e-5)}
    assert (found.changed, found.samples) == (changed, 41)
    assert 0 < changed < 41
    assert not model[1]._forward_hooks


def test_untrained_block_is_not_used():
    found = quick_verdict(network(zero_init=True), [torch.randn(4, 3, 8, 8)])
    assert found == Verdict({"1": 0.0}, 0, 4)
    assert found.unused()


def test_network_without_blocks_has_no_verdict():
    with pytest.raises(ValueError, match="no NL or CGNL block"):
        quick_verdict(nn.Linear(2, 2), [])


@pytest.mark.parametrize(
    ("added", "changed", "unused"),
    [(0.01, 0, True), (0.99, 4, True), (1.0, 0, False), (0.01, 5, False), (30.0, 400, False)],
)
def test_limits(added, changed, unused):
    """Less than 1 % and fewer than 0.5 % of 1,000 predictions."""
    verdict = Verdict({"b": added}, changed, 1000)
    assert verdict.unused() is verdict.unused("b") is unused
    assert ("this block is not used" in verdict.sentence(), ADVICE in verdict.words()) == (unused, unused)
    assert f"{changed} of 1,000 test predictions change without it" in verdict.sentence()
    assert f"adds {added:.2g} % to its input in the median sample" in verdict.sentence()


def test_network_without_numbers_has_no_verdict():
    model = network()
    with pytest.raises(ValueError, match="not finite"):
        quick_verdict(model, [torch.full((2, 3, 8, 8), torch.inf)])


def test_shares_are_written_out():
    assert "add 99 to 1,234 % to" in Verdict({"a": 98.7, "b": 1234.4}, 0, 10).sentence()


def test_block_that_adds_much_and_changes_nothing():
    assert Verdict({"b": 30.0}, 2, 1000).sentence().endswith(": the predictions do not depend on it.")


@pytest.mark.parametrize("text", [Verdict({"b": 0.01}, 0, 1), Verdict({"b": 0.01}, 0, 480), Verdict({"b": 3}, 9, 90)])
def test_sentence_is_one(text):
    assert text.sentence("b").count(". ") == 0
    assert text.sentence("b").endswith(".")


def test_sentence_on_a_single_sample():
    same, other = Verdict({"b": 0.016}, 0, 1), Verdict({"b": 0.016}, 1, 1)
    assert same.sentence().startswith("The block adds 0.016 % to its input here, and the prediction stays the same")
    assert "this block is not used here" in same.sentence()
    assert "the prediction changes without it." in other.sentence()
    assert "cgnl diagnose" in same.advice()
    assert "cgnl diagnose" in other.advice()


def test_sentence_on_several_blocks():
    verdict = Verdict({"a": 0.01, "b": 20.0}, 0, 300)
    assert verdict.sentence().startswith("The 2 blocks add 0.01 to 20 % to their inputs")
    assert verdict.sentence("a").startswith("The block a adds 0.01 % to its input")
    assert "change without the 2 blocks: this block is not used." in verdict.sentence("a")
    assert (verdict.unused("a"), verdict.unused("b"), verdict.unused()) == (True, False, False)
    assert "these blocks are not used" in Verdict({"a": 0.01, "b": 0.2}, 0, 300).sentence()


def test_verdict_is_read_for_the_weights_it_was_noted_for(tmp_path):
    model, verdict = network(blocks=2), Verdict({"1": 0.1, "2": 3.0}, 4, 500)
    last, best = tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    last.touch()
    best.touch()
    assert read_verdict(last, model) is None
    save_verdict(verdict, last, fingerprint(model))
    assert read_verdict(last, model) == verdict
    assert read_verdict(best, network(blocks=2)) == verdict  # the same weights under another name
    with torch.no_grad():
        next(model.parameters())[0] += 1e-3
    assert read_verdict(last, model) is None
    save_verdict(Verdict({"1": 9.0, "2": 9.0}, 0, 500), best, fingerprint(model))
    assert read_verdict(last, network(blocks=2)) == verdict  # which is kept


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"a": 3}', '{"a": {"weights": 1}}', '{"a": {"added": []}}', "[" * 100_000]
)
def test_damaged_file_is_no_verdict(tmp_path, content):
    (tmp_path / "last.ckpt").touch()
    (tmp_path / "diagnosis.json").write_text(content)
    assert read_verdict(tmp_path / "last.ckpt", network()) is None


@pytest.mark.parametrize(
    "entry", [{"added": {"1": "x"}}, {"added": None}, {"samples": None}, {"changed": float("inf")}]
)
def test_damaged_entry_is_no_verdict(tmp_path, entry):
    model = network()
    (tmp_path / "last.ckpt").touch()
    good = {"weights": fingerprint(model), "added": {"1": 0.1}, "changed": 0, "samples": 9}
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps({"last.ckpt": good}))
    assert read_verdict(tmp_path / "last.ckpt", model) == Verdict({"1": 0.1}, 0, 9)
    path.write_text(json.dumps({"last.ckpt": good | entry}))
    assert read_verdict(tmp_path / "last.ckpt", model) is None
