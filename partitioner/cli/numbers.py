"""Numbers on the command line, with a message that says what is needed."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["amount", "count", "count_or_none", "fraction", "seconds"]


def count(text: str) -> int:
    """A whole number, 1 or more."""
    return _whole(text, 1)


def count_or_none(text: str) -> int:
    """A whole number, 0 or more."""
    return _whole(text, 0)


def seconds(text: str) -> float:
    """A duration above 0."""
    if not 0 < (value := _number(text)) < float("inf"):
        raise ArgumentTypeError(f"{text} s is no duration above 0")
    return value


def amount(text: str) -> float:
    """A number, zero or more."""
    if not 0 <= (value := _number(text)) < float("inf"):
        raise ArgumentTypeError(f"{text} is not a number, zero or more")
    return value


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise ArgumentTypeError(f"{text} is below {least}")
    return value


def fraction(text: str) -> float:
    """A number above 0, at most 1."""
    if not 0 < (value := _number(text)) <= 1:
        raise ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
