import csv
from pathlib import Path

import pytest
import torch

from cgnl.bench import report
from cgnl.bench.measure import Roofline
from cgnl.commands.bench import read_setting

ROW = {
    "benchmark": "block", "row": "reference", "mode": "train", "shape": "2x16x4x4", "dtype": "bfloat16",
    "kernel": "Dot()", "settings": "groups=8", "device": "NVIDIA H200", "torch": "2.11.0", "time": "now",
    "ms": 1.25, "ms_20": 1.2, "ms_80": 1.5, "eager_ms": 1.6, "eager_adds": 160.2, "ratio": 1.0,
    "added_ms": 0.0, "peak_mib": 98.04, "gflop": 12.5, "tflop_per_s": 10.0, "roofline": 0.5, "error": 3.1e-3,
    "note": "",
}  # fmt: skip
FAILED = {k: ROW[k] for k in report.HEADING} | {"row": "fused", "note": "there is none"}
WRONG = FAILED | {"error": 3.1e-3, "note": "wrong, not timed"}
SERVED = {k: ROW[k] for k in report.HEADING} | {
    "benchmark": "serve", "per_second": 256.06, "ms": 7.7561, "ms_99": 9.279, "requests": 100, "error": 3e-5,
    "note": "",
}  # fmt: skip


def test_line_stands_under_its_titles():
    title, line = report.title_line("block", 12), report.line(ROW, 12)
    titles = "row ms 20 % 80 % eager add_ ratio MiB GFLOP TFLOP/s roofline error"
    assert title.split() == titles.split()
    numbers = ["1.25", "1.2", "1.5", "1.6", "160", "1.00", "98.0", "12.5", "10", "50%", "3.1e-03"]
    assert line.split() == ["reference", *numbers]
    assert len(title) == len(line)


def test_line_of_a_network_has_what_was_added():
    line = report.line(ROW | {"benchmark": "network", "added_ms": 1.5}, 12)
    assert "added ms" in report.title_line("network", 12)
    assert "+1.5" in line.split()


def test_line_says_why_there_is_nothing():
    assert report.line(FAILED, 12).split() == ["fused", "-", "there", "is", "none"]
    assert report.line(WRONG, 12).endswith("3.1e-03 wrong, not timed")


def test_line_of_a_served_network_begins_with_the_batch():
    title, line = report.title_line("serve", 12), report.line(SERVED, 12)
    assert title.split() == ["batch", "row", "samples/s", "ms", "99", "%", "requests", "error"]
    assert line.split() == ["2", "reference", "256.1", "7.756", "9.279", "100", "3.0e-05"]
    assert len(title) == len(line)


@pytest.mark.parametrize("name", ["bench", "serve"])
def test_csv_fields_are_those_of_committed_results(name):
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / f"{name}.csv"
    report.check_csv(path, "serve" if name == "serve" else "block")


def test_write_csv_adds_rows_under_one_header(tmp_path):
    path = tmp_path / "new" / "rows.csv"
    for row in (ROW, FAILED):
        report.check_csv(path, "block")
        report.write_csv([row], path)
    first, second = csv.DictReader(path.open())
    assert list(first) == [
        "benchmark", "row", "mode", "shape", "dtype", "kernel", "settings", "device", "torch", "time", "ms", "ms_20",
        "ms_80", "eager_ms", "eager_adds", "ratio", "added_ms", "peak_mib", "gflop", "tflop_per_s", "roofline", "error",
        "note",
    ]  # fmt: skip
    assert (first["ms"], first["peak_mib"], first["device"]) == ("1.25", "98.04", "NVIDIA H200")
    assert (second["ms"], second["note"]) == ("", "there is none")


def test_check_csv_refuses_another_table(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv"):
        report.check_csv(path, "block")


@pytest.mark.parametrize("memory", [98.0, None])
def test_plot_writes_a_picture(tmp_path, memory):
    path = tmp_path / "rows.png"
    report.plot([ROW | {"peak_mib": memory}, FAILED], "title", path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "everything in float32, without TF32"),
        ({"dtype": "tf32"}, "multiplied as TF32"),
        ({"dtype": "bfloat16"}, "parameters in float32, input in bfloat16, under autocast"),
        ({"dtype": "float16", "mode": "forward"}, "modules and input in float16, the norms of our blocks in float32"),
    ],
    ids=str,
)
def test_header_says_what_the_precision_means(given, text):
    header = report.header(read_setting("block", given, "cpu"), Roofline(2e12, 3e9))
    assert text in header
    assert "2 TFLOP/s" in header
    assert "3 GB/s" in header
    assert torch.__version__ in header
