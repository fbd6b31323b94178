"""Solving one graph again and again while its costs change: behind a slider, in a refinement loop.

What hangs on the graph alone is kept: units, downsets and what is open at them. What hangs on costs
is kept where it stays valid: any multipliers give a load bound, and the assignments found so far,
scored anew, are incumbents close to the optimum, so that few stages need a price.
"""

from __future__ import annotations

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Problem, Solution
from partitioner.solvers.bounds import Prices, lower_bound, repriced
from partitioner.solvers.dp.cuts import Cuts
from partitioner.solvers.dp.ideals import all_ideals, membership
from partitioner.solvers.dp.reach import Reach
from partitioner.solvers.dp.run import run_cuts_on, run_dp
from partitioner.solvers.dp.table import TooLargeError, applies, longest_period
from partitioner.solvers.limits import RELATIVE, Limits, Progress
from partitioner.solvers.pipeline import begin, run_cpsat
from partitioner.solvers.reduce import reduce_ops, repriced_units
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["Resolver"]

# Downsets that are worth keeping: more take longer to filter than to enumerate below a cut-off.
_MOST_IDEALS = 20_000
_KEPT = 4
# How much worse than last time's ratio to the load bound the first cut-off allows the optimum.
_LEEWAY = 1.005


class Resolver:
    """Solver of problems that differ in costs only.

    Costs are op times, amounts and sizes, transfers, budgets, capacities, caps and the objective;
    the graph, the groups that share a stage, and the numbers of options and resources stay.

    Parameters
    ----------
    problem : Problem
        The first of them.
    limits : Limits, optional
        Workers, seed and table sizes of all solves.
    """

    def __init__(self, problem: Problem, limits: Limits | None = None) -> None:
        self._graph = problem
        self._limits = limits or Limits()
        self._units = reduce_ops(problem)
        self._cuts: Cuts | None = None
        self._enumerated = False
        self._crowded = False
        self._known: list[Solution] = []
        self._prices: tuple[Prices, ...] = ()
        self._ratio = np.inf

    def solve(
        self,
        problem: Problem | None = None,
        *,
        time_limit_s: float = 10.0,
        progress: Progress | None = None,
    ) -> Solution:
        """Find and prove the best assignment under changed costs.

        Parameters
        ----------
        problem : Problem, optional
            The changed problem; the first one if left out.
        time_limit_s : float
            Wall time to spend.
        progress : callable, optional
            As for `partitioner.solvers.solve`.

        Returns
        -------
        Solution
            As from `partitioner.solvers.solve`.

        Raises
        ------
        ProblemError
            If the graph changed, or the problem is free or has a second objective.
        InfeasibleError
            If there is no assignment, or none was found in time.
        """
        problem = self._graph if problem is None else problem
        self._check(problem)
        limits = Limits(
            time_limit_s=time_limit_s,
            progress=progress,
            workers=self._limits.workers,
            seed=self._limits.seed,
            max_ideals=self._limits.max_ideals,
            max_pairs=self._limits.max_pairs,
        )
        units = repriced_units(problem, self._units)
        session = Session(problem, limits, "resolve", units)
        prices = self._start(session)
        first = session.bound
        if session.open and applies(problem) and not self._crowded:
            try:
                self._run_tables(session, prices)
            except TooLargeError:
                # Where it was not for want of time, the next change will not fare better.
                self._crowded = bool(self._known) and session.open
        if session.open:
            run_cpsat(session)
        solution = session.result()
        self._keep(solution, first, prices)
        return solution

    def _check(self, problem: Problem) -> None:
        old = self._graph
        if not problem.contiguous or problem.second is not None:
            raise ProblemError(
                "a Resolver treats contiguous problems with one objective; solve a free one, or "
                "one with a second objective, from scratch"
            )
        same = {
            name: getattr(problem, name) == getattr(old, name)
            for name in ("consumers", "colocate", "constant_ops")
        } | {
            name: np.array_equal(getattr(problem, name), getattr(old, name))
            for name in ("producer", "to_caller")
        }
        for name, kept in same.items():
            if not kept:
                raise ProblemError(
                    f"{name} is not what it was; a Resolver keeps to one graph: make a new one"
                )
        for name in ("time_s", "uses"):
            now, before = getattr(problem, name).shape, getattr(old, name).shape
            if now != before:
                raise ProblemError(
                    f"{name} has shape {now}, it had {before}; a Resolver keeps to one graph and "
                    "one list of options and resources: make a new one"
                )

    def _start(self, session: Session) -> tuple[Prices, ...]:
        """First bound and assignments: the known ones, or from scratch where none is feasible."""
        problem = session.problem
        for known in self._known:
            session.offer(scored(problem, known.stage_of, known.placements, "resolve"))
        if session.best is None or not self._prices:
            return begin(session)
        prices = repriced(problem, session.units, self._prices)
        session.prove(lower_bound(problem, session.units, prices))
        return prices

    def _run_tables(self, session: Session, prices: tuple[Prices, ...]) -> None:
        """Dynamic programming, with a low cut-off first."""
        problem = session.problem
        if not self._enumerated and self._known:
            self._enumerate()
        if self._cuts is None:
            run_dp(session, prices)
            return
        # Last time's distance from the bound tells how low a cut-off will do.
        guess = session.bound * self._ratio * _LEEWAY
        for cutoff in (guess, np.inf) if guess > 0 else (np.inf,):
            before = session.objective * (1 - RELATIVE / 2)
            with session.interruptible():
                period_s = longest_period(problem, min(cutoff, before))
                reach = Reach(problem, self._cuts.members, prices, period_s)
                near = self._cuts.take(np.flatnonzero(reach.ever()))
                run_cuts_on(session, near, min(cutoff, before), prices)
            if not session.open or cutoff >= before:
                return

    def _enumerate(self) -> None:
        """Look at all downsets, once, where there are few enough to keep."""
        self._enumerated = True
        ideals = all_ideals(self._units, _MOST_IDEALS)
        if ideals is not None:
            self._cuts = Cuts.of(self._units, membership(ideals, len(self._units)))

    def _keep(self, solution: Solution, bound: float, prices: tuple[Prices, ...]) -> None:
        known = [
            old
            for old in self._known
            if (old.stage_of, old.placements) != (solution.stage_of, solution.placements)
        ]
        self._known = [solution, *known][:_KEPT]
        self._prices = prices
        self._ratio = solution.stats.objective / bound if bound > 0 else np.inf
