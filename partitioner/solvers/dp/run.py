"""Dynamic programming on a session: one table, and its pipelines in order until one is best.

What a stage pays may hang on who stands beside it; the table then takes the least, and its best
pipeline may cost more than it says, or break a limit. The others come after it in the order of what
the table says: each is scored, and none that comes after the best score can be better.
"""

from __future__ import annotations

import numpy as np

from partitioner.problem import Objective
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.ranked import choices, pipelines
from partitioner.solvers.dp.table import TooLargeError, exact_cuts, search_cuts
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import stages_of
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["run_cuts_on", "run_dp"]

# Assignments scored before the rest is left to another method, and the part of the time for them.
_MOST_SCORED = 2000
_SHARE = 0.5
# The part of the gap that is looked at first, where it is this wide; the multiple of the bound that
# stands for the objective where none is known.
_PARTS, _NEAR, _FAR = 16, 1e-3, 3.0
# Stages of interest from which on steps are not lengthened.
_FEW = 1_000_000


def run_dp(session: Session, prices: tuple[Prices, ...]) -> None:
    """Dynamic programming over all downsets, for what is near the bound first.

    Raises
    ------
    TooLargeError
        If there are too many.
    """
    with session.interruptible():
        step, far = _steps(session)
        while session.open:
            top = _better(session)
            cutoff = session.bound + step
            cutoff = cutoff if cutoff < min(far, top) else top
            try:
                cuts = exact_cuts(session.problem, session.units, session.limits, cutoff, prices)
                kept = run_cuts_on(session, cuts, cutoff, prices)
            except TooLargeError:
                # What is nearer to the bound may fit.
                step /= 4
                if step < _NEAR * session.bound or not np.isfinite(step):
                    raise
                continue
            if cutoff == top or session.bound < cutoff * (1 - RELATIVE):
                return
            step *= 2 if kept < _FEW else 1


def _steps(session: Session) -> tuple[float, float]:
    """How far above the bound to look first, and the cut-off from which on to look at all.

    The lower a cut-off is, the fewer stages are of interest. That of a period takes whole classes
    of downsets away, which others do not.
    """
    bound, top = session.bound, _better(session)
    if session.problem.objective is not Objective.PERIOD or top <= bound * (1 + _NEAR):
        return np.inf, np.inf
    far = min(top, _FAR * bound)
    return ((far - bound) / _PARTS, far) if bound > 0 else (np.inf, np.inf)


def run_cuts_on(session: Session, cuts: Cuts, cutoff: float, prices: tuple[Prices, ...]) -> int:
    """Dynamic programming over downsets that hold all that a pipeline below `cutoff` can cut at.

    Returns
    -------
    int
        Stages of interest, once for each pair of states that they lead from and to.

    Raises
    ------
    TooLargeError
        If the table is too large.
    """
    problem, units, clock = session.problem, session.units, session.clock
    search = search_cuts(problem, units, cuts, session.limits, clock, cutoff, prices)
    # At the cut-off and above, the table has only some.
    below = cutoff * (1 - 1e-12)
    until_s = clock.spent_s + _SHARE * clock.left_s
    left = _MOST_SCORED
    for value, trail in pipelines(search, clock, lambda: min(below, _better(session))):
        session.prove(value)
        if not session.open or clock.spent_s > until_s:
            return search.size
        stage_of = stages_of(units, search.stage_of_unit(trail))
        for options in choices(problem, search, trail):
            if left <= 0 or not session.open:
                return search.size
            left -= 1
            placements = tuple((option,) for option in options)
            session.offer(scored(problem, stage_of, placements, "dp"))
    if session.best is None and cutoff == float("inf"):
        session.prove_infeasible()
    else:
        session.prove(min(below, _better(session)))
    return search.size


def _better(session: Session) -> float:
    """Objectives below are an improvement by more than the tolerance."""
    return session.objective * (1 - RELATIVE / 2)
