"""Which pairs of downsets get a price as a stage, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Bools, Ints
from partitioner.solvers.dp.reach import Reach
from partitioner.solvers.dp.spans import SpanCosts, Spans
from partitioner.solvers.limits import Clock
from partitioner.solvers.occupancy import Key, Occupancy
from partitioner.solvers.reduce import Units

__all__ = ["Pricing", "TooLargeError", "Transition", "pricing"]

# What looking at one state after another takes, in pairs of downsets.
_STEP = 20_000

_TOO_MANY = (
    "dynamic programming: its downsets make {} stages to price, more than its {}; use method "
    "'cpsat' or 'auto'"
)

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
    """Prices of the stages that lead from a state to another, all at once or as they are asked for.

    Where there are few states, and each ends at few of the downsets, that leaves fewer pairs.

    Parameters
    ----------
    windows : dict
        For the first option of each class the least and the most work that a stage on it holds.
    most : int
        Largest number of pairs.

    Raises
    ------
    TooLargeError
        If there are more, or time ran out.
    """
    pairs = sum(costs.pairs(*window) for window in windows.values())
    bands = reach.bands(units.time_s)
    by_step = np.inf if bands is None else _by_step(reach.occupancy, bands)
    if pairs <= min(by_step, most):
        whole = _in_time(costs.spans(windows, clock))
        return lambda step, _: whole[step[1]]
    if bands is None:
        raise TooLargeError(_TOO_MANY.format(pairs, most))
    priced = 0

    def block(step: Transition, reached: Ints) -> Spans:
        nonlocal priced
        _, option, larger = step
        ends = np.flatnonzero(bands[larger])
        # Few of the downsets that a state could end at may be reached there.
        priced += len(reached) * len(ends)
        if priced > most:
            raise TooLargeError(_TOO_MANY.format(f"at least {priced}", most))
        return _in_time(costs.block(option, reached, ends, windows[option], clock))

    return block


def _by_step(occupancy: Occupancy, bands: dict[Key, Bools]) -> int:
    """Pairs that are left where the states are taken one after the other."""
    size = {key: int(band.sum()) for key, band in bands.items()}
    return sum(
        size[key] * size[larger] + _STEP for key in bands for _, larger in occupancy.after(key)
    )


def _in_time(found: T | None) -> T:
    if found is None:
        raise TooLargeError("dynamic programming: time ran out before all stages had a price")
    return found
