"""Whole reports: of folders written by hand, and of real runs."""

import base64
import json
import re

import pytest

from cgnl.commands.report import report as command
from cgnl.engine.predictions import read_predictions
from cgnl.report.run import read_run
from cgnl.report.write import render
from tests.engine.conftest import options

from .conftest import ANSWERS, RESULTS, ROWS, Reader

BLOCK = {"model__block": "cgnl", "model__options": {"after": ["conv1"], "groups": 2}}
EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture
def read(folder):
    """The report of a folder."""

    def call(**content) -> Reader:
        return Reader(render([read_run(folder(**content))]))

    return call


def test_page_is_whole_and_asks_nobody(folder):
    text = render([read_run(folder(rows=ROWS, predictions=ANSWERS, results=RESULTS), EVIL)])
    read = Reader(text)
    assert text.startswith("<!doctype html>")
    assert {"html", "head", "title", "style", "body", "svg", "table"} <= set(read.names)
    assert not {"script", "link", "iframe"} & set(read.names)
    (policy,) = [a["content"] for name, a in read.tags if name == "meta" and a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert re.search(r"https?:|//", re.sub(r"base64,[^\"]*", "", text)) is None
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_names_of_strangers_are_escaped(read):
    environment = {"command": f"cgnl train name={EVIL}"}
    names = [(0, EVIL.replace('"', ""), "b", 0.9, "parts 0"), (1, "b", EVIL.replace('"', ""), 0.8, "parts 1")]
    found = read(name="<i>one", rows=ROWS, predictions=names, results=RESULTS, **environment)
    assert "script" not in found.names
    assert "<script>alert(1)</script>'& taken for b: 1 of 1" in found.text
    assert environment["command"] in found.text
    assert "parts 0: <script>alert(1)</script>'&, taken for b (90%)" in [a.get("alt") for _, a in found.tags]


def test_results_say_where_they_are_from(read):
    found = read(recipe="cub_r50_cgnl1", data__dataset="cub", rows=ROWS, results=RESULTS)
    assert "last.ckpt, the network after the last epoch" in found.text


def test_results_of_different_tests_say_so(folder):
    results = [RESULTS, RESULTS | {"test_count": 9}]
    runs = [read_run(folder(name, results=r)) for name, r in zip(("one", "two"), results, strict=True)]
    assert "different samples" in Reader(render(runs)).text


def test_page_before_any_test(read):
    assert "No test has been made yet" in read().text


def test_many_classes_are_folded(read):
    found = read(predictions=[(i, f"class{i}", "class0", 0.5, "") for i in range(60)])
    assert "30 more" in found.text
    assert found.names.count("details") == 2  # the other one is of the settings
    assert "Confusion matrix" not in found.text


def test_confusions_are_named_and_shown(read):
    found = read(predictions=ANSWERS)
    assert "2 of 4 test samples were taken for another class" in found.text
    assert "red taken for <script>: 2 of 3" in found.text
    assert "Confusion matrix" in found.text
    pictures = [attributes for name, attributes in found.tags if name == "img"]
    assert [p["alt"] for p in pictures] == [f"parts {i}: red, taken for <script> ({s}%)" for i, s in ((1, 80), (2, 70))]
    assert all((p["src"] or "").startswith("data:image/webp;base64,") for p in pictures)


def test_confusions_without_their_samples(read, tmp_path):
    found = read(predictions=ANSWERS, data__dataset="folder", data__root=str(tmp_path / "gone"))
    assert "The samples cannot be shown: " in found.text
    assert "img" not in found.names


def test_no_confusions(read):
    assert "All of the 1 test samples" in read(predictions=ANSWERS[:1]).text


def test_command_repeats_the_run(read):
    assert "cgnl train parts 'name=a b'" in read(command="cgnl train parts 'name=a b'").text


def test_same_settings_are_said_to_be(folder):
    runs = [read_run(folder("one")), read_run(folder("two"))]
    assert "All settings are the same" in Reader(render(runs)).text


@pytest.fixture
def train(cgnl, tmp_path):
    def call(*more: str, **settings):
        return cgnl("train", *options(runs=tmp_path, **settings), *more)

    return call


def test_train_writes_a_report(train, tmp_path):
    status, out, err = train(**BLOCK, optim__epochs=1, data__samples=16)
    assert (status, err) == (0, "")
    file = tmp_path / "run" / "report.html"
    assert f"a report: {file}" in out
    text = file.read_text()
    read = Reader(text)
    for words in (
        "curves need two",
        "Results",
        "Calibration",
        "What it looks at",
        "Speed of training",
        "To repeat it",
    ):
        assert words in read.text
    assert "model.block=cgnl" in read.text
    assert "The most confident right prediction" in read.text or "The most confident wrong prediction" in read.text
    assert not {"script", "link", "iframe"} & set(read.names)
    assert re.search(r"(src|href)=\"(?!data:|#)", text) is None
    assert len(text) < 2e6
    figures = [a["src"] or "" for name, a in read.tags if name == "img"]
    assert base64.b64decode(figures[-1].partition("base64,")[2])[8:12] == b"WEBP"


def test_report_says_whether_the_block_is_used(train, cgnl, tmp_path):
    train(**BLOCK, optim__epochs=1, data__samples=16)
    run, sentence = tmp_path / "run", r"The block adds \S+ % to its input in the median sample"
    assert re.search(sentence, Reader((run / "report.html").read_text()).text)
    (run / "diagnosis.json").unlink()
    assert cgnl("report", run)[0] == 0
    assert not re.search(sentence, Reader((run / "report.html").read_text()).text)
    assert cgnl("diagnose", run / "last.ckpt", "accelerator=cpu")[0] == 0
    assert cgnl("report", run)[0] == 0
    assert re.search(sentence, Reader((run / "report.html").read_text()).text)


def test_report_of_a_run_writes_the_same_again(train, cgnl, tmp_path):
    train()
    file = tmp_path / "run" / "report.html"
    before = file.read_bytes()
    file.unlink()
    assert cgnl("report", tmp_path / "run") == (0, f"{file} written\n", "")
    assert re.sub(rb'id="[^"]*"|url\([^)]*\)|#\w+', b"", file.read_bytes()) == re.sub(
        rb'id="[^"]*"|url\([^)]*\)|#\w+', b"", before
    )


def test_report_tests_again_only_where_nothing_was_written_down(train, cgnl, tmp_path):
    train()
    predictions = read_predictions(tmp_path / "run")
    (tmp_path / "run" / "predictions.csv").unlink()
    status, out, _ = cgnl("report", tmp_path / "run")
    assert (status, "is tested" in out) == (0, True)
    assert read_predictions(tmp_path / "run") == predictions
    assert "is tested" not in cgnl("report", tmp_path / "run")[1]


def test_report_of_an_unfinished_run_is_tested_when_asked_for(train, cgnl, tmp_path):
    train()
    for name in ("predictions.csv", "results.json"):
        (tmp_path / "run" / name).unlink()
    status, out, _ = cgnl("report", tmp_path / "run", "-o", tmp_path / "new" / "r.html")
    assert (status, "is tested" in out) == (0, False)
    read = Reader((tmp_path / "new" / "r.html").read_text())
    assert "not finished: 2 epochs so far" in read.text
    assert "Calibration" not in read.text
    assert "is tested" in cgnl("report", tmp_path / "run", "--test")[1]
    assert "Calibration" in Reader((tmp_path / "run" / "report.html").read_text()).text


def test_report_of_a_run_that_has_only_begun(folder, cgnl):
    assert cgnl("report", folder())[0] == 0


def test_report_puts_runs_side_by_side(folder, cgnl, tmp_path):
    one, two = folder("one", ROWS, ANSWERS, RESULTS, seed=1), folder("two", ROWS[:1], seed=2)
    assert cgnl("report", one, two) == (0, f"{tmp_path / 'comparison.html'} written\n", "")
    text = Reader((tmp_path / "comparison.html").read_text()).text
    assert "2 runs: one, two" in text
    assert "Settings that differ" in text
    assert "seed 1 2" in text


def test_report_with_an_evil_class_runs_nothing(folder, cgnl):
    place = folder("<script>alert(1)</script>".replace("/", "_"), ROWS, ANSWERS, RESULTS)
    assert cgnl("report", place)[0] == 0
    assert "script" not in Reader((place / "report.html").read_text()).names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run is missing"),
        (["nowhere"], "nowhere is not a run folder"),
        (["nowhere", "--outptu", "x"], "there is no option 'outptu'"),
    ],
)
def test_report_refuses(cgnl, words, message):
    status, out, err = cgnl("report", *words)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_training_does_not_need_its_report(run, monkeypatch, capsys):
    def fail(*_):
        raise ModuleNotFoundError('this needs matplotlib: pip install "cgnl[explain]"')

    monkeypatch.setattr("cgnl.report.write.render", fail)
    result = run()
    assert result.test["test_count"] == 6
    assert 'there is no report: this needs matplotlib: pip install "cgnl[explain]"' in capsys.readouterr().out
    assert not (result.folder / "report.html").exists()


def test_resume_of_a_finished_run_keeps_its_predictions(run):
    first = run()
    before = (first.folder / "predictions.csv").read_bytes()
    (first.folder / "report.html").unlink()
    run(resume=True)
    assert (first.folder / "predictions.csv").read_bytes() == before
    assert (first.folder / "report.html").exists()


def test_report_is_a_page_by_its_name(folder, tmp_path):
    with pytest.raises(ValueError, match=r"a\.pdf must end in \.html"):
        command(str(folder()), output=str(tmp_path / "a.pdf"))


def test_a_finished_run_says_whether_its_block_is_used(run, cgnl):
    result = run(data__samples=24, **BLOCK)
    noted = json.loads((result.folder / "diagnosis.json").read_text())["last.ckpt"]
    assert (list(noted["added"]), noted["samples"]) == (["conv1_cgnl"], 6)
    assert f"{noted['changed']:,} of 6 test predictions change" in (result.folder / "log.txt").read_text()
    cgnl("diagnose", result.folder, "accelerator=cpu")
    again = json.loads((result.folder / "diagnosis.json").read_text())["last.ckpt"]
    assert again == noted | {"added": pytest.approx(noted["added"], rel=1e-4)}


def test_a_finished_run_without_blocks_says_nothing_of_them(run):
    result = run(data__samples=24, model__block=None)
    assert not (result.folder / "diagnosis.json").exists()
    assert (result.folder / "report.html").exists()
