"""Assignments as solutions, by the score that `evaluation` gives them."""

from __future__ import annotations

import numpy as np

from partitioner.evaluation import evaluate
from partitioner.problem import Problem, Solution, SolveStats, Status

__all__ = ["best_of", "scored"]


def scored(
    problem: Problem,
    stage_of: tuple[int, ...],
    placements: tuple[tuple[int, ...], ...],
    method: str,
) -> Solution | None:
    """The assignment as a Solution, None when `evaluation` finds it infeasible."""
    evaluation = evaluate(problem, stage_of, placements)
    value = evaluation.value(problem.objective)
    if not np.isfinite(value):
        return None
    stats = SolveStats(Status.FEASIBLE, value, 0.0, 0.0, method)
    return Solution(stage_of, placements, evaluation, stats)


def best_of(problem: Problem, first: Solution | None, second: Solution | None) -> Solution | None:
    """The better of two by the problem's objective; the first on a tie."""
    if first is None or second is None:
        return first or second
    a, b = (s.evaluation.value(problem.objective) for s in (first, second))
    return second if b < a else first
