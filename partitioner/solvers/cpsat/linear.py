"""Sums for CP-SAT, gathered in flat lists: adding its expressions one by one is quadratic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortools.sat.python import cp_model

__all__ = ["Linear"]


class Linear:
    """A sum of integer multiples of variables and a constant."""

    def __init__(self, constant: int = 0) -> None:
        self.constant = constant
        self._variables: list[Any] = []
        self._factors: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._variables) or self.constant != 0

    def add(self, factor: int, item: Any) -> None:
        """Add a multiple of a number, a variable, or another sum."""
        if isinstance(item, Linear):
            self.constant += factor * item.constant
            self._variables += item._variables
            self._factors += [factor * each for each in item._factors]
        elif isinstance(item, int):
            self.constant += factor * item
        elif factor:
            self._variables.append(item)
            self._factors.append(factor)

    def extend(self, factors: Sequence[int], items: Sequence[Any]) -> None:
        """Add a multiple of each variable; those of 0 are left out."""
        if all(factors):
            self._variables += items
            self._factors += factors
            return
        for factor, item in zip(factors, items, strict=True):
            if factor:
                self._variables.append(item)
                self._factors.append(factor)

    def expression(self) -> Any:
        """The sum as CP-SAT takes it."""
        return cp_model.LinearExpr.weighted_sum(self._variables, self._factors) + self.constant
