"""A second objective among the assignments that are best by the first.

The first optimum becomes a cap, and the same method minimizes the second below it (the
lexicographic method: Ehrgott, Multicriteria Optimization, section 5.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from partitioner.errors import NoneFoundError, ProblemError
from partitioner.problem import Objective, Problem, Solution, Status
from partitioner.solvers.limits import RELATIVE

__all__ = ["SolveOne", "solve_second"]

SolveOne = Callable[[Problem, Solution], Solution]
"""Solves a problem of one objective, starting from a known assignment."""

# Evaluation forgives a cap this much, which must not add to the tolerance of the first objective.
_FORGIVEN = 1.0 + 2e-9


def solve_second(problem: Problem, first: Solution, solve_one: SolveOne) -> Solution:
    """Minimize ``problem.second`` among assignments as good as `first`.

    Parameters
    ----------
    problem : Problem
        With a second objective.
    first : Solution
        Best by the first objective. Where that is not proven, no assignment worse than it by the
        first objective is taken; where it is, within 1e-6 of the optimum, relatively.
    solve_one : callable
        Solves the problem of the second objective with the first capped.

    Returns
    -------
    Solution
        With `stats` of the first objective, and value and bound of the second.

    Raises
    ------
    ProblemError
        If there is no second objective, or the first cannot be capped.
    """
    second = problem.second
    if second is None:
        raise ProblemError("the problem has no second objective; set `second`")
    if second is problem.objective:
        value = first.stats.objective
        stats = replace(first.stats, second=value, second_bound=first.stats.bound)
        return replace(first, stats=stats)
    try:
        found = solve_one(_capped(problem, second, first), first)
    except (NoneFoundError, KeyboardInterrupt):
        # A method without use of the known one ran out of time, or was not left to end.
        found = replace(first, stats=replace(first.stats, bound=0.0, wall_s=0.0))
    stats = replace(
        first.stats,
        objective=found.evaluation.value(problem.objective),
        wall_s=first.stats.wall_s + found.stats.wall_s,
        second=found.evaluation.value(second),
        second_bound=found.stats.bound,
    )
    return replace(found, stats=stats)


def _capped(problem: Problem, second: Objective, first: Solution) -> Problem:
    cap = first.stats.objective
    if first.stats.status is Status.OPTIMAL:
        # Measured from the bound, what is found stays optimal by the same tolerance.
        cap = max(cap, first.stats.bound / (1 - RELATIVE) / _FORGIVEN)
    one = replace(problem, objective=second, second=None)
    if problem.objective is Objective.PERIOD:
        return replace(one, period_cap_s=cap)
    if problem.objective is Objective.LATENCY:
        return replace(one, latency_cap_s=cap)
    raise ProblemError(
        f"a second objective can follow the period or the latency, not "
        f"{problem.objective.value!r}; make that the second one"
    )
