"""One solve in progress: the best assignment so far, what is proven, and the time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.problem import Problem, Solution, SolveStats, Status
from partitioner.solvers.diagnosis.obvious import certain_causes, explain_infeasible
from partitioner.solvers.interrupt import noticed
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.reduce import Units, reduce_ops
from partitioner.solvers.scoring import best_of

__all__ = ["Session"]


class Session:
    """Incumbent and bound, closed in on by whichever methods are run on it.

    Parameters
    ----------
    problem, limits
        What to solve, and for how long.
    method : str
        Name that the result carries.
    units : Units, optional
        The problem's units, where they are known.

    Attributes
    ----------
    problem, limits, units, clock
        What the methods need; `units` are the problem's ops merged where they must share a stage.
    best : Solution or None
        Best assignment so far.
    bound : float
        Proven lower bound of the objective.

    Raises
    ------
    InfeasibleError
        If the problem is infeasible at a glance.
    ProblemError
        If it has groups of `same_option`, which `latency.apart` takes apart first.
    """

    def __init__(
        self, problem: Problem, limits: Limits, method: str, units: Units | None = None
    ) -> None:
        if problem.same_option:
            raise ProblemError(
                f"method {method!r} does not treat groups that share an option but no stage; use "
                "method 'auto', or colocate them"
            )
        self.problem, self.limits = problem, limits
        self.clock = Clock(limits.time_limit_s)
        self.units: Units = reduce_ops(problem) if units is None else units
        self.best: Solution | None = None
        self.bound = 0.0
        self._method = method
        self._infeasible = False
        if certain_causes(problem, self.units):
            raise InfeasibleError(explain_infeasible(problem, self.units))

    @property
    def objective(self) -> float:
        """Value of the best assignment so far; inf without one."""
        if self.best is None:
            return float("inf")
        return self.best.evaluation.value(self.problem.objective)

    @property
    def proven(self) -> bool:
        """Whether the best assignment is optimal within the tolerance."""
        return self.best is not None and self.objective - self.bound <= RELATIVE * abs(
            self.objective
        )

    @property
    def open(self) -> bool:
        """Whether there is something left to prove and time to do it."""
        done = self.proven or self._infeasible or self.limits.interrupted.is_set()
        return not done and self.clock.left_s > 0

    def offer(self, candidate: Solution | None) -> None:
        """Take an assignment, scored by `evaluation`, if it is better than the best."""
        before = self.objective
        self.best = best_of(self.problem, self.best, candidate)
        if self.objective < before:
            self._tell()

    def prove(self, bound: float) -> None:
        """Take a proven lower bound if it is higher than the one known."""
        if bound > self.bound:
            self.bound = bound
            self._tell()

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there is no assignment."""
        return self._infeasible

    def prove_infeasible(self) -> None:
        """Take the proof that no assignment is feasible."""
        self._infeasible = True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within it, Ctrl-C ends the solve with the best assignment so far, if there is one."""
        interrupted = self.limits.interrupted
        before = interrupted.is_set()
        try:
            with noticed(interrupted):
                yield
        except KeyboardInterrupt:
            interrupted.set()
        if interrupted.is_set() and not before and self.best is None:
            raise KeyboardInterrupt

    def result(self) -> Solution:
        """The best assignment with its proof.

        Raises
        ------
        InfeasibleError
            If there is none.
        NoneFoundError
            If none was found in time.
        """
        if self.best is None:
            if self._infeasible:
                raise InfeasibleError(explain_infeasible(self.problem, self.units))
            raise NoneFoundError(
                f"method {self._method!r} found no assignment within "
                f"{self.limits.time_limit_s:g} s, which does not prove that there is none; give "
                "a longer time limit, a hint, or more memory"
            )
        status = Status.OPTIMAL if self.proven else Status.FEASIBLE
        stats = SolveStats(
            status,
            self.objective,
            min(self.bound, self.objective),
            self.clock.spent_s,
            self._method,
        )
        return replace(self.best, stats=stats)

    def _tell(self) -> None:
        if self.limits.progress is not None and self.best is not None:
            bound = min(self.bound, self.objective)
            self.limits.progress(self.objective, bound, self.clock.spent_s)
