"""Reports of real runs, from the command line."""

import base64
import re

import pytest

from cgnl.commands.report import report as command
from cgnl.engine.predictions import read_predictions
from tests.engine.conftest import options

from .conftest import ANSWERS, RESULTS, ROWS
from .test_html import Reader


@pytest.fixture
def train(cgnl, tmp_path):
    def call(*more: str, **settings):
        return cgnl("train", *options(runs=tmp_path, **settings), *more)

    return call


def test_train_writes_a_report(train, tmp_path):
    status, out, err = train(model__name="resnet18", model__block="cgnl", optim__epochs=1, data__samples=16)
    assert (status, err) == (0, "")
    file = tmp_path / "run" / "report.html"
    assert f"a report: {file}" in out
    text = file.read_text()
    read = Reader(text)
    for words in (
        "Curves",
        "Results",
        "Accuracy of each class",
        "What it looks at",
        "Speed of training",
        "To repeat it",
    ):
        assert words in read.text
    assert "cgnl train model.name=resnet18 model.block=cgnl" in read.text
    assert "layer3.0_cgnl" in read.text or "img" in [name for name, _ in read.tags]
    assert not {"script", "link", "iframe"} & {name for name, _ in read.tags}
    assert re.search(r"(src|href)=\"(?!data:|#)", text) is None
    assert len(text) < 2e6
    figures = [a["src"] or "" for name, a in read.tags if name == "img"]
    assert base64.b64decode(figures[-1].partition("base64,")[2])[8:12] == b"WEBP"


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
    assert "Accuracy of each class" not in read.text
    assert "is tested" in cgnl("report", tmp_path / "run", "--test")[1]
    assert "Accuracy of each class" in Reader((tmp_path / "run" / "report.html").read_text()).text


def test_report_of_a_run_that_has_only_begun(folder, cgnl):
    assert cgnl("report", folder())[0] == 0


def test_report_puts_runs_side_by_side(folder, cgnl, tmp_path):
    one, two = folder("one", ROWS, ANSWERS, RESULTS, seed=1), folder("two", ROWS[:1], seed=2)
    assert cgnl("report", one, two) == (0, f"{tmp_path / 'comparison.html'} written\n", "")
    text = Reader((tmp_path / "comparison.html").read_text()).text
    assert "2 runs: one, two" in text
    assert "Settings that differ" in text
    assert "seed12" in text


def test_report_with_an_evil_class_runs_nothing(folder, cgnl):
    place = folder("<script>alert(1)</script>".replace("/", "_"), ROWS, ANSWERS, RESULTS)
    assert cgnl("report", place)[0] == 0
    assert "script" not in [name for name, _ in Reader((place / "report.html").read_text()).tags]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "run is missing"),
        (["nowhere"], "nowhere is no folder of a run"),
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

    monkeypatch.setattr("cgnl.report.write.SECTIONS", (fail,))
    result = run()
    assert result.test["test_count"] == 6
    assert 'there is no report: this needs matplotlib: pip install "cgnl[explain]"' in capsys.readouterr().out
    assert not (result.folder / "report.html").exists()


def test_resume_of_a_run_that_has_ended_keeps_its_answers(run):
    first = run()
    before = (first.folder / "predictions.csv").read_bytes()
    (first.folder / "report.html").unlink()
    run(resume=True)
    assert (first.folder / "predictions.csv").read_bytes() == before
    assert (first.folder / "report.html").exists()


def test_report_is_a_page_by_its_name(folder, tmp_path):
    with pytest.raises(ValueError, match=r"a\.pdf must end in \.html"):
        command(str(folder()), output=str(tmp_path / "a.pdf"))
