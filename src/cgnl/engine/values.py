"""Types of settings and options, and how text is read as one of them. Nothing heavy is imported."""

import operator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..extras import need

PositiveInt = Annotated[int, "> 0"]
NonNegativeInt = Annotated[int, ">= 0"]
PositiveFloat = Annotated[float, "> 0"]
Share = Annotated[float, ">= 0", "< 1"]

_RULES = {
    ">": (operator.gt, "more than"),
    ">=": (operator.ge, "at least"),
    "<": (operator.lt, "below"),
    "<=": (operator.le, "at most"),
}


WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def convert(name: str, value: Any, kind: Any) -> Any:
    """Return a value, often text, as the type of the setting or option ``name``, or raise for it.

    ``Annotated`` numbers may have limits: ``Annotated[int, "> 0", "<= 8192"]``.
    """
    try:
        converted = _parser(kind).parse_object({"value": value}).value
    except Exception:  # jsonargparse's errors have no common type
        raise ValueError(f"{name} = {value} must be {describe(kind)}") from None
    if converted is None:
        if NoneType in _members(kind):
            return None
        raise ValueError(f"{name} = null must be {describe(kind)}")
    for rule in [rule for member in _members(kind) for rule in getattr(member, "__metadata__", ())]:
        sign, limit = rule.split()
        holds, words = _RULES[sign]
        if not holds(converted, float(limit)):
            raise ValueError(f"{name} = {converted} must be {words} {float(limit):,.0f}")
    return converted


def describe(kind: Any) -> str:
    """Name a type: ``a whole number``, ``a number or null``, ``one of cosine, step``."""
    return " or ".join(_describe(member) for member in _members(kind))


def choices(kind: Any) -> tuple[str, ...]:
    """Return the words that a type allows, if it is a choice of words."""
    return tuple(word for member in _members(kind) if get_origin(member) is Literal for word in get_args(member))


def _describe(kind: Any) -> str:
    if words := choices(kind):
        return f"one of {', '.join(words)}"
    if kind is NoneType:
        return "null"
    if get_origin(kind) is tuple and (words := choices(get_args(kind)[0])):
        return f"a list of {', '.join(words)}"
    if get_origin(kind) is Annotated:
        kind = kind.__origin__
    if kind in WORDS:
        return WORDS[kind]
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _parser(kind: Any) -> Any:
    parser = need("jsonargparse", "cli").ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=kind)
    return parser
