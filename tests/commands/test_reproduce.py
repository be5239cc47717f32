"""``cgnl reproduce`` as a person types it."""

import csv
import shutil
import time
from pathlib import Path

import pytest


def test_reproduce_lists_the_tables(cgnl):
    status, out, _ = cgnl("reproduce")
    assert status == 0
    assert "cub-kernels" in out
    assert "complexity" in out
    assert "gated-field" in out


def test_reproduce_fills_a_table(cgnl, tmp_path):
    command = ("reproduce", "toy", "--seeds", 2, "-o", tmp_path / "out")
    status, out, err = cgnl(*command)
    assert (status, err) == (0, "")
    assert "toy_cgnl  0 of 2 runs ended" in out
    assert "still to do: 6 runs, about" in out
    assert "6 of 6: with a residual block, seed 1: top1" in out
    names = {path.name for path in (tmp_path / "out").iterdir() if path.is_file() and not path.name.startswith(".")}
    assert names == {"toy.md", "toy.csv", "toy_pairs.csv", "toy.png", "not_run.json"}
    with (tmp_path / "out" / "toy.csv").open() as file:
        seeds = {(row["row"], row["number"]): row["seeds"] for row in csv.DictReader(file)}
    assert seeds[("toy_cgnl", "top1")] == "2"
    before = (tmp_path / "out" / "toy.md").read_text()
    assert "its mean" in before  # the attention was asked about
    status, out, _ = cgnl(*command)
    assert "toy_cgnl  2 of 2 runs ended" in out
    assert "left" not in out
    assert (tmp_path / "out" / "toy.md").read_text() == before
    status, _, err = cgnl(*command, "optim.lr=0.3")
    assert (status, "begun with optim.lr = 0.8, not 0.3" in err) == (2, True)


def test_reproduce_dry_runs_nothing(cgnl, tmp_path):
    status, out, _ = cgnl("reproduce", "toy", "--dry", "--rows", "toy*l", "--output", tmp_path)
    assert status == 0
    assert "still to do: 5 runs, about" in out
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_reproduce_lists_what_cannot_be_run(cgnl, tmp_path):
    status, out, _ = cgnl("reproduce", "residual", "--output", tmp_path)
    assert status == 0
    assert out.count("not run: data.root must say where cub is") == 3
    assert "--scale embedded needs none" in out
    assert "* R-50 + 1 CGNL: not run: data.root must say where cub is" in (tmp_path / "residual.md").read_text()


def test_reproduce_within_a_budget_goes_on_later(cgnl, tmp_path, monkeypatch):
    from cgnl.experiments import work

    words = ("reproduce", "toy", "--seeds", 1, "--output", tmp_path, "--rows", "toy,toy_r")
    with monkeypatch.context() as patch:
        made = work.make_run
        patch.setattr(work, "make_run", lambda *words: made(*words) or patch.setattr(time, "time", lambda: 1e12))
        status, out, _ = cgnl(*words, "--budget", 5)
    assert status == 130
    assert "not all runs have ended: the same command continues" in out
    assert [path.parent.name for path in tmp_path.glob("*/results.json")] == ["toy_seed0"]
    status, out, _ = cgnl(*words)
    assert status == 0
    assert "2 of 2: with a residual block" in out
    assert "1 of 2" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cub-kernel"], "there is no table 'cub-kernel'; did you mean cub-kernels?"),
        (["gated-fields"], "there is no table 'gated-fields'; did you mean gated-field?"),
        (["gated-field", "--seeds", "0"], "seeds = 0"),
        (["toy", "--rows", "to"], "there is no row 'to'"),
        (["toy", "--seeds", "0"], "seeds = 0"),
        (["toy", "--budget", "-1"], "budget = -1"),
        (["toy", "--scale", "big"], "scale"),
        (["toy", "model.block=nl"], "model.block is set by the rows of a table"),
        (["toy", "optim.lrr=1"], "did you mean optim.lr?"),
        (["--fill", "none.md"], "none.md"),
    ],
)
def test_reproduce_refuses_bad_words(cgnl, tmp_path, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = cgnl("reproduce", *words)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_reproduce_fills_documents(cgnl, tmp_path):
    document = Path(tmp_path) / "doc.md"
    document.write_text(f"<!-- cgnl reproduce cub in {tmp_path} -->\n<!-- end -->\n")
    status, out, _ = cgnl("reproduce", "--fill", document)
    assert (status, out.strip()) == (0, f"{document}: 1 table written anew")
    assert "85.14" in document.read_text()


def test_reproduce_complexity_writes_anew_what_was_measured(cgnl, tmp_path):
    measured = Path(__file__).parents[2] / "benchmarks" / "results" / "complexity" / "complexity.csv"
    shutil.copy(measured, tmp_path)
    status, _, _ = cgnl("reproduce", "complexity", "--dry", "-o", tmp_path)
    assert status == 0
    assert (tmp_path / "complexity.md").read_text() == measured.with_suffix(".md").read_text()


def test_reproduce_gated_field_writes_anew_what_was_measured(cgnl, tmp_path):
    measured = Path(__file__).parents[2] / "benchmarks" / "results" / "gated-field" / "gated_field.csv"
    shutil.copy(measured, tmp_path)
    status, _, _ = cgnl("reproduce", "gated-field", "--dry", "-o", tmp_path)
    assert status == 0
    assert (tmp_path / "gated_field.md").read_text() == measured.with_suffix(".md").read_text()


@pytest.mark.parametrize(("words", "seeds"), [([], 3), (["--seeds", "2"], 2)])
def test_reproduce_gated_field_has_three_seeds_unless_told(cgnl, tmp_path, monkeypatch, words, seeds):
    from cgnl.experiments import gated_field

    asked = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gated_field, "gated_field", lambda folder, **given: asked.update(folder=folder, **given) or [])
    status, _, _ = cgnl("reproduce", "gated-field", *words)
    assert (status, asked) == (0, {"folder": Path("reproduce/gated-field"), "seeds": seeds})


def test_reproduce_refuses_more_seeds_than_anybody_runs(cgnl):
    status, _, err = cgnl("reproduce", "toy", "seeds=1000000000")
    assert (status, "seeds = 1000000000" in err) == (2, True)
