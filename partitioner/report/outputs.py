"""A plan's outputs beside the uncut model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Outputs", "compared"]

# Of an output's spread: what other instructions' rounding may change.
_ROUNDING = 1e-3

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The plan's outputs against the uncut model's.

    Attributes
    ----------
    checked : int
        How many items.
    max_abs_diff : float
        The largest difference; 0 only if every output is bitwise equal.
    tolerance : float
        The largest difference that is right: 0 where both run the same kernels.
    """

    checked: int
    max_abs_diff: float
    tolerance: float = 0.0

    @property
    def verdict(self) -> str:
        """How they compare, in words."""
        if self.max_abs_diff == 0:
            return "bitwise equal"
        if self.right:
            return f"equal within {self.tolerance:g}"
        return "NOT equal"

    @property
    def right(self) -> bool:
        """Whether they are what they must be."""
        return self.max_abs_diff <= self.tolerance


def compared(ours: Sequence[Any], theirs: Sequence[Any], *, bitwise: bool) -> Outputs:
    """Compare results item by item.

    Parameters
    ----------
    ours, theirs : sequence
        For each item one array, or a tuple of them.
    bitwise : bool
        Whether equal is bitwise equal; else other rounding is allowed for.
    """
    pairs = [
        (a, b)
        for mine, other in zip(ours, theirs, strict=True)
        for a, b in zip(_tuple(mine), _tuple(other), strict=True)
    ]
    worst = max(_difference(a, b) for a, b in pairs)
    tolerance = 0.0 if bitwise else _ROUNDING * min(_spread(b) for _, b in pairs)
    return Outputs(len(ours), worst, tolerance)


def _tuple(result: Any) -> tuple[Array, ...]:
    return result if isinstance(result, tuple) else (result,)


def _difference(a: Array, b: Array) -> float:
    if a.tobytes() == b.tobytes():
        return 0.0
    with np.errstate(invalid="ignore"):  # infinity less infinity
        wide = np.abs(a.astype(np.float64) - b.astype(np.float64))
    limits = np.finfo(np.float64)
    if (~np.isfinite(wide)).any():
        return float(limits.max)
    # Outputs that differ in bits but not in value (signed zeros) are still not equal.
    return max(float(wide.max(initial=0.0)), float(limits.tiny))


def _spread(array: Array) -> float:
    return float(np.ptp(array.astype(np.float64))) if array.size else 0.0
