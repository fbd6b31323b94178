"""How the kernels of a plan are made: by records of tuning, or by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Kernels"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Where the kernels of a plan's ops come from.

    Attributes
    ----------
    ops : int
        How many ops there are.
    sources : tuple of (str, int)
        Where records are from, in words, and for how many ops; the largest number first.
    """

    ops: int
    sources: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(sources: Iterable[str]) -> Kernels:
        """From each op's source of its record, empty for those by rule."""
        found = list(sources)
        return Kernels(len(found), tuple(Counter(filter(None, found)).most_common()))

    @property
    def recorded(self) -> int:
        """How many ops have kernels made by a record."""
        return sum(number for _, number in self.sources)

    def to_data(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"ops": self.ops, "recorded": self.recorded, "sources": dict(self.sources)}

    def __str__(self) -> str:
        if not self.sources:
            return f"kernels: {self.ops} ops by rule"
        where = ", ".join(
            source if len(self.sources) == 1 else f"{number} {source}"
            for source, number in self.sources
        )
        rest = self.ops - self.recorded
        return f"kernels: {self.recorded} of {self.ops} ops from records ({where}), {rest} by rule"
