"""A Problem as JSON and back: one key a field, arrays as lists, infinity as the text "inf"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, get_type_hints

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Bools, Floats, Ints, LatencyModel, Objective, Problem, TransferCost

__all__ = ["FORMAT", "problem_from_json", "problem_to_json"]

FORMAT = "partitioner problem"
VERSION = 1

_INF = "inf"


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Everything in a problem, as values that JSON can hold."""
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for each in fields(problem):
        data[each.name] = _plain(getattr(problem, each.name))
    return data


def problem_from_json(data: Any) -> Problem:
    """Inverse of `problem_to_json`; fields that have a default may be left out.

    Raises
    ------
    ProblemError
        If it is no problem of this version, or a field is missing, unknown, or of the wrong kind.
    """
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        found = (data.get("format"), data.get("version")) if isinstance(data, dict) else data
        raise ProblemError(
            f"not a {FORMAT} of version {VERSION} (found {found!r:.60}); write it again with this "
            "version"
        )
    known = {each.name: each for each in fields(Problem)}
    for key in data:
        if key not in known and key not in ("format", "version"):
            raise ProblemError(f"unknown key {key!r}; known are {', '.join(known)}")
    kinds = get_type_hints(Problem)
    values = {}
    for name, each in known.items():
        if name in data:
            values[name] = _field(name, kinds[name], data[name])
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ProblemError(f"the key {name!r} is missing; write the problem again")
    return Problem(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, TransferCost):
        return {name: _plain(getattr(value, name)) for name in ("base_s", "per_unit_s")}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return _INF if value == float("inf") else value


def _field(name: str, kind: Any, value: Any) -> Any:
    try:
        return _READERS[kind](value)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ProblemError(
            f"{name!r} is {value!r:.60}; {_NEEDED[kind]} is needed ({error})"
        ) from error


def _array(dtype: type, valid: tuple[type, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        return np.array(_numbers(value, valid), dtype=dtype)

    def _numbers(value: Any, valid: tuple[type, ...]) -> Any:
        if isinstance(value, list):
            return [_numbers(each, valid) for each in value]
        return _scalar(value, valid)

    return read


def _scalar(value: Any, valid: tuple[type, ...]) -> Any:
    """The value itself, and infinity for its text where numbers may have a fraction."""
    if value == _INF and float in valid:
        return float("inf")
    # In Python a bool is an int; in these files it is not.
    if not isinstance(value, valid) or (isinstance(value, bool) and bool not in valid):
        raise TypeError(f"found {value!r:.40}")
    return value


def _groups(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_scalar(op, (int,)) for op in _listed(group)) for group in _listed(value))


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(_scalar(name, (str,)) for name in _listed(value))
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is there twice")
    return names


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"found {value!r:.40}")
    return value


def _transfer(value: Any) -> TransferCost:
    read = _READERS[Floats]
    return TransferCost(read(value["base_s"]), read(value["per_unit_s"]))


_NUMBER = (int, float)

_READERS: dict[Any, Callable[[Any], Any]] = {
    Floats: _array(np.float64, _NUMBER),
    Ints: _array(np.int64, (int,)),
    Bools: _array(np.bool_, (bool,)),
    TransferCost: _transfer,
    tuple[str, ...]: _names,
    tuple[tuple[int, ...], ...]: _groups,
    int: lambda value: _scalar(value, (int,)),
    float: lambda value: float(_scalar(value, _NUMBER)),
    bool: lambda value: _scalar(value, (bool,)),
    Objective: Objective,
    Objective | None: lambda value: None if value is None else Objective(value),
    LatencyModel: LatencyModel,
}
"""How each type of field is read."""

_NEEDED: dict[Any, str] = {
    Floats: 'nested lists of numbers ("inf" for infinity)',
    Ints: "nested lists of whole numbers",
    Bools: "nested lists of true and false",
    TransferCost: "an object with base_s and per_unit_s, both nested lists of numbers,",
    tuple[str, ...]: "a list of different texts",
    tuple[tuple[int, ...], ...]: "a list of lists of op numbers",
    int: "a whole number",
    float: 'a number or "inf"',
    bool: "true or false",
    Objective: f"one of {', '.join(each.value for each in Objective)}",
    Objective | None: f"null or one of {', '.join(each.value for each in Objective)}",
    LatencyModel: f"one of {', '.join(each.value for each in LatencyModel)}",
}
"""What to say when it cannot be."""
