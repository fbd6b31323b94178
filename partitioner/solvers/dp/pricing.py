"""Which pairs of downsets get a price as a stage, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Ints
from partitioner.solvers.dp.reach import Reach
from partitioner.solvers.dp.spans import SpanCosts, Spans
from partitioner.solvers.limits import Clock
from partitioner.solvers.occupancy import Key
from partitioner.solvers.reduce import Units

__all__ = ["Pricing", "TooLargeError", "Transition", "pricing"]

# What looking at one state after another takes, in pairs of downsets.
_STEP = 20_000
# Pairs that are looked at for each that may be kept, where they are asked for state by state.
_LOOKED = 5

T = TypeVar("T")
Transition = tuple[Key, int, Key]
"""A state, the first option of a class, and the state that a stage there leads to."""
Pricing = Callable[[Transition, Ints], Spans]


class TooLargeError(ProblemError):
    """The problem has too many downsets or states for dynamic programming."""


def pricing(
    units: Units,
    reach: Reach,
    costs: SpanCosts,
    windows: dict[int, tuple[int, int]],
    most: int,
    clock: Clock,
) -> Pricing:
    """Prices of the stages that lead from a state to another, as they are asked for.

    Where pipelines of interest reach few of the downsets in any state, that leaves far fewer pairs
    than there are; where it turns out not to, all are priced at once, which serves all states.

    Parameters
    ----------
    windows : dict
        For the first option of each class the least and the most work that a stage on it holds.
    most : int
        Largest number of pairs.

    Raises
    ------
    TooLargeError
        If there are more, or time ran out; the prices raise it too.
    """
    pairs = sum(costs.pairs(*window) for window in windows.values())
    bands = reach.bands(units.time_s)
    whole: dict[int, Spans] = {}
    priced = kept = 0

    def prices(step: Transition, reached: Ints) -> Spans:
        nonlocal priced, kept
        _, option, larger = step
        if not whole and bands is not None:
            ends = costs.within(reached, np.flatnonzero(bands[larger]), windows[option])
            priced += len(reached) * len(ends) + _STEP
            if priced <= min(pairs, _LOOKED * most) and kept <= most:
                found = _in_time(costs.block(option, reached, ends, windows[option], clock))
                kept += len(found.start)
                return found
        if not whole and pairs > most:
            raise TooLargeError(
                f"dynamic programming: its downsets make up to {pairs} stages to price, more than "
                f"its {most}; use method 'cpsat' or 'auto'"
            )
        whole.update(whole or _in_time(costs.spans(windows, clock)))
        return whole[option]

    return prices


def _in_time(found: T | None) -> T:
    if found is None:
        raise TooLargeError("dynamic programming: time ran out before all stages had a price")
    return found
