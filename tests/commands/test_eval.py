import json
from pathlib import Path

import pytest


@pytest.fixture
def tested(monkeypatch, tmp_path):
    """Tests of two files whose results are 0.25, 0.5, ... in turn, and the settings that they are given."""
    calls = []
    monkeypatch.chdir(tmp_path)
    for name in ("a.ckpt", "b.ckpt"):
        Path(name).touch()

    def evaluate(path, settings):
        calls.append((path, settings))
        return {"test": {"test_top1": len(calls) / 4}, "words": ["a line"], "of": "", "metric": "top1"}

    monkeypatch.setattr("cgnl.engine.evaluate.evaluate", evaluate)
    return calls


def test_eval_prints_each_test_and_their_mean(cgnl, tested):
    status, out, err = cgnl("eval", "a.ckpt", "b.ckpt", "data.test_clips=5")
    assert (status, err) == (0, "")
    assert out.splitlines()[:4] == ["a.ckpt", "a line", "b.ckpt", "a line"]
    assert "mean of 2 checkpoints" in out
    assert "37.50%" in out
    assert tested == [(name, {"data.test_clips": "5"}) for name in ("a.ckpt", "b.ckpt")]


def test_eval_prints_json(cgnl, tested):
    _, out, _ = cgnl("eval", "a.ckpt", "--json")
    assert json.loads(out) == {"tests": [{"checkpoint": "a.ckpt", "test_top1": 0.25}], "mean_top1": 0.25}
    assert len(tested) == 1


@pytest.mark.parametrize("setting", ["data.test_clips=x", "data.test_clips=0", "model.name=resnet5", "data.siz=3"])
def test_eval_refuses_a_setting_before_it_opens_anything(cgnl, tested, setting):
    status, out, err = cgnl("eval", "a.ckpt", setting)
    assert (status, out, tested) == (2, "", [])
    assert setting.partition("=")[0] in err
