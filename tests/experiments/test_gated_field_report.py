"""The gated field's table: what is written is what is read, and what the page says of it."""

import pytest

from cgnl.engine.atomic_io import write_csv
from cgnl.experiments.gated_field_report import TITLES, conclude, markdown, read_rows

HEAD = ",".join(f'"{title}"' for title in TITLES)
ROWS = [
    ["none", "-", "50.01", "0.02", "50.96", "50.00 50.02", "0.003", "2.5"],
    ["global context", "-", "50.30", "-", "-", "50.30", "0.01", "3.0"],
    ["CGNL, 1 group", "-", "99.10", "0.10", "99.81", "99.00 99.20", "0.01", "6.0"],
    ["CGNL, 8 groups", "-", "98.40", "0.10", "99.81", "98.30 98.50", "0.01", "6.0"],
    ["CGNL, 8 groups, group norm", "-", "62.00", "0.10", "99.81", "62.00 62.00", "0.01", "6.0"],
    ["CGNL, 8 groups", "0.5", "78.00", "0.10", "99.81", "78.00 78.00", "0.03", "6.0"],
]


def test_rows_are_read_as_they_were_written(tmp_path):
    write_csv(tmp_path / "t.csv", TITLES, ROWS)
    assert read_rows(tmp_path / "t.csv") == ROWS


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "block,contrast\n", f"{HEAD}\n", f"{HEAD}\nnone,-\n"])
def test_read_rows_refuses_another_table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv is no table of the gated field"):
        read_rows(tmp_path / "t.csv")


def test_page_has_the_table_the_sentence_and_the_caveat():
    text = markdown(ROWS)
    assert "| global context | - | 50.30 | - | - | 50.30 | 0.01 | 3.0 |" in text
    assert "| CGNL, 8 groups | 0.5 | 78.00 | 0.10 | 99.81 | 78.00 78.00 | 0.03 | 6.0 |" in text
    assert conclude(ROWS) in text
    assert (
        text.index("| none |") < text.index("98.4 to 99.1 %") < text.index("linear stem and a linear head, and no more")
    )


def test_conclude_compares_what_has_the_same_task():
    assert "98.4 to 99.1 %" in conclude(ROWS)
    assert "global context, at 50.3 %" in conclude(ROWS)
    assert conclude(ROWS[:2]) == ""
