"""What runs come to, against numbers that are worked out by hand."""

import json
from pathlib import Path

import pytest

from cgnl.engine.config import to_yaml
from cgnl.experiments.statistics import estimate
from cgnl.experiments.summary import summarize
from cgnl.experiments.tables import Table
from cgnl.experiments.write import replacements_markdown

DIAGNOSIS = "attention,top1,lost,won,change,p\nas it is,50.0,0,0,0.0,1.0\nits mean,{mean},{lost},{won},{change},0.5\n"


@pytest.fixture
def ended(toy, tmp_path):
    """Runs of the toy table that have ended."""

    def make(
        row: int, seed: int, right: str, samples: str = "a", split: int | None = None, diagnosis: str = ""
    ) -> None:
        r = toy.rows[row]
        name = f"{r.name}{f'_split{split}' if split else ''}_seed{seed}"
        folder = tmp_path / name
        folder.mkdir()
        top1 = right.count("1") / len(right)
        (folder / "results.json").write_text(json.dumps({"test_top1": top1, "test_top5": 1.0, "seconds": 2.0}))
        config = r.config({"seed": seed, **({"data.split": split} if split else {})})
        (folder / "config.yaml").write_text(to_yaml(config))
        (folder / "right.txt").write_text(f"{samples}\n{right}\n")
        if diagnosis:
            (folder / "diagnosis.csv").write_text(diagnosis)

    return make


def test_summarize_gives_mean_and_difference(ended, toy, tmp_path):
    for seed, (before, after) in enumerate([("1000", "1100"), ("1100", "1110"), ("1100", "0110")]):
        ended(0, seed, before)
        ended(1, seed, after)
    ended(1, 7, "1111")  # a seed that the other does not have
    summary = summarize("toy", toy, tmp_path)
    plain, cgnl, residual = summary.lines
    assert plain.numbers["top1"].mean == pytest.approx(100 * (1 + 2 + 2) / 12)
    assert cgnl.numbers["top1"].count == 4
    assert (residual.seeds, residual.reason) == ({}, "not yet")
    (pair,) = summary.pairs
    assert (pair.before.name, pair.after.name) == ("toy", "toy_cgnl")
    assert pair.difference.mean == pytest.approx((25 + 25 + 0) / 3)
    assert pair.difference.count == 3
    assert pair.samples is not None
    assert (pair.samples.won, pair.samples.lost) == (3, 1)


def test_rows_that_wait_are_of_the_network_of_those_that_ended(ended, toy, tmp_path):
    ended(0, 0, "10")
    config = tmp_path / f"{toy.rows[0].name}_seed0" / "config.yaml"
    name = toy.rows[0].config().model.name
    config.write_text(config.read_text().replace(f"name: {name}\n", f"name: {name}_caffe\n", 1))
    summary = summarize("toy", toy, tmp_path)
    first = summary.lines[0].config
    assert first is not None
    assert first.model.name == f"{name}_caffe"
    assert {summary.first[line.network].name for line in summary.lines} == {toy.rows[0].name}


def test_summarize_compares_no_other_samples(ended, toy, tmp_path):
    ended(0, 0, "10")
    ended(1, 0, "11", samples="b")
    (pair,) = summarize("toy", toy, tmp_path).pairs
    assert pair.difference.mean == 50
    assert pair.samples is None


def test_summarize_averages_splits(ended, toy, tmp_path):
    table = Table("t", toy.rows, splits=(1, 2))
    ended(0, 0, "10", split=1)
    ended(0, 0, "11", split=2)
    ended(0, 1, "00", split=1)  # its second split has not ended
    line = summarize("t", table, tmp_path).lines[0]
    assert list(line.seeds) == [0]
    assert line.numbers["top1"].mean == 75
    assert (line.seeds[0].correct, line.seeds[0].seconds) == ("1011", 4.0)


def test_summarize_gives_reasons(ended, toy, tmp_path):
    ended(0, 0, "10")
    (tmp_path / "not_run.json").write_text(json.dumps({"toy_r": "there is no data"}))
    failed = tmp_path / "toy_cgnl_seed0"
    failed.mkdir()
    (failed / "failed.txt").write_text("out of memory\n")
    assert [line.reason for line in summarize("toy", toy, tmp_path).lines] == ["", "out of memory", "there is no data"]


def test_summarize_gathers_the_diagnoses(ended, toy, tmp_path):
    for seed, (mean, lost, won) in enumerate([(40.0, 3, 1), (30.0, 5, 2)]):
        ended(1, seed, "10", diagnosis=DIAGNOSIS.format(mean=mean, lost=lost, won=won, change=mean - 50))
    as_it_is, by_mean = summarize("toy", toy, tmp_path).replacements
    assert list(as_it_is.numbers) == ["top1", "change"]  # an older diagnosis
    assert (as_it_is.numbers["top1"].mean, by_mean.numbers["top1"].mean, by_mean.numbers["change"].mean) == (
        50,
        35,
        -15,
    )
    assert (by_mean.attention, by_mean.lost, by_mean.won, by_mean.numbers["top1"].count) == ("its mean", 8, 3, 2)


def test_summarize_knows_what_the_blocks_add(ended, toy, tmp_path):
    for seed, added in enumerate((0.2, 0.4)):
        lines = f"attention,top1,lost,won,change,added\nas it is,50,0,0,0,{added}\nblock off,50,0,0,0,\n"
        ended(1, seed, "10", diagnosis=lines)
    as_it_is, off = summarize("toy", toy, tmp_path).replacements
    assert as_it_is.numbers["added"] == estimate([0.2, 0.4])
    assert "added" not in off.numbers
    assert "added_median" not in as_it_is.numbers
    assert "as it is, adding 0.3 % to its input |" in replacements_markdown([as_it_is, off])


def test_summarize_knows_what_the_blocks_add_to_the_median_sample(ended, toy, tmp_path):
    ended(1, 0, "10", diagnosis="attention,top1,lost,won,change,added,added_median\nas it is,50,0,0,0,130,0.5\n")
    replacements = summarize("toy", toy, tmp_path).replacements
    assert ", adding 130 % to its input (0.5 % to that of the median sample) |" in replacements_markdown(replacements)


def test_summarize_of_nothing_is_a_table_all_the_same(toy, tmp_path):
    summary = summarize("toy", toy, Path(tmp_path) / "none")
    assert [line.reason for line in summary.lines] == ["not yet"] * 3
    assert (summary.pairs, summary.replacements, summary.metric) == ((), (), "top1")
