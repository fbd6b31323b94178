"""Quick assignments to start from: one option alone, and cuts along a few fixed orders."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partitioner.evaluation import evaluate
from partitioner.problem import LatencyModel, Objective, Problem, Solution, SolveStats, Status
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp import TooLargeError, run_table
from partitioner.solvers.ideals import prefix_ideals
from partitioner.solvers.limits import Clock, Limits
from partitioner.solvers.reduce import Units

__all__ = ["best_of", "incumbent", "scored"]

# Prefixes of one order are about as many as units; more orders find better cuts of wide graphs.
_PREFIXES = 900
_LEAST_S = 5.0
# Multiples of the proven bound tried as a cut-off, for a low one leaves few stages to price.
_CUTOFFS = (1.1, 1.4, 2.0, 4.0, float("inf"))


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


def incumbent(
    problem: Problem, units: Units, limits: Limits, prices: tuple[Prices, ...], bound: float
) -> Solution | None:
    """The best quick assignment: the hint, singles, and the best cuts along fixed orders.

    It takes no notice of the time limit, for it is what a limit of zero returns; the table over
    prefixes is a fraction of a second for hundreds of ops and has a limit of its own.
    """
    best: Solution | None = None
    for candidate in _singles(problem, units):
        best = best_of(problem, best, candidate)
    if limits.hint is not None and all(len(options) == 1 for options in limits.hint.placements):
        hint = limits.hint
        best = best_of(problem, best, scored(problem, hint.stage_of, hint.placements, "hint"))
    atomic = problem.latency_model is LatencyModel.ATOMIC
    if problem.objective is Objective.LATENCY and atomic:
        return best
    orders = max(1, min(6, _PREFIXES // max(1, len(units))))
    clock = Clock(_LEAST_S)
    for count in sorted({1, orders}):
        ideals = prefix_ideals(units, count, limits.seed)
        for factor in _CUTOFFS:
            known = float("inf") if best is None else best.evaluation.value(problem.objective)
            cutoff = min(known, factor * bound) if bound > 0 else known
            try:
                table = run_table(problem, units, ideals, limits, clock, cutoff, prices)
            except TooLargeError:
                return best
            if table.assignment is not None:
                best = best_of(problem, best, scored(problem, *table.assignment, "orders"))
            if table.assignment is not None or cutoff == known:
                break
    return best


def _singles(problem: Problem, units: Units) -> Iterator[Solution | None]:
    for option in np.flatnonzero(units.runs.all(axis=0)):
        whole = (0,) * problem.n_ops
        yield scored(problem, whole, ((int(option),),), f"single {problem.option_names[option]}")
