"""Text becomes a value of the type that a setting has, or is refused."""

from typing import Annotated, Any, Literal

import pytest

from cgnl.engine.values import NonNegativeInt, PositiveFloat, PositiveInt, Share, choices, convert, describe

Side = Annotated[int, "> 0", "<= 8192"]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, 3),
        ("1e-2", float, 0.01),
        ("true", bool, True),
        ("007", str, "007"),
        ("null", str | None, None),
        ("0.5", PositiveFloat | None, 0.5),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ("step", Literal["cosine", "step"], "step"),
        ("rbf", Literal["dot", "rbf"] | dict[str, Any], "rbf"),
        ("{a: 1}", dict[str, Any], {"a": 1}),
        (8192, Side, 8192),
        (0, NonNegativeInt, 0),
    ],
    ids=str,
)
def test_convert_reads_a_value_as_its_type(value, kind, expected):
    converted = convert("x", value, kind)
    assert (converted, type(converted)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("many", int, "a whole number"),
        (True, int, "a whole number"),
        (2.5, PositiveInt, "a whole number"),
        ("fast", float | None, "a number or null"),
        ("perhaps", bool, "true or false"),
        ("null", int, "a whole number"),
        (None, PositiveInt, "a whole number"),
        ("linear", Literal["cosine", "step"], "one of cosine, step"),
        ("[1]", tuple[float, float], "tuple[float, float]"),
        (0, PositiveInt, "more than 0"),
        (10**30, Side, "at most 8,192"),
        (float("nan"), PositiveFloat, "more than 0"),
        (-1, NonNegativeInt | None, "at least 0"),
        (1.0, Share, "below 1"),
    ],
    ids=str,
)
def test_convert_says_what_a_value_must_be(value, kind, reason):
    with pytest.raises(ValueError, match=r"^data\.x = ") as error:
        convert("data.x", value, kind)
    given = "null" if value is None or value == "null" else value
    assert str(error.value) == f"data.x = {given} must be {reason}"


def test_describe_and_choices_of_a_type():
    assert describe(Literal["cosine", "step"] | None) == "one of cosine, step or null"
    assert describe(dict[str, Any]) == "dict[str, Any]"
    assert choices(Literal["cosine", "step"] | None) == ("cosine", "step")
    assert choices(PositiveInt) == ()
