"""Numbers on the command line, with a message that says what is needed."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

__all__ = ["amount", "count", "count_or_none", "duration", "fraction", "seconds"]


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


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


def duration(text: str) -> float:
    """Seconds of a duration above 0 with its unit: ``90s``, ``10m``, ``1.5h``."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|m|h)", text)
    if found is None or not (value := float(found[1]) * _SECONDS[found[2]]):
        raise ArgumentTypeError(f"{text!r} is no duration above 0; write 90s, 10m or 1h")
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
