import csv
from dataclasses import replace

import pytest
import torch

from cgnl.bench import report
from cgnl.bench.roofline import Ceilings
from cgnl.bench.runner import Row
from cgnl.bench.settings import read

ROW = Row(
    "block", "reference", "train", "2x16x4x4", "bfloat16", "Dot()", "groups=8", "NVIDIA H200", "2.11.0", "now",
    ms=1.25, ms_20=1.2, ms_80=1.5, eager_ms=1.6, ratio=1.0, added_ms=0.0, peak_mib=98.04, gflop=12.5, tflop_per_s=10.0,
    roofline=0.5, error=3.1e-3,
)  # fmt: skip
FAILED = replace(ROW, row="fused", note="there is none", **dict.fromkeys(("ms", "ms_20", "ms_80", "error")))
WRONG = replace(ROW, row="fused", note="wrong, not timed", ms=None, ms_20=None, ms_80=None, ratio=None)


def test_line_stands_under_its_titles():
    title, line = report.title_line("block", 12), report.line(ROW, 12)
    titles = "row ms 20 % 80 % eager ratio MiB GFLOP TFLOP/s roofline error"
    assert title.split() == titles.split()
    assert line.split() == ["reference", "1.25", "1.2", "1.5", "1.6", "1.00", "98.0", "12.5", "10", "50%", "3.1e-03"]
    assert len(title) == len(line)


def test_line_of_a_network_has_what_was_added():
    line = report.line(replace(ROW, benchmark="network", added_ms=1.5), 12)
    assert "added ms" in report.title_line("network", 12)
    assert "+1.5" in line.split()


def test_line_says_why_there_is_nothing():
    assert report.line(FAILED, 12).split() == ["fused", "-", "there", "is", "none"]
    assert report.line(WRONG, 12).endswith("3.1e-03 wrong, not timed")


def test_write_csv_adds_rows_under_one_header(tmp_path):
    path = tmp_path / "new" / "rows.csv"
    for row in (ROW, FAILED):
        report.check_csv(path)
        report.write_csv([row], path)
    first, second = csv.DictReader(path.open())
    assert list(first) == [
        "benchmark", "row", "mode", "shape", "dtype", "kernel", "settings", "device", "torch", "time", "ms", "ms_20",
        "ms_80", "eager_ms", "ratio", "added_ms", "peak_mib", "gflop", "tflop_per_s", "roofline", "error", "note",
    ]  # fmt: skip
    assert (first["ms"], first["peak_mib"], first["device"]) == ("1.25", "98.04", "NVIDIA H200")
    assert (second["ms"], second["note"]) == ("", "there is none")


def test_check_csv_refuses_another_table(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv is there, and is no table of this benchmark"):
        report.check_csv(path)


@pytest.mark.parametrize("memory", [98.0, None])
def test_draw_writes_a_picture(tmp_path, memory):
    path = tmp_path / "rows.png"
    report.draw([replace(ROW, peak_mib=memory), FAILED], "title", path)
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
    header = report.header(read("block", given, "cpu"), Ceilings(2e12, 3e9))
    assert text in header
    assert "2 TFLOP/s" in header
    assert "3 GB/s" in header
    assert torch.__version__ in header
