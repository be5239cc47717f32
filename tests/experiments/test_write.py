"""Tables as text and pictures say what the summary says."""

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cgnl.experiments.runs import Outcome
from cgnl.experiments.statistics import Discordance, estimate
from cgnl.experiments.summary import Line, Pair, Replacement, Summary
from cgnl.experiments.tables import TABLES, Row, Table
from cgnl.experiments.write import (
    draw,
    fill,
    findings,
    markdown,
    page,
    pairs_csv,
    rows_csv,
    rows_markdown,
    sentences,
    write,
)

PLAIN, CGNL, NL = Row("R-50", "cub_r50"), Row("R-50 + 1 CGNL", "cub_r50_cgnl1"), Row("R-50 + 1 NL", "cub_r50_nl1")
ROOT = Path(__file__).parents[2]


def line(row: Row, *top1: float, reason: str = "", top5: float = 95.0) -> Line:
    config = row.config({"model.weights": "w.pth"})
    seeds = {n: Outcome(n, 1, {"top1": value, "top5": top5}, 1.0, config) for n, value in enumerate(top1)}
    return Line(row, seeds, config if top1 else None, reason)


@pytest.fixture
def summary():
    lines = (line(PLAIN, 80.0, 81.0), line(CGNL, 82.0, 82.5), line(NL, reason="no weights"))
    pair = Pair(PLAIN, CGNL, (2.0, 1.5), 85.14 - 84.05, Discordance(100, 1203, 0.0002, 0.31))
    numbers = {"top1": estimate([70.0, 72.0]), "change": estimate([-12.0, -10.5])}
    replacement = Replacement(CGNL, "its mean", numbers, 700, 20)
    return Summary("cub", Table("CUB", (PLAIN, CGNL, NL), "Eight groups."), lines, (pair,), (replacement,))


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("|")]


def test_markdown_has_paper_and_measured_side_by_side(summary):
    head, _, plain, cgnl, nl, *_ = rows(markdown(summary))
    assert head == ["", "top-1, paper", "top-5, paper", "top-1, measured", "top-5, measured", "seeds"]
    assert plain == ["R-50", "84.05", "96.00", "80.50 ± 0.71 [74.15, 86.85]", "95.00 ± 0.00 [95.00, 95.00]", "2"]
    assert cgnl[1:4] == ["85.14", "96.88", "82.25 ± 0.35 [79.07, 85.43]"]
    assert nl == ["R-50 + 1 NL", "84.79", "96.76", "-", "-", "0"]


@pytest.mark.parametrize(("top5", "said"), [(99.9, ["top-5, measured"]), (100.0, [])])
def test_markdown_leaves_out_what_is_always_right(top5, said):
    gestures = Row("C2D R-50", "base_gestures", {"model.block": None}, "gestures")
    text = markdown(Summary("g", Table("G", (gestures,)), (line(gestures, 80.0, top5=top5),), (), ()))
    assert rows(text)[0] == ["", "top-1, measured", *said, "seeds"]


def test_markdown_says_how_and_what_not(summary):
    text = page(summary)
    assert text.startswith("# CUB\n\nEight groups.\n\nresnet50 from the weights w.pth: 448 pixels")
    assert "* R-50 + 1 NL: not run: no weights\n" in text


@pytest.mark.parametrize(
    ("row", "dataset", "said"),
    [(PLAIN, "cub", False), (PLAIN, "parts", True), (Row("R-18", "relation", {}, "relation"), "relation", False)],
)
def test_markdown_says_what_is_drawn_in_place_of_the_paper_s(row, dataset, said):
    config = row.config({"data.dataset": dataset})
    lines = (Line(row, {0: Outcome(0, 1, {"top1": 80.0}, 1.0, config)}, config, ""),)
    assert ("These are synthetic images" in markdown(Summary("t", Table("T", (row,)), lines, (), ()))) == said


def test_markdown_has_pairs_and_whether_attention_matters(summary):
    text = markdown(summary)
    assert "| R-50 + 1 CGNL against R-50 | +1.09 | +1.75 [-1.43, +4.93] | 0.090 | +1,203 / -100 | < 0.001 | 2 |" in text
    assert "| R-50 + 1 CGNL | its mean | 71.00 | -11.25 [-20.78, -1.72] | +20 / -700 | 2 |" in text
    assert "its mean" not in markdown(summary, brief=True)


def test_csv_has_every_number(summary):
    found = list(csv.DictReader(io.StringIO(rows_csv(summary))))
    assert [(r["row"], r["number"], r["paper"], r["mean"], r["seeds"]) for r in found][::2] == [
        ("cub_r50", "top1", "84.05", "80.5", "2"),
        ("cub_r50_cgnl1", "top1", "85.14", "82.25", "2"),
        ("cub_r50_nl1", "top1", "84.79", "", "0"),
    ]
    assert found[0]["by_seed"] == "0:80.0000 1:81.0000"
    assert found[4]["reason"] == "no weights"
    (pair,) = csv.DictReader(io.StringIO(pairs_csv(summary)))
    assert (pair["difference"], pair["won"], pair["lost"], pair["p_samples"]) == ("1.75", "1203", "100", "0.0002")


def test_sentences_say_what_is_gained(summary):
    (said,) = sentences(summary)
    assert said == "R-50 + 1 CGNL: 1.75 points above R-50 (95 % interval -1.43 to +4.93, p = 0.090), 2 seeds."


def test_write_leaves_four_files(summary, tmp_path):
    names = {path.name for path in write(summary, tmp_path)}
    assert names == {"cub.md", "cub.csv", "cub_pairs.csv", "cub.png"} == {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "cub.png").read_bytes().startswith(b"\x89PNG")


def test_write_of_nothing_has_no_picture(summary, tmp_path):
    empty = Summary("cub", summary.table, tuple(line(r, reason="x") for r in summary.table.rows), (), ())
    assert [path.name for path in write(empty, tmp_path)] == ["cub.md", "cub.csv", "cub_pairs.csv"]


def test_draw_names_the_paper_where_it_says_something(summary):
    ours = Row("mine", "parts", {}, "mine")
    alone = Summary("t", Table("T", (ours,), ours=True), (line(ours, 80.0, 81.0),), (), ())
    for drawn, expected in (
        (summary, ["a seed", "mean, 95 % interval", "paper"]),
        (alone, ["a seed", "mean, 95 % interval"]),
    ):
        assert [text.get_text() for text in draw(drawn).axes[1].get_legend().get_texts()] == expected


def test_fill_writes_between_the_marks_alone(tmp_path):
    document = tmp_path / "doc.md"
    text = f"before\n<!-- cgnl reproduce residual in {tmp_path} -->\nold 99.9\n<!-- end -->\nafter\n"
    document.write_text(text + f"<!-- cgnl reproduce cub in {tmp_path}, brief -->\n<!-- end -->")
    assert fill(document) == 2
    filled = document.read_text()
    assert filled.startswith("before\n<!--")
    assert "old 99.9" not in filled
    assert filled.count("| R-50 + 1 CGNL | 85.14 |") == 2
    assert "<!-- end -->\nafter\n" in filled
    assert fill(document) == 2
    assert document.read_text() == filled


def test_fill_takes_rows_as_they_are(tmp_path):
    document, rows = tmp_path / "doc.md", tmp_path / "rows.csv"
    rows.write_text('network,top-1\n"plain, small",81.80\nCG|NL,83.10\n')
    document.write_text(f"<!-- cgnl reproduce rows of {rows} -->\n12\n<!-- end -->\n")
    assert fill(document) == 1
    table = "| network | top-1 |\n| --- | --- |\n| plain, small | 81.80 |\n| CG\\|NL | 83.10 |"
    assert document.read_text() == f"<!-- cgnl reproduce rows of {rows} -->\n{table}\n<!-- end -->\n"
    rows.write_text("")
    with pytest.raises(ValueError, match=r"rows.csv is empty"):
        fill(document)
    rows.unlink()
    with pytest.raises(FileNotFoundError):
        fill(document)


@pytest.mark.parametrize(
    ("mark", "message"), [("nothing in .", "no table 'nothing'"), ("cub in nowhere", "no folder nowhere")]
)
def test_fill_refuses_what_there_is_not(tmp_path, mark, message):
    document = tmp_path / "doc.md"
    document.write_text(f"<!-- cgnl reproduce {mark} -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=f"doc.md: there is {message}"):
        fill(document)


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md", "docs/results.md", "docs/second-order.md"])
def test_documents_hold_what_the_runs_say(name, tmp_path, monkeypatch):
    """A number cannot be typed by hand."""
    monkeypatch.chdir(ROOT)
    copy = tmp_path / "copy.md"
    shutil.copy(ROOT / name, copy)
    fill(copy)
    assert copy.read_text() == (ROOT / name).read_text()


def test_rows_that_wait_are_left_out_of_a_brief_table():
    summary = Summary("cub", TABLES["cub-blocks"], (line(PLAIN, 80.0), line(CGNL)), (), ())
    assert CGNL.label in rows_markdown(summary)
    assert CGNL.label not in rows_markdown(summary, brief=True)
    assert CGNL.label in rows_markdown(replace(summary, lines=(line(CGNL),)), brief=True)


def test_findings_say_primary_words_first_and_correct_the_others():
    names = ("cub_heads_r50", "cub_heads_r50_cgnl1", "cub_heads_r50_covariance", "cub_heads_r50_nl1")
    plain, cgnl, covariance, nl = ({row.name: row for row in TABLES["cub-heads"].rows}[name] for name in names)

    def pair(after: Row, each: tuple[float, ...], paper: float | None = None) -> Pair:
        return Pair(plain, after, each, paper, Discordance(1, 2, 0.5, 0.31))

    pairs = (
        pair(cgnl, (0.1, 0.2, 0.0, 0.15, 0.05), 1.09),
        pair(covariance, (3.0, 3.2, 2.9, 3.1, 3.0)),
        pair(nl, (0.3, -0.4, 0.9, 0.1, 0.2), 0.74),
    )
    summary = Summary("cub-heads", TABLES["cub-heads"], (line(plain, 80.0),), pairs, ())
    first, second, third = findings(summary)
    assert "R-50 + 1 CGNL against R-50: equivalent" in first
    assert "99.48 % interval" in first
    assert "R-50, covariance head against R-50: better" in second
    assert "+3.04 points" in second
    assert "p < 0.001" in second
    assert "undecided" in third
    assert "after Holm" in third
    assert all("0.31 over test samples" in sentence for sentence in (first, second, third))
    assert first in markdown(summary)
    assert "R-50 + 1 CGNL against R-50: fewer than two" in findings(replace(summary, pairs=()))[0]
    waiting = replace(line(cgnl), reason="not yet")
    assert not any(cgnl.label in sentence for sentence in findings(replace(summary, lines=(waiting,), pairs=())))


def test_markdown_lists_what_is_not_run_yet_in_one_line():
    plain, cgnl, nl = TABLES["cub-blocks"].rows[:3]
    missing = [replace(line(row, 80.0), seeds={}, reason="not yet") for row in (cgnl, nl)]
    text = markdown(Summary("cub-blocks", TABLES["cub-blocks"], (line(plain, 80.0), *missing), (), ()))
    assert f"* not run yet: {cgnl.label}; {nl.label}\n" in text
