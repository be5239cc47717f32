import re

import pytest

from cgnl.report.curves import draw_curves, is_share, panels, words
from cgnl.report.run import read_run

from .conftest import ROWS, Reader


def test_panels_bring_training_and_test_together(folder):
    found = panels([read_run(folder(rows=ROWS))])
    assert found == {
        "loss": ["train_loss", "test_loss"],
        "top1": ["train_top1", "test_top1"],
        "lr": ["lr"],
        "samples_per_second": ["samples_per_second"],
    }


def test_panels_take_columns_of_other_tasks(folder):
    row = {"epoch": 1, "train_loss_mask": 1, "test_box_ap": 0.3}
    found = panels([read_run(folder(rows=[row, row | {"epoch": 2}]))])
    assert found == {"loss_mask": ["train_loss_mask"], "box_ap": ["test_box_ap"]}


def test_panels_leave_details_of_average_precision_to_the_table(folder):
    row = {"epoch": 1, "test_box_ap50": 0.3, "test_box_ap75": 0.2, "test_mask_ap_small": -1, "test_mask_ar_100": 0.4}
    assert panels([read_run(folder(rows=[row, row | {"epoch": 2}]))]) == {"box_ap50": ["test_box_ap50"]}


def test_panels_of_a_single_epoch_are_none(folder):
    run = read_run(folder(rows=[{"epoch": 1, "train_loss_mask": 1, "test_box_ap": 0.3}]))
    assert panels([run]) == {}
    assert draw_curves([run]) is None
    assert panels([run, read_run(folder("two", rows=ROWS))]).keys() >= {"loss", "top1"}


def test_words_and_shares_of_average_precision():
    assert words("test_box_ap50") == "test box AP50"
    assert words("mask_ar_100") == "mask AR 100"
    assert [name in words("best_top1") for name in ("top-1", "best.ckpt")] == [True, True]
    assert [name in words("best_box_ap") for name in ("box AP", "best.ckpt")] == [True, True]
    assert [is_share(name) for name in ("test_mask_ap", "best_top1", "loss_box_reg", "lr")] == [
        True,
        True,
        False,
        False,
    ]


def test_draw_curves_suits_its_page(folder):
    text = draw_curves([read_run(folder(rows=ROWS))])
    assert text is not None
    assert text.startswith("<svg")
    assert "currentColor" in text
    assert re.search(r"https?:|#010203|<metadata", text) is None
    words = Reader(text).text
    assert all(title in words for title in ("loss", "top-1, %", "learning rate", "samples per second"))


def test_draw_curves_names_runs(folder):
    runs = [read_run(folder("a<b", rows=ROWS)), read_run(folder("two", rows=ROWS[:1])), read_run(folder("$_{^$"))]
    words = Reader(draw_curves(runs) or "").text
    assert "a<b" in words
    assert "$_{^$" in words
    assert "two" in words


def test_draw_curves_of_several_runs_say_what_is_dashed(folder):
    both, one = (
        Reader(draw_curves([read_run(folder(f"{n}{i}", rows=rows)) for i in "ab"]) or "").text
        for n, rows in enumerate((ROWS, [{"epoch": i, "train_loss": 2.0} for i in (1, 2)]))
    )
    assert ("training" in both, "training" in one) == (True, False)


def test_draw_curves_begin_at_zero_and_cut_no_point(folder, monkeypatch):
    figures = []
    monkeypatch.setattr("cgnl.report.curves.to_svg", figures.append)
    rows = [{"epoch": i, "train_loss": 2.16, "test_loss": 1.72, "test_top1": 0.0} for i in (1, 2)]
    draw_curves([read_run(folder(rows=rows))])
    loss, top1, _ = figures[0].axes
    assert (loss.get_ylim()[0], loss.get_ylim()[1] > 2.2) == (0, True)  # the point is not on the edge
    assert [label for label in loss.get_xticks() if 0.9 < label < 1.1] == [1]
    assert top1.get_ylim()[0] == 0
    assert not any(line.get_clip_on() for line in top1.get_lines())  # nor is one that is on it cut in half


@pytest.mark.parametrize("share", [0.5, 0.97, 1.0])
def test_percent_never_runs_past_a_hundred(folder, monkeypatch, share):
    figures = []
    monkeypatch.setattr("cgnl.report.curves.to_svg", figures.append)
    draw_curves([read_run(folder(rows=[{"epoch": i, "test_top1": share} for i in (1, 2)]))])
    assert 100 * share <= figures[0].axes[0].get_ylim()[1] <= 100


def test_draw_curves_of_nothing(folder):
    assert draw_curves([read_run(folder())]) is None


def test_draw_curves_of_a_loss_that_was_once_large_is_logarithmic(folder):
    losses = [50.0, 1.0, 0.5, 0.4]
    rows = [{"epoch": i + 1, "test_loss": loss} for i, loss in enumerate(losses)]
    tall = draw_curves([read_run(folder(rows=rows))])
    flat = draw_curves([read_run(folder("two", rows=rows[1:]))])
    assert ("10^{1}" in (tall or ""), "10^{1}" in (flat or "")) == (True, False)
    assert "$" not in Reader(tall or "").text
