"""``cgnl report`` as a person types it."""

import json

import pytest

from cgnl.engine.config import load, to_yaml


@pytest.fixture
def runs(tmp_path):
    """Folders of two finished runs, written by hand."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder, top1 in zip(folders, (0.25, 0.75), strict=True):
        folder.mkdir()
        (folder / "config.yaml").write_text(to_yaml(load("parts", {"name": folder.name, "optim.lr": top1})))
        (folder / "metrics.csv").write_text(f"epoch,train_loss,test_top1\n1,2.0,0.1\n2,1.0,{top1}\n")
        (folder / "results.json").write_text(json.dumps({"test_top1": top1, "seconds": 3.0}))
    return folders


def test_report_of_one_run_lies_in_its_folder(cgnl, runs):
    status, out, err = cgnl("report", runs[0])
    assert (status, err) == (0, "")
    assert str(runs[0] / "report.html") in out
    page = (runs[0] / "report.html").read_text()
    assert "25.00%" in page
    assert "75.00%" not in page


def test_report_of_several_lies_beside_the_first(cgnl, runs, tmp_path):
    assert cgnl("report", *runs)[0] == 0
    page = (tmp_path / "comparison.html").read_text()
    assert all(word in page for word in ("2 runs: first, second", "25.00%", "75.00%", "optim.lr"))


def test_report_goes_where_it_is_told(cgnl, runs, tmp_path):
    assert cgnl("report", runs[1], "-o", tmp_path / "new" / "page.htm")[0] == 0
    assert "75.00%" in (tmp_path / "new" / "page.htm").read_text()
    assert not (runs[1] / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"), [(["-o", "page.pdf"], "page.pdf must end in .html"), (["nowhere"], "nowhere is not a run")]
)
def test_report_refuses_in_one_sentence(cgnl, runs, words, message):
    status, out, err = cgnl("report", runs[0], *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
