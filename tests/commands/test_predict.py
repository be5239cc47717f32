import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cgnl.engine.predict import FilePrediction
from cgnl.engine.tasks import Images

RESULTS = [
    FilePrediction(Path("a.png"), ("cat", "dog"), (0.75, 0.25)),
    FilePrediction(Path("b.png"), problem="b.png is empty"),
]


@pytest.fixture(autouse=True)
def _trained(monkeypatch, tmp_path):
    """A classifier that says ``RESULTS``, whatever it is shown."""
    monkeypatch.chdir(tmp_path)
    for name in ("last.ckpt", "a.png", "b.png"):
        Path(name).touch()
    monkeypatch.setattr("cgnl.engine.checkpoint.open_trained", lambda _: SimpleNamespace(kind="images", task=Images))
    monkeypatch.setattr("cgnl.engine.predict.find_samples", lambda files, _: list(map(Path, files)))
    monkeypatch.setattr("cgnl.engine.predict.predict_samples", lambda *_: iter(RESULTS))


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]], ids=str)
def test_predict_prints_what_it_can_and_says_what_it_cannot(cgnl, form):
    status, out, err = cgnl("predict", "last.ckpt", "a.png", "b.png", *form)
    assert status == 2
    assert err.splitlines() == ["cgnl predict: b.png is empty", "cgnl predict: 1 of 2 could not be read"]
    if form == ["--json"]:
        top = [{"class": "cat", "probability": 0.75}, {"class": "dog", "probability": 0.25}]
        assert json.loads(out) == [{"file": "a.png", "top": top}, {"file": "b.png", "problem": "b.png is empty"}]
    elif form == ["--csv"]:
        assert out.splitlines() == ["file,rank,class,probability", "a.png,1,cat,0.750000", "a.png,2,dog,0.250000"]
    else:
        assert out == "a.png\n   75.00%  cat\n   25.00%  dog\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.png", "top=0"], "top = 0"),
        (["a.png", "threshold=1.5"], "threshold = 1.5"),
        (["a.png", "threshold=0.5"], "--threshold"),
        (["a.png", "--draw", "out"], "--draw"),
        (["a.png", "--json", "--csv"], "--json or --csv"),
        ([], "a file"),
        (["a.png", "c.png"], "there is no c.png"),
    ],
)
def test_predict_refuses(cgnl, arguments, message):
    status, out, err = cgnl("predict", "last.ckpt", *arguments)
    assert (status, out) == (2, "")
    assert message in err
