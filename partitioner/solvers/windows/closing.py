"""Closing the gap of large problems: suppose a short period, see what follows, then a longer one.

What a period supposed implies (see `windows`) either contradicts itself, which proves that there is
none as short, or leaves little freedom, in which the best assignment is found (see `chains`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from partitioner.problem import Ints, Objective
from partitioner.solvers.bounds import Prices
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.lines.line import Flows
from partitioner.solvers.lines.orders import narrow, readers_of
from partitioner.solvers.reduce import most_stages, stages_of, symmetry
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session
from partitioner.solvers.windows.chains import Chain, best_chain
from partitioner.solvers.windows.windows import Windows

__all__ = ["close_in"]

# Units whose ancestors fit in memory.
_LARGEST = 20_000
_FIRST_STEP = 1e-3
# Rows of a table, first and at most.
_ROWS, _MOST_ROWS = 5_000, 400_000
_SAFE = 1e-9
_HALVINGS = 10
# Relative distance of bound and objective from which on it is taken whole.
_NEAR = 1e-3


@dataclass(slots=True)
class _Closing:
    """One problem's windows, and what a period of one costs in their prices."""

    session: Session
    windows: Windows
    order: Ints
    each: float
    options: tuple[int, ...]

    def run(self) -> None:
        """Suppose longer and longer periods until one is possible, then narrow down what is left.

        Small tables first, for they find assignments quickly.
        """
        session = self.session
        step, settled = _FIRST_STEP, False
        while session.open:
            top = self._top
            # No step leads away from a bound of zero.
            goal = min(top, session.bound * (1 + step)) if session.bound > 0 else top
            possible, settled = self._suppose(goal, _ROWS)
            if possible or goal == top:
                break
            # A bound that stays where it is must not hold the goal back.
            step = step * 2 if settled else (goal / session.bound - 1) * 2
        if not settled:
            self._squeeze()

    def _squeeze(self) -> None:
        """Halve what lies between bound and objective with large tables, at last take it whole."""
        session = self.session
        least = np.inf
        for _ in range(_HALVINGS):
            top = min(self._top, least)
            if not session.open or top <= session.bound:
                return
            whole = top < least and top - session.bound <= _NEAR * top
            goal = top if whole else (session.bound + top) / 2
            possible, settled = self._suppose(goal, _MOST_ROWS)
            if possible and settled:
                return
            if not settled:
                least = goal

    @property
    def _top(self) -> float:
        """Periods below are an improvement by more than the tolerance."""
        return self.session.objective * (1 - RELATIVE / 2)

    def _suppose(self, goal: float, rows: int) -> tuple[bool, bool]:
        """Whether a period below `goal` seems possible, and whether larger tables say no more."""
        session = self.session
        least, possible, complete, tied = np.inf, False, True, True
        for chain in self._chains(goal, rows):
            complete &= chain.complete
            if chain.stage_of is not None:
                possible = True
                tied &= chain.tied
                least = min(least, chain.load / self.each * (1 - _SAFE))
                self._offer(chain.stage_of)
        if complete and (possible or session.clock.left_s > 0):
            session.prove(min(goal, least))
        return possible, complete and tied

    def _chains(self, goal: float, rows: int) -> Iterator[Chain]:
        clock = self.session.clock
        for supposed in self.windows.suppose(goal):
            if clock.left_s <= 0 or np.isinf(supposed.slack):
                yield Chain(np.inf, None, False)
            else:
                load = goal * self.each
                yield best_chain(self.windows, self.order, supposed, load, rows, clock)

    def _offer(self, stage_of_unit: Ints) -> None:
        session = self.session
        # Cuts that do not lie within each other leave a stage empty or an edge backwards.
        stages, stage_of_unit = np.unique(stage_of_unit, return_inverse=True)
        stage_of = stages_of(session.units, stage_of_unit.tolist())
        placements = tuple((option,) for option in self.options[: len(stages)])
        session.offer(scored(session.problem, stage_of, placements, "windows"))


def close_in(session: Session, prices: tuple[Prices, ...]) -> None:
    """Raise the bound, and better the assignment where all options are equal.

    Parameters
    ----------
    session : Session
        With an assignment to start from.
    prices : tuple of Prices
        Load prices.
    """
    problem, units = session.problem, session.units
    if (
        problem.objective is not Objective.PERIOD
        or not problem.contiguous
        or not prices
        or not session.open
        or session.best is None
        or len(units) > _LARGEST
    ):
        return
    classes = symmetry(problem).classes
    heads = [group[0] for group in classes]
    flows = Flows.of(problem, units, heads)
    windows = Windows(problem, units, flows, prices[-1], heads)
    with session.interruptible():
        session.prove(windows.bound(session.objective))
        slots = most_stages(problem)
        if len(classes) == 1 and len(classes[0]) >= slots:
            order = narrow(units, readers_of(units), problem.amount, None)
            each = float(problem.uses[heads[0]] @ prices[-1].resource + prices[-1].slot)
            _Closing(session, windows, order, each, classes[0]).run()
        else:
            _raise_bound(session, windows)


def _raise_bound(session: Session, windows: Windows) -> None:
    """The highest period that the windows alone rule out."""
    top = session.objective
    for _ in range(_HALVINGS):
        goal = (session.bound + top) / 2
        if not session.open:
            return
        proven = windows.bound(goal)
        session.prove(proven)
        if proven < goal:
            top = goal
