"""The shortest period within one memory budget: the least memory for a period, by bisection.

A table of periods knows the stages' memory one by one, not their sum, which a budget that all of
them share is about. Turned round, both fit: with periods capped, memory adds up stage by stage.
Either the least memory for a cap is within the budget, which gives an assignment, or it is not,
which proves that no period is as short (the decision form of a bicriteria problem: Ehrgott,
Multicriteria Optimization, section 4.1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partitioner.problem import Objective, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.table import TooLargeError, exact_cuts, search_cuts
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import stages_of, tight_pools
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["run_budget", "shares_a_budget"]

# Evaluation forgives a budget and a cap this much, twice over for the rounding of sums.
_FORGIVEN = 1 + 2e-9
# Of the gap at least so much is looked at.
_LEAST_PART = 1 / 200


def shares_a_budget(problem: Problem) -> bool:
    """Whether all options draw on one pool that some assignment could overflow."""
    return (
        problem.objective is Objective.PERIOD
        and problem.contiguous
        and not np.isfinite(problem.latency_cap_s)
        and len(set(problem.pool_of.tolist())) == 1
        and bool(tight_pools(problem))
    )


def run_budget(session: Session, prices: tuple[Prices, ...]) -> None:
    """Halve the gap until it is closed, or what is found is not as short as its stages are.

    Raises
    ------
    TooLargeError
        If there are too many downsets, or stages.
    """
    part = 0.5
    with session.interruptible():
        while session.open:
            before = session.objective
            goal = session.bound + part * (before * (1 - RELATIVE / 2) - session.bound)
            try:
                found = _least_memory(session, prices, goal)
            except TooLargeError:
                # Less is of interest nearer to the bound.
                part /= 4
                if part < _LEAST_PART or not np.isfinite(before):
                    raise
                continue
            if found is not None:
                session.offer(scored(session.problem, *found, "budget"))
                if not session.objective < before:
                    return
            elif np.isfinite(goal):
                session.prove(goal)
            else:
                session.prove_infeasible()


def _least_memory(
    session: Session, prices: tuple[Prices, ...], period_s: float
) -> tuple[tuple[int, ...], tuple[tuple[int], ...]] | None:
    """The assignment of least memory with periods up to `period_s`, None if above the budget."""
    problem, units = session.problem, session.units
    budget = float(problem.pool_bytes[problem.pool_of[0]])
    turned = replace(
        problem,
        objective=Objective.MEMORY,
        period_cap_s=min(period_s, problem.period_cap_s),
    )
    cutoff = budget * _FORGIVEN
    cuts = exact_cuts(turned, units, session.limits, cutoff, prices)
    search = search_cuts(turned, units, cuts, session.limits, session.clock, cutoff, prices)
    _, trail = search.best()
    if trail is None:
        return None
    placements = tuple((option,) for option in search.options(trail))
    return stages_of(units, search.stage_of_unit(trail)), placements
