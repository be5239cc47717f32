"""YAML that could take endless time or memory is refused before it is built."""

import pytest

from cgnl.safe_yaml import DEEPEST, LONGEST, parse, read


def test_parse_reads_what_recipes_hold():
    assert parse("a: [1, 2.5, x]\nb: {c: null, d: true}\n", "f") == {"a": [1, 2.5, "x"], "b": {"c": None, "d": True}}
    assert parse("", "f") is None


def test_parse_takes_what_is_just_deep_and_long_enough():
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert str(parse(deep, "f")) == deep
    assert parse("#" * (LONGEST - 2) + "\n1", "f") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [x]\nb: *a\n", "f has an alias"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"f has more than {DEEPEST} brackets"),
        ("#" * (LONGEST + 1), f"f is too long: {LONGEST + 1:,} characters"),
        ("a: [1", "f is not YAML: while parsing"),
        ("!!python/object/apply:os.system [ls]", "f is not YAML: could not determine a constructor"),
        ("!!int ''", "f is not YAML: "),
    ],
)
def test_parse_refuses(text, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        parse(text, "f")


@pytest.mark.parametrize(
    ("content", "reason"), [(b"#" * (LONGEST + 1), "is too long: more than"), (b"a: \xff", "is not YAML: 'utf-8'")]
)
def test_read_refuses(tmp_path, content, reason):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=f"a.yaml {reason}"):
        read(tmp_path / "a.yaml")
