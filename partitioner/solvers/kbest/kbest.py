"""The k best plans that differ after renaming equal options, for a trial on the devices.

Where dynamic programming fits, its table gives all plans in order of a lower bound; else CP-SAT
finds the next best with the known ones taken out of its model.
"""

from __future__ import annotations

from contextlib import suppress

from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.problem import Problem, Solution
from partitioner.solvers.bounds import Prices, load_prices
from partitioner.solvers.dp.ranked import choices, pipelines
from partitioner.solvers.dp.table import TooLargeError, applies, exact_cuts, search_cuts
from partitioner.solvers.kbest.ranking import Ranking
from partitioner.solvers.limits import Clock, Limits
from partitioner.solvers.neighbours import changes
from partitioner.solvers.pipeline import run_cpsat, run_pipeline
from partitioner.solvers.reduce import Assignment, Units, stages_of
from partitioner.solvers.replicate import Replicated
from partitioner.solvers.session import Session

__all__ = ["k_best"]

# How far above the best the table looks, relatively, until it holds enough plans.
_WIDTHS = (1e-3, 1e-2, 0.05, 0.2, 1.0, float("inf"))
# Share of the time for the best plan; without proof of it there is none of any.
_FIRST = 0.5


def k_best(
    problem: Problem,
    k: int,
    *,
    time_limit_s: float = 10.0,
    within: float = float("inf"),
    replicated: Replicated | None = None,
) -> tuple[Solution, ...]:
    """The k best plans of a contiguous problem.

    Two plans differ when no renumbering of stages and no renaming of equal options (see
    `reduce.symmetry`) turns one into the other. Plans of equal objective come in any order.

    Parameters
    ----------
    problem : Problem
        With one objective.
    k : int
        How many.
    time_limit_s : float
        Wall time to spend.
    within : float
        Leave out plans worse than the best by more than this, relatively.
    replicated : Replicated, optional
        Where `problem` comes from `replicate.with_replicas`: what that returned, so that plans
        are compared by the devices themselves.

    Returns
    -------
    tuple of Solution
        Best first; fewer than k when there are no more, or none were found in time. A plan's
        `stats` say what is proven of its place: OPTIMAL where no plan missing before it is better
        by more than 1e-6. Interrupted by Ctrl-C, those known by then.

    Raises
    ------
    InfeasibleError
        If no assignment exists, or none was found within the time limit.
    ProblemError
        If k or `within` make no sense, or the problem is free or has a second objective.
    """
    _require(problem, k, within)
    clock = Clock(time_limit_s)
    session = Session(problem, Limits(time_limit_s=time_limit_s * _FIRST), "k best")
    with session.interruptible():
        run_pipeline(session)
    first = session.result()
    ranking = Ranking(problem, k, within, replicated)
    ranking.add((first.stage_of, first.placements), first.evaluation)
    ranking.covered = session.bound
    with session.interruptible():
        if not session.limits.interrupted.is_set():
            _complete(ranking, problem, session.units, clock)
    return ranking.best(clock.spent_s)


def _require(problem: Problem, k: int, within: float) -> None:
    if k < 1:
        raise ProblemError(f"k is {k}; it must be at least 1")
    if not within >= 0:
        raise ProblemError(f"within is {within}; it must be zero or more (inf: no limit)")
    if not problem.contiguous:
        raise ProblemError("the k best are found for contiguous problems only")
    if problem.second is not None:
        raise ProblemError(
            "the k best are by one objective; cap the first (period_cap_s, latency_cap_s) and "
            "minimize the second"
        )


def _complete(ranking: Ranking, problem: Problem, units: Units, clock: Clock) -> None:
    """Look for the plans after the best one."""
    if applies(problem):
        with suppress(TooLargeError):
            _by_table(problem, units, ranking, clock)
    if not ranking.complete:
        _by_search(problem, units, ranking, clock)


def _by_table(problem: Problem, units: Units, ranking: Ranking, clock: Clock) -> None:
    """All plans below a cut-off in order, the cut-off raised until they are enough.

    Raises
    ------
    TooLargeError
        If the table is too large, or time runs out.
    """
    prices = load_prices(problem, units)
    best = ranking.best(0.0)[0].stats.objective
    for width in _WIDTHS:
        if ranking.complete:
            return
        # A cut-off just above the worst plan wanted is enough.
        cutoff = min(best * (1 + width), ranking.limit * (1 + 1e-9)) if best > 0 else float("inf")
        _below(cutoff, problem, units, ranking, prices, clock)


def _below(
    cutoff: float,
    problem: Problem,
    units: Units,
    ranking: Ranking,
    prices: tuple[Prices, ...],
    clock: Clock,
) -> None:
    """All plans below a cut-off, as far as they are wanted."""
    limits = Limits()
    cuts = exact_cuts(problem, units, limits, cutoff, prices)
    search = search_cuts(problem, units, cuts, limits, clock, cutoff, prices)
    # At the cut-off and above, the table has only some.
    below = cutoff * (1 - 1e-12)
    for value, trail in pipelines(search, clock, lambda: min(ranking.limit, below)):
        ranking.covered = max(ranking.covered, value)
        stage_of = stages_of(units, search.stage_of_unit(trail))
        for options in choices(problem, search, trail):
            ranking.add((stage_of, tuple((option,) for option in options)))
    ranking.covered = max(ranking.covered, min(below, ranking.limit))


def _by_search(problem: Problem, units: Units, ranking: Ranking, clock: Clock) -> None:
    """Neighbours of the best, then CP-SAT for the next best, one after the other."""
    half_s = clock.left_s / 2
    for _, stage_of, placements in changes(problem, ranking.best(0.0)[0]):
        if clock.left_s < half_s:
            break
        ranking.add((stage_of, placements))
    without: list[Assignment] = []
    left_out = 0
    while not ranking.complete and clock.left_s > 0:
        known = ranking.known()
        for plan in known[left_out:]:
            without += ranking.guises(plan)
        left_out = len(known)
        session = Session(problem, Limits(time_limit_s=clock.left_s), "k best", units)
        session.prove(ranking.covered)
        session.offer(ranking.candidate)
        if session.open:
            run_cpsat(session, without=without, keep=ranking.add)
        try:
            found = session.result()
        except NoneFoundError:
            return
        except InfeasibleError:
            ranking.covered = float("inf")
            return
        assignment = (found.stage_of, found.placements)
        if ranking.is_known(assignment):
            # A known plan in a guise that was not left out.
            without.append(assignment)
        ranking.add(assignment, found.evaluation)
        ranking.covered = max(ranking.covered, min(session.bound, session.objective))
        if not session.proven:
            return
