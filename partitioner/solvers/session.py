"""One solve in progress: the best assignment so far, what is proven, and the time left."""

from __future__ import annotations

from dataclasses import replace

from partitioner.errors import InfeasibleError, NoneFoundError
from partitioner.problem import Problem, Solution, SolveStats, Status
from partitioner.solvers.bounds import load_prices, lower_bound
from partitioner.solvers.diagnosis import certain_causes, explain_infeasible
from partitioner.solvers.dp import TooLargeError, exact_table
from partitioner.solvers.heuristics import best_of, incumbent, scored
from partitioner.solvers.ilp import search
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.reduce import reduce_ops

__all__ = ["Session"]

# Each round starts from a better incumbent, which prunes more and rounds less; two or three do.
_ROUNDS = 6
# Precision of CP-SAT's integers: small ones are quicker, and its presolve has been seen to lose
# solutions with large ones.
_BITS, _MORE_BITS, _MOST_BITS = 28, 5, 42


class Session:
    """Incumbent and bound, closed in on by the solvers.

    Parameters
    ----------
    problem, limits
        What to solve, and for how long.
    method : str
        Name that the result carries.

    Raises
    ------
    InfeasibleError
        If the problem is infeasible at a glance.
    """

    def __init__(self, problem: Problem, limits: Limits, method: str) -> None:
        self._problem, self._limits, self._method = problem, limits, method
        self._clock = Clock(limits.time_limit_s)
        self._units = reduce_ops(problem)
        if certain_causes(problem, self._units):
            raise InfeasibleError(explain_infeasible(problem, self._units))
        self._prices = load_prices(problem, self._units)
        self._bound = lower_bound(problem, self._units, self._prices)
        self._infeasible = False
        self._interrupted = False
        self._best = incumbent(problem, self._units, limits, self._prices, self._bound)
        self._tell()

    @property
    def objective(self) -> float:
        """Value of the best assignment so far; inf without one."""
        if self._best is None:
            return float("inf")
        return self._best.evaluation.value(self._problem.objective)

    @property
    def proven(self) -> bool:
        """Whether the best assignment is optimal within the tolerance."""
        return self._best is not None and self.objective - self._bound <= RELATIVE * abs(
            self.objective
        )

    @property
    def open(self) -> bool:
        """Whether there is something left to prove and time to do it."""
        done = self.proven or self._infeasible or self._interrupted
        return not done and self._clock.left_s > 0

    def try_dp(self) -> None:
        """Dynamic programming, left for another method when it is too large."""
        try:
            self.run_dp()
        except TooLargeError:
            return

    def run_dp(self) -> None:
        """Dynamic programming over all downsets.

        Raises
        ------
        TooLargeError
            If there are too many.
        """
        for _ in range(_ROUNDS):
            before = self.objective
            # Values that would not be an improvement by the tolerance need no search.
            cutoff = before * (1 - RELATIVE / 2)
            try:
                table = exact_table(
                    self._problem,
                    self._units,
                    self._limits,
                    self._clock,
                    cutoff,
                    self._prices,
                )
            except KeyboardInterrupt:
                self._stop()
                return
            if table.assignment is None:
                self._infeasible = self._best is None
                self._prove(cutoff)
            else:
                self._prove(table.bound)
                self._offer(scored(self._problem, *table.assignment, self._method))
            if not self.open or not self.objective < before:
                return

    def run_cpsat(self) -> None:
        """CP-SAT until proof or the end of time."""
        bits = _BITS
        while self.open:
            before = self.objective
            start = None if self._best is None else (self._best.stage_of, self._best.placements)
            try:
                found = search(
                    self._problem,
                    self._units,
                    self._limits,
                    self._clock,
                    ceiling_s=before if self._best is not None else self._ceiling(),
                    floor_s=self._bound,
                    start=start,
                    bits=bits,
                )
            except KeyboardInterrupt:
                self._stop()
                return
            if found.assignment is not None:
                self._offer(scored(self._problem, *found.assignment, self._method))
            if found.bound == float("inf"):
                self._infeasible = True
                return
            self._prove(found.bound)
            if not self.objective < before / 2:
                # What a finished search leaves open is rounding; a much better incumbent alone
                # makes the steps finer.
                bits += _MORE_BITS
            if not found.finished or bits > _MOST_BITS:
                return

    def result(self) -> Solution:
        """The best assignment with its proof.

        Raises
        ------
        InfeasibleError
            If there is none.
        NoneFoundError
            If none was found in time.
        """
        if self._best is None:
            if self._infeasible:
                raise InfeasibleError(explain_infeasible(self._problem, self._units))
            raise NoneFoundError(
                f"method {self._method!r} found no assignment within "
                f"{self._limits.time_limit_s:g} s, which does not prove that there is none; give "
                "a longer time limit, a hint, or more memory"
            )
        status = Status.OPTIMAL if self.proven else Status.FEASIBLE
        stats = SolveStats(
            status,
            self.objective,
            min(self._bound, self.objective),
            self._clock.spent_s,
            self._method,
        )
        return replace(self._best, stats=stats)

    def _ceiling(self) -> float:
        """An objective that every assignment meets, for want of a better one."""
        problem, units = self._problem, self._units
        dearest = [float(row[row < float("inf")].max()) for row in units.time_s]
        stages = min(problem.max_stages, len(units))
        moves = 0.0
        for cost in (problem.send, problem.recv, problem.link):
            each = cost.base_s.max() + problem.amount * cost.per_unit_s.max()
            moves += float(each.sum()) * (stages + 1)
        return sum(dearest) + stages * float(problem.host_s.max()) + moves

    def _offer(self, candidate: Solution | None) -> None:
        before = self.objective
        self._best = best_of(self._problem, self._best, candidate)
        if self.objective < before:
            self._tell()

    def _prove(self, bound: float) -> None:
        if bound > self._bound:
            self._bound = bound
            self._tell()

    def _stop(self) -> None:
        self._interrupted = True
        if self._best is None:
            raise KeyboardInterrupt

    def _tell(self) -> None:
        if self._limits.progress is not None and self._best is not None:
            bound = min(self._bound, self.objective)
            self._limits.progress(self.objective, bound, self._clock.spent_s)
