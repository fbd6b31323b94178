"""Why a problem has no solution: which demand meets which limit, by how much, what would lift it.

Each limit is lifted by itself; where that makes the problem solvable, the least lift is searched
for. Where no limit alone is to blame, a set is found of which every one must be lifted, by the
deletion filter of Chinneck and Dravnieks, "Locating Minimal Infeasible Constraint Sets in Linear
Programs" (ORSA Journal on Computing, 1991), section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from partitioner.problem import Problem, Solution
from partitioner.solvers.diagnosis.lifts import LIMITS, Limit
from partitioner.solvers.diagnosis.oracle import Oracle

__all__ = ["Cause", "describe", "diagnose"]


@dataclass(frozen=True, slots=True)
class Cause:
    """A limit that cannot be met, and what would lift it.

    Attributes
    ----------
    limit : str
        Which limit, e.g. ``"memory pool 0 (acc0)"``.
    demand, capacity : float
        The least that is needed, other limits as they are, and what there is.
    unit : str
        Of both.
    lift : str
        What to change, with the figure.
    apply : callable
        The problem with exactly that changed.
    alone : bool
        True: this lift by itself makes the problem solvable, each such cause is an alternative.
        False: the causes must all be lifted.
    exact : bool
        Whether it is proven that no smaller lift suffices.
    """

    limit: str
    demand: float
    capacity: float
    unit: str
    lift: str
    apply: Callable[[Problem], Problem]
    alone: bool
    exact: bool

    @property
    def shortfall(self) -> float:
        """What is missing."""
        return self.demand - self.capacity

    def __str__(self) -> str:
        less = "" if self.exact else " (perhaps less will do)"
        return (
            f"{self.limit}: needs {self.demand:.9g} {self.unit}, has {self.capacity:.9g}, short by "
            f"{self.shortfall:.9g}; {self.lift}{less}"
        )


def diagnose(problem: Problem, *, time_limit_s: float = 20.0) -> tuple[Cause, ...]:
    """Find what stands in the way of any assignment.

    Parameters
    ----------
    problem : Problem
        Infeasible.
    time_limit_s : float
        Wall time to spend.

    Returns
    -------
    tuple of Cause
        Empty when the problem has a solution, or nothing was found in time.
    """
    oracle = Oracle(time_limit_s)
    if oracle.feasible(problem) is not None:
        return ()
    sure = not oracle.doubted
    limits = [limit for find in LIMITS for limit in find(problem)]
    alone = [(limit, oracle.feasible(limit.relax(problem))) for limit in limits]
    causes = [_cause(limit, problem, known, oracle, True) for limit, known in alone if known]
    causes = causes or _together(problem, limits, oracle)
    return tuple(replace(cause, exact=cause.exact and sure) for cause in causes)


def describe(causes: Sequence[Cause]) -> str:
    """The causes as a text of one line each; empty without any."""
    if len(causes) == 1:
        return f"no assignment is possible: {causes[0]}"
    heads = {True: "any one of these makes one possible", False: "all of these are in the way"}
    lines = [f"no assignment is possible; {heads[causes[0].alone]}:"] if causes else []
    return "\n".join([*lines, *(f"  - {cause}" for cause in causes)])


def _together(problem: Problem, limits: Sequence[Limit], oracle: Oracle) -> list[Cause]:
    """Causes none of which suffices: all limits but those that are not needed."""
    needed = list(limits)
    if oracle.feasible(_relaxed(problem, needed)) is None:
        return []
    for limit in limits:
        rest = [each for each in needed if each is not limit]
        if oracle.feasible(_relaxed(problem, rest)) is not None:
            needed = rest
    causes: list[Cause] = []
    for index, limit in enumerate(needed):
        # The later ones are out of the way, the earlier ones lifted as little as is said.
        context = _relaxed(problem, needed[index + 1 :])
        known = oracle.feasible(limit.relax(context))
        if known is None:
            return []
        causes.append(_cause(limit, context, known, oracle, False))
        problem = causes[-1].apply(problem)
    return causes


def _cause(limit: Limit, problem: Problem, known: Solution, oracle: Oracle, alone: bool) -> Cause:
    oracle.doubted = False
    lift = limit.least(problem, known, oracle)
    return Cause(
        lift.limit,
        lift.demand,
        lift.capacity,
        lift.unit,
        lift.text,
        lift.apply,
        alone,
        exact=not oracle.doubted,
    )


def _relaxed(problem: Problem, limits: Sequence[Limit]) -> Problem:
    for limit in limits:
        problem = limit.relax(problem)
    return problem
