import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgnl.spelling import LONGEST, counted, first_line, format_duration, nearest, printable


def test_sentence_is_printed_as_it_is():
    assert printable("optim.lr = 3 must be below 1; é 🐦 /a b.png") == "optim.lr = 3 must be below 1; é 🐦 /a b.png"


KNOWN = ["name", "seed", "model.name", "model.dropout", "optim.lr", "optim.momentum"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sed", "did you mean seed?"),
        ("lr", "did you mean optim.lr?"),
        ("optim.lrr", "did you mean optim.lr?"),
        ("optm.lr", "did you mean optim.lr?"),
        ("model.nam", "did you mean model.name?"),
        ("nam", "did you mean name?"),
        ("optim.dropout", "did you mean model.dropout?"),
        ("optim.optimizer", "there is optim.lr, optim.momentum"),
        ("optimizer", f"there is {', '.join(KNOWN)}"),
    ],
)
def test_nearest_suggests_only_what_is_near(name, hint):
    assert nearest(name, KNOWN) == f"; {hint}"


@pytest.mark.parametrize(
    ("number", "thing", "words"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (2, "class", "2 classes"),
        (1, "class", "1 class"),
        (1200, "view", "1,200 views"),
    ],
)
def test_counted_has_a_plural_for_all_but_one(number, thing, words):
    assert counted(number, thing) == words


def test_control_characters_are_spelt_out():
    assert printable("\x1b[31mred\nline\u202e\udc80") == r"\x1b[31mred line\u202e\udc80"


def test_long_words_lose_their_middle():
    text = printable(f"{'a' * 5000} is no number")
    assert text.startswith("aaa")
    assert text.endswith("aaa is no number")
    assert len(text) < 400


@given(st.text())
def test_anything_becomes_one_line(text):
    line = printable(text * 50)
    assert line.isprintable()
    assert len(line) <= 10 * LONGEST  # a letter may take ten to spell out


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one sentence"), "one sentence"),
        (RuntimeError("\nwhat\nand where\n"), "what"),
        (KeyError(), "KeyError"),
        ("it is empty", "it is empty"),
    ],
)
def test_first_line_says_what_went_wrong(error, line):
    assert first_line(error) == line


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3600, "1 h 00 min"),
        (90061, "25 h 01 min"),
        (float("nan"), "-"),
    ],
)
def test_format_duration(seconds, expected):
    assert format_duration(seconds) == expected
