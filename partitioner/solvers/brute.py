"""Exhaustive search, for small problems and for checking the others.

It enumerates every assignment of units to stages along the edges and every option for each stage,
and scores each by `evaluation`; it shares no reasoning with the other solvers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from partitioner.errors import InfeasibleError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import Problem, Solution, SolveStats, Status
from partitioner.solvers.limits import Clock, Limits

__all__ = ["exhaustive"]

_MOST_OPS = 12


def exhaustive(problem: Problem, limits: Limits) -> Solution:
    """Best of all assignments; it takes no notice of the time limit.

    Raises
    ------
    ProblemError
        If the problem has more than 12 ops.
    InfeasibleError
        If no assignment is feasible.
    """
    if problem.n_ops > _MOST_OPS:
        raise ProblemError(
            f"exhaustive search takes at most {_MOST_OPS} ops, the problem has {problem.n_ops}; "
            "use method 'auto'"
        )
    clock = Clock(limits.time_limit_s)
    best: Solution | None = None
    value = float("inf")
    for stage_of in _cuts(problem):
        stages = max(stage_of) + 1
        for chosen in product(range(problem.n_options), repeat=stages):
            if (problem.uses[list(chosen)].sum(axis=0) > problem.capacity).any():
                continue
            placements = tuple((option,) for option in chosen)
            evaluation = evaluate(problem, stage_of, placements)
            if evaluation.value(problem.objective) < value:
                value = evaluation.value(problem.objective)
                best = Solution(stage_of, placements, evaluation)
    if best is None:
        raise InfeasibleError(
            "no assignment is possible: exhaustive search tried them all; allow more stages or "
            "devices, raise a memory budget, or drop a pin or colocation"
        )
    stats = SolveStats(Status.OPTIMAL, value, value, clock.spent_s, "brute")
    return Solution(best.stage_of, best.placements, best.evaluation, stats)


def _cuts(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Stage numbers along the edges, without empty stages."""
    before: list[list[int]] = [[] for _ in range(problem.n_ops)]
    for u, v in problem.edges:
        before[v].append(u)
    most = min(problem.max_stages, problem.n_ops)

    def extend(stages: list[int]) -> Iterator[tuple[int, ...]]:
        op = len(stages)
        if op == problem.n_ops:
            if set(stages) == set(range(max(stages) + 1)):
                yield tuple(stages)
            return
        for stage in range(max((stages[u] for u in before[op]), default=0), most):
            yield from extend([*stages, stage])

    yield from extend([])
