"""Weights that are divided over two ranks (FSDP2) train as they do in one process."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from cgnl.engine import sharding
from cgnl.engine.config import load
from cgnl.engine.train import train
from tests.engine.conftest import same, weights
from tests.engine.forks import run_ranks
from tests.engine.test_distributed import GIVEN, SEVERAL, assert_near, assert_same_table, once


def train_telling(runs: list[dict]) -> None:
    """Train in this rank, and print how many weights it holds, or why a run ends."""
    divide = sharding.divide

    def telling(network: nn.Module, device: torch.device) -> None:
        total = sum(p.numel() for p in network.parameters())
        divide(network, device)
        print("PARTS", sum(sharding.part(p).numel() for p in network.parameters()), "of", total)

    sharding.divide = telling
    for settings in runs:
        try:
            train(load("parts", settings))
        except ValueError as error:
            print("ERROR", error)


ADAMW = {
    "model.name": "tiny_stage",
    "optim.optimizer": "adamw",
    "optim.lr": 0.02,
    "optim.clip_norm": 0.5,
    "optim.ema": 0.9,
    "optim.accumulate": 2,
}
SGD = {"model.name": "tiny_stage", "optim.layer_decay": 0.7, "optim.freeze": ["conv1"], "optim.on_nan": "skip"}
BURSTS = {"model.name": "tiny_stage", "optim.lr": 1e30}


def given(settings: dict) -> dict:
    """As ``run`` takes them."""
    return GIVEN | {name.replace(".", "__"): value for name, value in settings.items()}


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """A folder of runs in two ranks, and what was printed: both optimizers, resumed, and one that ends in an error."""

    def make(folder: Path) -> str:
        several = SEVERAL | {"devices": 2, "parallel": "fsdp", "runs": str(folder)}
        half = {"name": "half", "optim.epochs": 1}
        runs = [
            several | ADAMW | {"name": "adamw"},
            several | SGD | {"name": "sgd"},
            several | BURSTS | {"name": "bursts"},
            several | ADAMW | half,
        ]
        return "".join(run_ranks(lambda: train_telling(runs), folder))

    return once(tmp_path_factory, "divided", make)


@pytest.mark.long
@pytest.mark.parametrize(("name", "settings"), [("adamw", ADAMW), ("sgd", SGD)])
def test_divided_weights_train_as_whole_ones(divided, run, name, settings):
    alone = run(**given(settings)).folder
    assert_near(weights(alone / "last.ckpt"), weights(divided[0] / name / "last.ckpt"))
    assert_same_table(divided[0] / name, alone)


@pytest.mark.long
def test_each_rank_has_its_part(divided):
    said = [line.split() for line in divided[1].splitlines() if "PARTS" in line]
    parts, totals = [int(words[1]) for words in said], {int(words[3]) for words in said}
    assert len(said) == 2 * (2 + 1 + 1 + 2)  # the average is divided too
    assert len(totals) == 1
    assert sum(parts) == 6 * totals.pop()
    assert max(parts) <= 1.01 * min(parts)


@pytest.mark.long
def test_divided_run_goes_on_in_one_process(divided, run, tmp_path):
    """Of other settings only the number of devices, so one process repeats what would have been two."""
    shutil.copytree(divided[0] / "half", tmp_path / "half")
    alone = run(**given(ADAMW | {"name": "half", "optim.epochs": 1}), runs=tmp_path / "alone").folder
    ends = [run(resume=folder, **given(ADAMW), runs=tmp_path).folder for folder in (tmp_path / "half", alone)]
    one, other = (torch.load(end / "last.ckpt", weights_only=True) for end in ends)
    assert_near(weights(ends[1] / "last.ckpt"), weights(ends[0] / "last.ckpt"))
    for mine, theirs in zip(*(x["optimizer_states"][0]["state"].values() for x in (one, other)), strict=True):
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_divided_weights_that_are_not_finite_are_named(divided, run):
    with pytest.raises(ValueError, match="the first module whose output is not finite is") as alone:
        run(**given(BURSTS))
    said = [line for line in divided[1].splitlines() if line.startswith("ERROR")]
    assert said == [f"ERROR {alone.value}"] * 2


def test_state_of_the_optimizer_has_the_memory_format_of_the_weights(run):
    """Fused kernels go through both as they lie in memory."""
    folder = run(**{**given(ADAMW), "optim__epochs": 1}).folder
    content = torch.load(folder / "last.ckpt", weights_only=True)
    for entry in content["optimizer_states"][0]["state"].values():
        entry.update({name: value.contiguous() for name, value in entry.items()})
    other = shutil.copytree(folder, folder.with_name("other"))
    torch.save(content, other / "last.ckpt")
    one, two = (run(resume=path, **given(ADAMW)).folder / "last.ckpt" for path in (folder, other))
    assert same(weights(one), weights(two))


def test_one_process_divides_nothing(run):
    whole = run(**GIVEN | {"name": "whole"}).folder
    alone = run(**GIVEN | {"name": "alone"}, parallel="fsdp").folder
    assert same(weights(whole / "last.ckpt"), weights(alone / "last.ckpt"))


@pytest.mark.parametrize("more", [{"compile": True}, {"precision": "16"}, {"data.dataset": "coco"}])
def test_fsdp_refuses(more):
    with pytest.raises(ValueError, match="parallel = fsdp"):
        load(None, {"parallel": "fsdp", **more})
