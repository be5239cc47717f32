import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cgnl
from cgnl.text import (
    LONGEST,
    counted,
    escape,
    escape_record,
    first_line,
    format_duration,
    nearest,
    percent,
    printable,
    say,
)


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
        ("Seed", "did you mean seed?"),
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


@pytest.mark.parametrize(("share", "text"), [(0.0, "0.00%"), (0.12345, "12.35%"), (1.0, "100.00%"), (-1.0, "-")])
def test_percent(share, text):
    assert percent(share) == text


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


def test_escape_spells_out_what_a_terminal_obeys_and_nothing_else():
    assert escape("\x1b[2J\r\n\t\x7f\x9b\u2028\u202e\u2067\udc80") == r"\x1b[2J\r\n\t\x7f\x9b\u2028\u202e\u2067\udc80"
    fine = "  two spaces, é 🐦 \N{NO-BREAK SPACE} می\N{ZERO WIDTH NON-JOINER}خواهم \\x1b"
    assert escape(fine) == fine


@given(st.text())
def test_escaped_text_is_one_line_that_can_be_encoded(text):
    assert len(escape(text).encode().splitlines()) <= 1
    assert escape(escape(text)) == escape(text)


def test_say_prints_a_line_for_each(capsys):
    say("a\nb", "", Path("c\x1b"))
    say("wrong\r", error=True)
    assert capsys.readouterr() == ("a\\nb\n\nc\\x1b\n", "wrong\\r\n")


def test_escape_record_leaves_what_is_not_formatted():
    record = logging.LogRecord("cgnl", logging.INFO, "file", 1, "%s is 100 %% \x1b", ("a%s\n",), None)
    assert escape_record(record)
    assert record.getMessage() == r"a%s\n is 100 % \x1b"


PRINTS = {
    "cli.py",
    "text.py",
    "engine/distributed.py",
    "commands/bench.py",
    "commands/models.py",
    "report/app.py",
} | {"experiments/gated_field.py"}
"""Modules that print nothing that strangers named, or escape it themselves."""


def test_everything_else_is_printed_by_say():
    root = Path(str(cgnl.__file__)).parent
    for path in root.rglob("*.py"):
        if path.relative_to(root).as_posix() in PRINTS:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.match(r"\s*print\((?!json(_module)?\.dumps)", line), f"{path}: {line}: use text.say"
