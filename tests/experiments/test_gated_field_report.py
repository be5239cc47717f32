"""The gated field's table: what is written is what is read, and what the page says of it."""

import pytest

from cgnl.experiments.gated_field_report import Result, conclusion, markdown, read_results, write_results

RESULTS = [
    Result("none", 0.0, 50.01, 0.02, 50.96, (50.0, 50.02), 0.003, 2.5),
    Result("global context", 0.0, 50.3, None, None, (50.3,), 0.01, 3.0),
    Result("CGNL, 1 group", 0.0, 99.1, 0.1, 99.81, (99.0, 99.2), 0.01, 6.0),
    Result("CGNL, 8 groups", 0.0, 98.4, 0.1, 99.81, (98.3, 98.5), 0.01, 6.0),
    Result("CGNL, 8 groups, group norm", 0.0, 62.0, 0.1, 99.81, (62.0, 62.0), 0.01, 6.0),
    Result("CGNL, 8 groups", 0.5, 78.0, 0.1, 99.81, (78.0, 78.0), 0.03, 6.0),
]


def test_results_are_read_as_they_were_written(tmp_path):
    write_results(RESULTS, tmp_path / "t.csv")
    assert read_results(tmp_path / "t.csv") == RESULTS


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "block,contrast\n"])
def test_read_results_refuses_another_table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv is no table of the gated field"):
        read_results(tmp_path / "t.csv")


def test_page_has_the_table_the_sentence_and_the_caveat():
    text = markdown(RESULTS)
    assert "| global context | - | 50.30 | - | - | 50.30 | 0.01 | 3.0 |" in text
    assert "| CGNL, 8 groups | 0.5 | 78.00 | 0.10 | 99.81 | 78.00 78.00 | 0.03 | 6.0 |" in text
    assert conclusion(RESULTS) in text
    assert (
        text.index("| none |") < text.index("98.4 to 99.1 %") < text.index("linear stem and a linear head, and no more")
    )


def test_conclusion_compares_what_has_the_same_task():
    assert "98.4 to 99.1 %" in conclusion(RESULTS)
    assert "global context, at 50.3 %" in conclusion(RESULTS)
    assert conclusion(RESULTS[:2]) == ""
