"""Is there any assignment at all? Asked of the solvers, with costs out of the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from partitioner.errors import InfeasibleError, NoneFoundError
from partitioner.problem import LatencyModel, Objective, Problem, Solution, Status, TransferCost
from partitioner.solvers import solve
from partitioner.solvers.limits import Clock

__all__ = ["CAPPED", "Oracle", "latency_alone"]

# Of one question: what small limits leave open for longer is taken as unknown.
_EACH_S = 5.0


class Oracle:
    """Answers within a time limit.

    Parameters
    ----------
    time_limit_s : float
        For all questions together.

    Attributes
    ----------
    doubted : bool
        Whether some answer since it was last set to False was not proven.
    """

    def __init__(self, time_limit_s: float) -> None:
        self._clock = Clock(time_limit_s)
        self.doubted = False

    def feasible(self, problem: Problem) -> Solution | None:
        """Some assignment; None when there is none, or (`doubted`) none was found."""
        for name, objective in CAPPED.items():
            cap = getattr(problem, name)
            if np.isfinite(cap):
                if objective is Objective.PERIOD and latency_alone(problem):
                    only = replace(problem, objective=Objective.LATENCY, second=None)
                    return self._solved(only)
                changed: dict[str, Any] = {name: np.inf}
                best = self.best(replace(problem, **changed), objective)
                if best is None or best.evaluation.value(objective) <= cap * (1 + 1e-9):
                    return best
                self.doubted |= best.stats.bound <= cap
                return None
        return self._solved(_costless(problem))

    def best(self, problem: Problem, objective: Objective) -> Solution | None:
        """The assignment with the least `objective`, as far as it is found and proven."""
        solution = self._solved(replace(problem, objective=objective, second=None))
        self.doubted |= solution is not None and solution.stats.status is not Status.OPTIMAL
        return solution

    def _solved(self, problem: Problem) -> Solution | None:
        try:
            return solve(problem, time_limit_s=min(_EACH_S, self._clock.left_s))
        except NoneFoundError:
            self.doubted = True
        except InfeasibleError:
            pass
        return None


CAPPED = {"period_cap_s": Objective.PERIOD, "latency_cap_s": Objective.LATENCY}
"""Limits that depend on costs, and what to minimize to see whether they can be met."""


def latency_alone(problem: Problem) -> bool:
    """Whether solvers minimize nothing but the latency of such a problem."""
    return bool(problem.same_option) or problem.latency_model is LatencyModel.LIST


def _costless(problem: Problem) -> Problem:
    """The same limits with a period, or latency, of one second for every assignment.

    The first assignment that is found is then proven optimal. One op takes time: for a period as
    many seconds as its option has replicas. Groups of `same_option`, and the latency model
    ``list``, are solved for latency only.
    """
    latency = latency_alone(problem)
    times = np.where(np.isfinite(problem.time_s), 0.0, np.inf)
    times[0] += 1.0 if latency else problem.replicas
    nothing = TransferCost.zero(problem.n_options)
    return replace(
        problem,
        time_s=times,
        host_s=np.zeros(problem.n_options),
        send=nothing,
        recv=nothing,
        link=nothing,
        objective=Objective.LATENCY if latency else Objective.PERIOD,
        second=None,
    )
