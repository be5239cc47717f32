import csv

import pytest
import torch

from cgnl.bench import serving
from cgnl.bench.registry import BENCHMARKS, Subject
from cgnl.cli import main
from cgnl.commands.bench import read_setting

SMALL = ["network=resnet18", "blocks=1", "size=32", "seconds=0.001"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(serving, "MIN_REQUESTS", 4)


choose = BENCHMARKS["serve"].choose


def test_latencies_are_enough_unless_they_take_too_long(monkeypatch):
    calls = []
    assert len(serving.latencies(lambda: calls.append(1), 0.0)) == 4
    assert len(calls) == 3 + 4
    monkeypatch.setattr(serving, "MAX_SECONDS", 0.0)
    assert len(serving.latencies(lambda: calls.append(1), 1e-9)) == 1


def test_serve_measures_what_is_right():
    setting = read_setting(
        "serve", {"network": "resnet18", "blocks": 1, "size": "32", "batch": 2, "seconds": 1e-3}, "cpu"
    )
    rows = {
        row["row"]: row for row in serving.serve(setting, choose("reference", "fused", "folded", "plain folded graph"))
    }
    for name in ("reference", "folded"):
        row = rows[name]
        assert 0 < row["error"] < 1e-4
        assert 0 < row["ms"] <= row["ms_99"]
        assert row["requests"] == 4
        assert row["per_second"] > 0
    assert (rows["fused"].get("ms"), rows["fused"]["note"]) == (None, "only on a GPU")
    assert rows["plain folded graph"]["error"] is None


def test_serve_measures_a_head():
    given = {"network": "resnet18", "blocks": 1, "size": "64", "head": "covariance", "reduced": 16, "seconds": 1e-3}
    rows = list(serving.serve(read_setting("serve", given, "cpu"), choose("reference", "folded")))
    assert all(row["ms"] and 0 < row["error"] < 1e-3 for row in rows)
    assert all("head=covariance reduced=16" in row["settings"] for row in rows)


def test_serve_goes_on_when_a_way_fails():
    def fail(*_):
        raise RuntimeError("no room\nat all")

    setting = read_setting("serve", {"network": "resnet18", "blocks": 1, "size": "32", "seconds": 1e-3}, "cpu")
    failed, folded = serving.serve(setting, [Subject("broken", fail), *choose("folded")])
    assert (failed["note"], failed.get("ms")) == ("no room", None)
    assert folded["ms"] > 0


def test_bench_serve_by_hand(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serving, "BATCHES", (1, 2))
    table = tmp_path / "rows.csv"
    for _ in range(2):
        assert main(["bench", "serve", *SMALL, "rows=folded,fused", f"csv={table}"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("cgnl bench serve: 3 x 32 x 32, float32, Dot()\n")
    rows = list(csv.DictReader(table.open()))
    shapes = ["1x3x32x32", "1x3x32x32", "2x3x32x32", "2x3x32x32"]
    assert [(row["row"], row["shape"]) for row in rows] == list(zip(["fused", "folded"] * 4, shapes * 2, strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mode=train"], "cgnl bench serve measures inference alone"),
        (["rows=foldd"], "there is no row 'foldd'; did you mean folded?"),
        (["network=maskrcnn_resnet50_fpn"], "maskrcnn_resnet50_fpn is a detector"),
        (["plot=a.png"], "cgnl bench serve measures inference alone"),
        (["channels=3"], "cgnl bench serve has no option 'channels'"),
        (["head=gap"], "unknown head 'gap'"),
        (["network=resnet18", "blocks=1", "rows=fused"], "no row could be measured"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_bench_serve_refuses_in_one_sentence(capsys, words, message):
    assert main(["bench", "serve", "size=32", *words]) == 2
    _, err = capsys.readouterr()
    assert err.startswith(f"cgnl bench: {message}")
    assert err.count("\n") == 1
