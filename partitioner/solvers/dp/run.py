"""Dynamic programming on a session: one table, and its pipelines in order until one is best.

What a stage pays may hang on who stands beside it; the table then takes the least, and its best
pipeline may cost more than it says, or break a limit. The others come after it in the order of what
the table says: each is scored, and none that comes after the best score can be better.
"""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.problem import Objective
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.ranked import choices, pipelines
from partitioner.solvers.dp.table import exact_cuts, search_cuts
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import stages_of
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["run_cuts_on", "run_dp"]

# Assignments scored before the rest is left to another method, and the part of the time for them.
_MOST_SCORED = 2000
_SHARE = 0.5
# Parts of the gap that are looked at first, where it is this wide; the multiple of the bound that
# stands for the objective where none is known.
_PARTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
_NEAR, _FAR = 1e-3, 3.0


def run_dp(session: Session, prices: tuple[Prices, ...]) -> None:
    """Dynamic programming over all downsets, for what is near the bound first.

    Raises
    ------
    TooLargeError
        If there are too many.
    """
    with session.interruptible():
        for cutoff in _rising(session):
            if not session.open:
                return
            cuts = exact_cuts(session.problem, session.units, session.limits, cutoff, prices)
            run_cuts_on(session, cuts, cutoff, prices)


def _rising(session: Session) -> Iterator[float]:
    """Cut-offs of periods, each of which lets far fewer stages be of interest than the next."""
    bound, top = session.bound, _better(session)
    if session.problem.objective is Objective.PERIOD and top > bound * (1 + _NEAR) > 0:
        far = top if top < float("inf") else bound * _FAR
        yield from (bound + part * (far - bound) for part in _PARTS)
    yield _better(session)


def run_cuts_on(session: Session, cuts: Cuts, cutoff: float, prices: tuple[Prices, ...]) -> None:
    """Dynamic programming over downsets that hold all that a pipeline below `cutoff` can cut at.

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
            return
        stage_of = stages_of(units, search.stage_of_unit(trail))
        for options in choices(problem, search, trail):
            if left <= 0 or not session.open:
                return
            left -= 1
            placements = tuple((option,) for option in options)
            session.offer(scored(problem, stage_of, placements, "dp"))
    if session.best is None and cutoff == float("inf"):
        session.prove_infeasible()
    else:
        session.prove(min(below, _better(session)))


def _better(session: Session) -> float:
    """Objectives below are an improvement by more than the tolerance."""
    return session.objective * (1 - RELATIVE / 2)
