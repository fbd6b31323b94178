"""Quick assignments to start from: one option alone, and cuts along a few good orders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from partitioner.problem import LatencyModel, Objective, Problem, Solution
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.ideals import prefix_ideals
from partitioner.solvers.dp.table import TooLargeError, run_table
from partitioner.solvers.limits import Clock, Limits
from partitioner.solvers.lines.lines import Lines
from partitioner.solvers.lines.orders import orders
from partitioner.solvers.reduce import Units, symmetry
from partitioner.solvers.scoring import best_of, scored

__all__ = ["incumbent"]

# Orders tried up to that many units. Of few units an exact method needs no longer than a heuristic
# for another order.
_FEW = 12
_ORDERS = ((_FEW, 1), (40, 4), (3_000, 6), (20_000, 3))
_FEWEST_ORDERS = 2
# Single options scored of a large problem.
_SINGLES = 200_000
# Objectives other than the period have a table over prefixes, about as many as units; more orders
# find better cuts of wide graphs.
_PREFIXES, _LARGEST = 900, 1500
_LEAST_S = 5.0
# Multiples of the proven bound tried as a cut-off, for a low one leaves few stages to price.
_CUTOFFS = (1.1, 1.4, 2.0, 4.0, float("inf"))


def incumbent(
    problem: Problem, units: Units, limits: Limits, prices: tuple[Prices, ...], bound: float
) -> Solution | None:
    """The best quick assignment: the hint, singles, and the best cuts along fixed orders.

    It takes no notice of the time limit, for it is what a limit of zero returns; it takes a
    fraction of a second for hundreds of ops and seconds for a hundred thousand.

    Parameters
    ----------
    prices, bound
        Load prices and the proven bound of the objective.
    """
    best: Solution | None = None
    hint = limits.hint
    if hint is not None and all(len(options) == 1 for options in hint.placements):
        best = scored(problem, hint.stage_of, hint.placements, "hint")
    candidates = [_singles(problem, units), _along_orders(problem, units, limits, prices)]
    atomic = problem.objective is Objective.LATENCY and (
        problem.latency_model is LatencyModel.ATOMIC and problem.contiguous
    )
    if problem.objective is not Objective.PERIOD and not atomic and len(units) <= _LARGEST:
        candidates.append(_prefix_tables(problem, units, limits, prices, bound))
    for found in candidates:
        for candidate in found:
            best = best_of(problem, best, candidate)
    return best


def _singles(problem: Problem, units: Units) -> Iterator[Solution | None]:
    """Everything in one stage, on each of the options that are not equal."""
    able = [group[0] for group in symmetry(problem).classes if units.runs[:, group[0]].all()]
    able.sort(key=lambda option: float(units.time_s[:, option].sum()) / problem.replicas[option])
    for option in able[: max(1, _SINGLES // problem.n_ops)]:
        whole = (0,) * problem.n_ops
        yield scored(problem, whole, ((option,),), f"single {problem.option_names[option]}")


def _along_orders(
    problem: Problem, units: Units, limits: Limits, prices: tuple[Prices, ...]
) -> Iterator[Solution | None]:
    """Stages of a short period, along each order once and along the best again.

    Again, because how often a tensor is sent hangs on the other stages: it is taken from the
    assignment found.
    """
    least_s = max((price.bound_s for price in prices), default=0.0)
    if not problem.contiguous and _cyclic(units):
        return
    lines = Lines(problem, units, prices, least_s, limits.seed)
    count = next((c for most, c in _ORDERS if len(units) <= most), _FEWEST_ORDERS)
    best, best_order = None, None
    for order in islice(orders(units, problem.amount, limits.seed), count):
        found = lines.best(order)
        if found is not None:
            yield (solution := scored(problem, *found, "orders"))
            if solution is not None and best_of(problem, best, solution) is solution:
                best, best_order = solution, order
    if best is not None and best_order is not None and lines.expect_sends(best.stage_of):
        found = lines.best(best_order)
        yield None if found is None else scored(problem, *found, "orders")


def _cyclic(units: Units) -> bool:
    """Whether ops merged without regard to the order feed each other."""
    return any(other > unit for unit, before in enumerate(units.before) for other in before)


def _prefix_tables(
    problem: Problem, units: Units, limits: Limits, prices: tuple[Prices, ...], bound: float
) -> Iterator[Solution | None]:
    """The best assignments that cut at prefixes of a few orders."""
    orders = 1 if len(units) <= _FEW else max(1, min(6, _PREFIXES // len(units)))
    clock = Clock(_LEAST_S)
    known = float("inf")
    for count in sorted({1, orders}):
        ideals = prefix_ideals(units, count, limits.seed)
        for factor in _CUTOFFS:
            cutoff = min(known, factor * bound) if bound > 0 else known
            try:
                table = run_table(problem, units, ideals, limits, clock, cutoff, prices)
            except TooLargeError:
                return
            if table.assignment is not None:
                found = scored(problem, *table.assignment, "orders")
                if found is not None:
                    known = min(known, found.evaluation.value(problem.objective))
                yield found
            if table.assignment is not None or cutoff == known:
                break
