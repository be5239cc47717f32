import csv

import pytest
import torch
from torch import nn

from cgnl.bench import runner
from cgnl.bench.measure import Roofline
from cgnl.bench.registry import BENCHMARKS, Subject
from cgnl.bench.runner import Row, compare, measure_rows, reason
from cgnl.cli import main
from cgnl.commands.bench import read_setting

ROOFLINE = Roofline(1e12, 1e10)


def get_rows(subjects, **given):
    setting = read_setting("block", {"channels": 16, "size": "4", "seconds": 1e-3, **given}, "cpu")
    return {row["row"]: row for row in measure_rows(setting, subjects, ROOFLINE)}


REFERENCE, *_ = BENCHMARKS["block"].subjects


def test_measure_rows_measures():
    row = get_rows([REFERENCE])["reference"]
    assert [row[k] for k in ("benchmark", "mode", "shape", "dtype")] == ["block", "train", "2x16x4x4", "float32"]
    assert 0 < row["ms_20"] <= row["ms"] <= row["ms_80"]
    assert row["tflop_per_s"] == pytest.approx(row["gflop"] / row["ms"])
    assert row["roofline"] > 0
    assert [row[k] for k in ("ratio", "added_ms", "peak_mib", "note")] == [1, 0, None, ""]
    assert 0 < row["error"] < 1e-5


def test_measure_rows_does_not_time_what_is_wrong():
    class Wrong(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block
            self.load_state_dict = block.load_state_dict

        def forward(self, x):
            return self.block(x) + 0.1 * x

    wrong = Subject("wrong", lambda s: Wrong(REFERENCE.build(s)), like_reference=True, counts_as="reference")
    rows = get_rows([wrong, REFERENCE])
    assert "ms" not in rows["wrong"]
    assert rows["wrong"]["note"].startswith("wrong: error above")
    assert rows["wrong"]["error"] > 0.01
    assert rows["reference"]["ms"] > 0


def test_measure_rows_go_on_after_one_that_fails():
    def fail(_):
        raise TypeError("no such thing\nand more of it")

    rows = get_rows([Subject("broken", fail), REFERENCE])
    assert (rows["broken"].get("ms"), rows["broken"]["note"]) == (None, "no such thing")
    assert rows["reference"]["ms"] > 0


def test_measure_rows_give_contiguous_input_to_who_asks_for_it():
    class Flat(nn.Module):
        def forward(self, x):
            return (2 * x).view(-1).view(x.shape)

    row = get_rows([Subject("flat", lambda _: Flat())])["flat"]
    assert row["ms"] > 0
    assert row["note"] == "refuses channels_last: contiguous input"
    assert "channels_last" not in row["settings"]


def test_measure_rows_say_when_the_reference_cannot_run():
    setting = read_setting("network", {"network": "c2d_resnet18", "blocks": 1, "size": "4x32x32"}, "cpu")
    with pytest.raises(ValueError, match=r"the reference itself cannot run: .*at least 7 frames, got 4"):
        next(measure_rows(setting, [REFERENCE], ROOFLINE))


@pytest.mark.parametrize(
    ("name", "small", "names"),
    [
        ("ops", {"channels": 16, "size": "4"}, ["reference", "non-local sdpa"]),
        (
            "network",
            {"network": "resnet18", "blocks": 1, "size": "32"},
            ["plain", "reference"],
        ),
    ],
)
def test_measure_rows_of_other_benchmarks(name, small, names):
    setting = read_setting(name, {**small, "seconds": 1e-3, "dtype": "bfloat16"}, "cpu")
    rows = list(measure_rows(setting, BENCHMARKS[name].choose(*names), ROOFLINE))
    assert [row["row"] for row in rows] == names
    assert all(row["ms"] and row["ratio"] and not row["note"] for row in rows)
    assert [row["error"] is not None for row in rows] == [row == "reference" for row in names]


def test_measure_rows_compare_with_the_row_that_a_subject_names():
    other = Subject("other", REFERENCE.build)
    named = Subject("named", REFERENCE.build, compared_with="other")
    rows = get_rows([REFERENCE, other, named])
    ms = {name: row["ms"] for name, row in rows.items()}
    assert rows["named"]["ratio"] == ms["named"] / ms["other"]
    assert rows["other"]["ratio"] == ms["other"] / ms["reference"]
    assert ("other" in rows["named"]["note"], rows["other"]["note"]) == (True, "")
    alone = get_rows([REFERENCE, named])["named"]  # without the row that it is compared with
    assert (alone.get("ratio"), alone["note"]) == (None, "")


def row(ms: float | None) -> Row:
    return {"benchmark": "network", "row": "a", "ms": ms, "note": ""}


def test_compare_to_the_baseline():
    result = compare(row(3.0), row(2.0))
    assert (result["ratio"], result["added_ms"]) == (1.5, 1.0)
    assert compare(row(3.0), row(2.0), "b")["note"] == "ratio to b"
    assert "ratio" not in compare(row(None), row(2.0))
    assert "ratio" not in compare(row(3.0), None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("\n  first\nsecond"), "first"),
        (RuntimeError(), "RuntimeError"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried ..."), "out of memory"),
    ],
    ids=str,
)
def test_reason(error, text):
    assert reason(error) == text


def test_reason_of_what_cannot_be_compiled_is_the_error_itself():
    def refuse(*_):
        raise ValueError("cannot\nand more")

    with pytest.raises(Exception, match="raised:") as caught:
        torch.compile(torch.neg, backend=refuse)(torch.ones(2))
    assert reason(caught.value) == "cannot"


SMALL = ["network=resnet18", "blocks=1", "size=32", "seconds=0.001"]


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(runner, "MIN_REQUESTS", 4)


choose = BENCHMARKS["serve"].choose


@pytest.mark.usefixtures("few")
def test_latencies_are_enough_unless_they_take_too_long(monkeypatch):
    calls = []
    assert len(runner.latencies(lambda: calls.append(1), 0.0)) == 4
    assert len(calls) == 3 + 4
    monkeypatch.setattr(runner, "MAX_SECONDS", 0.0)
    assert len(runner.latencies(lambda: calls.append(1), 1e-9)) == 1


@pytest.mark.usefixtures("few")
def test_serve_measures_what_is_right():
    given = {"network": "resnet18", "blocks": 1, "size": "32", "batch": 2, "seconds": 1e-3}
    chosen = choose("reference", "fused", "folded", "plain folded graph")
    rows = {row["row"]: row for row in runner.serve_rows(read_setting("serve", given, "cpu"), chosen)}
    for name in ("reference", "folded"):
        row = rows[name]
        assert 0 < row["error"] < 1e-4
        assert 0 < row["ms"] <= row["ms_99"]
        assert row["requests"] == 4
        assert row["per_second"] > 0
    assert (rows["fused"].get("ms"), rows["fused"]["note"]) == (None, "only on a GPU")
    assert rows["plain folded graph"]["error"] is None


@pytest.mark.usefixtures("few")
def test_serve_measures_a_head():
    given = {"network": "resnet18", "blocks": 1, "size": "64", "head": "covariance", "reduced": 16, "seconds": 1e-3}
    (row,) = runner.serve_rows(read_setting("serve", given, "cpu"), choose("folded"))
    assert row["ms"] > 0
    assert 0 < row["error"] < 1e-3
    assert "head=covariance reduced=16" in row["settings"]


@pytest.mark.usefixtures("few")
def test_serve_goes_on_when_a_way_fails():
    def fail(*_):
        raise RuntimeError("no room\nat all")

    setting = read_setting("serve", {"network": "resnet18", "blocks": 1, "size": "32", "seconds": 1e-3}, "cpu")
    failed, folded = runner.serve_rows(setting, [Subject("broken", fail), *choose("folded")])
    assert (failed["note"], failed.get("ms")) == ("no room", None)
    assert folded["ms"] > 0


@pytest.mark.usefixtures("few")
def test_bench_serve_by_hand(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(runner, "BATCHES", (1, 2))
    table = tmp_path / "rows.csv"
    assert main(["bench", "serve", *SMALL, "rows=folded,fused", f"csv={table}"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("cgnl bench serve: 3 x 32 x 32, float32, Dot()\n")
    rows = list(csv.DictReader(table.open()))
    shapes = ["1x3x32x32", "1x3x32x32", "2x3x32x32", "2x3x32x32"]
    assert [(row["row"], row["shape"]) for row in rows] == list(zip(["fused", "folded"] * 2, shapes, strict=True))


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
