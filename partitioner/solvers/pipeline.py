"""The contiguous problem: incumbent, dynamic programming and CP-SAT, in turn on one session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from partitioner.solvers.bounds import Prices, load_prices, lower_bound, repriced
from partitioner.solvers.cpsat.scales import ceiling
from partitioner.solvers.cpsat.search import Keep, search
from partitioner.solvers.dp.budget import run_budget, shares_a_budget
from partitioner.solvers.dp.run import run_dp
from partitioner.solvers.dp.table import TooLargeError, applies
from partitioner.solvers.heuristics import incumbent
from partitioner.solvers.mincut import applies as cut_applies
from partitioner.solvers.mincut import minimum_cut
from partitioner.solvers.reduce import Assignment, most_stages
from partitioner.solvers.reductions.narrow import narrowed
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session
from partitioner.solvers.windows.closing import close_in

__all__ = ["begin", "run_cpsat", "run_dp", "run_mincut", "run_pipeline"]

# Precision of CP-SAT's integers: small ones are quicker, and its presolve has been seen to lose
# solutions with large ones.
_BITS, _MORE_BITS, _MOST_BITS = 28, 5, 42
# Beyond these the tables of dynamic programming, and the model of CP-SAT (units by stages), take
# more memory and time to set up than they are worth.
_DP_UNITS, _CPSAT_PAIRS = 4_000, 80_000


def begin(session: Session) -> tuple[Prices, ...]:
    """Give the session its first bound and assignment.

    Returns
    -------
    tuple of Prices
        Load prices, for `run_dp`.
    """
    problem, units = session.problem, session.units
    prices = load_prices(problem, units)
    session.prove(lower_bound(problem, units, prices))
    session.offer(incumbent(problem, units, session.limits, prices, session.bound))
    return prices


def run_mincut(session: Session) -> None:
    """Serial latency over two options: proven at once, unless the cut breaks a rule it ignores."""
    cut = minimum_cut(session.problem, session.units)
    if cut.bound_s == float("inf"):
        session.prove_infeasible()
        return
    session.prove(cut.bound_s)
    if cut.assignment is not None:
        session.offer(scored(session.problem, *cut.assignment, "mincut"))


def run_pipeline(session: Session) -> None:
    """Cuts, then dynamic programming, then CP-SAT, as far as each fits.

    Of a serial latency over two options a minimum cut comes first, of a period the windows of its
    cuts. Where stages share a memory budget, dynamic programming takes it first.
    """
    prices = begin(session)
    if session.open and cut_applies(session.problem):
        run_mincut(session)
    close_in(session, prices)
    whole = session.units
    if len(whole) > _DP_UNITS:
        return
    prices = _narrow(session, prices)
    if session.open and shares_a_budget(session.problem):
        with suppress(TooLargeError):
            run_budget(session, prices)
    if session.open and applies(session.problem):
        with suppress(TooLargeError):
            run_dp(session, prices)
    if session.open and len(session.units) * most_stages(session.problem) <= _CPSAT_PAIRS:
        run_cpsat(session)
    session.units = whole


def _narrow(session: Session, prices: tuple[Prices, ...]) -> tuple[Prices, ...]:
    """Leave the session fewer units, and an assignment that they can express."""
    problem, best = session.problem, session.best
    if not session.open or best is None or any(len(options) > 1 for options in best.placements):
        return prices
    found = narrowed(problem, session.units, session.objective, prices, session.clock)
    carried = scored(problem, *found.carried((best.stage_of, best.placements)), best.stats.method)
    if carried is None:
        return prices
    session.units, session.best = found.units, carried
    return repriced(problem, found.units, prices)


def run_cpsat(
    session: Session, without: Sequence[Assignment] = (), keep: Keep | None = None
) -> None:
    """CP-SAT until proof or the end of time.

    What a finished search leaves open is rounding: of the objective, or of a limit that its
    solution breaks. Finer steps settle both; at the finest, solutions refused are left out.

    Parameters
    ----------
    without : sequence of assignments
        Left out, so that the bound is that of all others.
    keep : callable, optional
        Told of every assignment met and its score, feasible or not.
    """
    problem, units = session.problem, session.units
    bits = _BITS
    refused: list[Assignment] = []
    while session.open:
        before, best = session.objective, session.best
        with session.interruptible():
            found = search(
                problem,
                units,
                session.limits,
                session.clock,
                ceiling=before if best is not None else ceiling(problem, units),
                floor=session.bound,
                start=None if best is None else (best.stage_of, best.placements),
                bits=bits,
                without=[*without, *refused],
                keep=keep,
            )
            if found.assignment is not None:
                session.offer(scored(problem, *found.assignment, "cpsat"))
            if found.interrupted:
                raise KeyboardInterrupt
            if found.bound == float("inf"):
                session.prove_infeasible()
                return
            session.prove(found.bound)
            if bits == _MOST_BITS:
                refused += found.refused
            if not found.finished or (bits == _MOST_BITS and not found.refused):
                return
            if not session.objective < before / 2:
                # A much better incumbent alone makes the steps finer.
                bits = min(bits + _MORE_BITS, _MOST_BITS)
