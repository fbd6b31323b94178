"""Solvers: the assignment with the lowest period, latency, or whatever is asked for, with a proof.

`solve` is the door. `SOLVERS` names the methods; every assignment that they return is scored by
`partitioner.evaluation`. What is built on it is here by name too and loaded when first used:
`Resolver` (again and again under changing costs), `k_best`, `with_replicas`, `diagnose`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.problem import LatencyModel, Objective, Problem, Solution
from partitioner.solvers.baselines import (
    alternatives,
    equal_split,
    proportional_split,
    replicas,
    single,
)
from partitioner.solvers.brute.search import exhaustive
from partitioner.solvers.diagnosis.obvious import explain_infeasible
from partitioner.solvers.dp.table import applies
from partitioner.solvers.free.solve import run_free, run_free_cpsat
from partitioner.solvers.latency.apart import run_apart
from partitioner.solvers.latency.solve import run_latency
from partitioner.solvers.lexicographic import solve_second
from partitioner.solvers.limits import Clock, Limits, Progress
from partitioner.solvers.listed.solve import (
    list_counts,
    require_list,
    run_listed,
    run_listed_cpsat,
)
from partitioner.solvers.milp.highs import highs
from partitioner.solvers.neighbours import neighbours
from partitioner.solvers.pipeline import begin, run_cpsat, run_dp, run_pipeline
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.reductions.options import trimmed
from partitioner.solvers.session import Session

if TYPE_CHECKING:
    from partitioner.solvers.diagnosis.diagnose import Cause, describe, diagnose
    from partitioner.solvers.kbest.kbest import k_best
    from partitioner.solvers.replicate import Replicated, with_replicas
    from partitioner.solvers.resolve import Resolver

__all__ = [
    "SOLVERS",
    "Cause",
    "Limits",
    "Progress",
    "Replicated",
    "Resolver",
    "alternatives",
    "describe",
    "diagnose",
    "equal_split",
    "k_best",
    "neighbours",
    "proportional_split",
    "replicas",
    "single",
    "solve",
    "with_replicas",
]

# They are built on this module, or seldom needed.
_HOME = {
    "Cause": "partitioner.solvers.diagnosis.diagnose",
    "Replicated": "partitioner.solvers.replicate",
    "Resolver": "partitioner.solvers.resolve",
    "describe": "partitioner.solvers.diagnosis.diagnose",
    "diagnose": "partitioner.solvers.diagnosis.diagnose",
    "k_best": "partitioner.solvers.kbest.kbest",
    "with_replicas": "partitioner.solvers.replicate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'partitioner.solvers' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def _dp(problem: Problem, limits: Limits) -> Solution:
    """Dynamic programming over ideals alone."""
    if not applies(problem):
        raise ProblemError(
            "dynamic programming treats stages that follow one another and costs that add up "
            "stage by stage: not free assignments, nor the latency of the model 'atomic', nor a "
            "cap on the latency where a third thing is minimized; use method 'cpsat' or 'auto'"
        )
    session = Session(problem, limits, "dp")
    with session.interruptible():
        prices = begin(session)
        if session.open:
            run_dp(session, prices)
    return session.result()


def _cpsat(problem: Problem, limits: Limits) -> Solution:
    """CP-SAT alone."""
    session = Session(problem, limits, "cpsat")
    if list_counts(problem):
        run_listed_cpsat(session)
        return session.result()
    if not problem.contiguous:
        run_free_cpsat(session)
        return session.result()
    with session.interruptible():
        begin(session)
        if session.open:
            run_cpsat(session)
    return session.result()


def _auto(problem: Problem, limits: Limits) -> Solution:
    """Without the options that others replace, whichever methods suit the problem."""
    if list_counts(problem):
        require_list(problem)
        session = Session(problem, limits, "auto")
        run_listed(session)
        return session.result()
    fewer = trimmed(problem)
    if fewer is None:
        return _in_turn(problem, limits)
    if limits.hint is not None:
        limits = replace(limits, hint=fewer.carried(limits.hint))
    try:
        return fewer.restore(_in_turn(fewer.problem, limits))
    except NoneFoundError:
        raise
    except InfeasibleError:
        # What is missing is said of all the options that there are.
        raise InfeasibleError(explain_infeasible(problem, reduce_ops(problem))) from None


def _in_turn(problem: Problem, limits: Limits) -> Solution:
    """One method after the other on the same incumbent and bound."""
    if problem.same_option:
        return run_apart(problem, limits)
    session = Session(problem, limits, "auto")
    overlapped = problem.latency_model is LatencyModel.ATOMIC
    with session.interruptible():
        if not problem.contiguous:
            run_free(session)
        elif problem.objective is Objective.LATENCY and overlapped:
            run_latency(session)
        else:
            run_pipeline(session)
    return session.result()


SOLVERS: Mapping[str, Callable[[Problem, Limits], Solution]] = MappingProxyType(
    {"dp": _dp, "cpsat": _cpsat, "highs": highs, "brute": exhaustive}
)
"""Methods by name. `solve` knows "auto" besides."""


def solve(
    problem: Problem,
    *,
    method: str = "auto",
    time_limit_s: float = 10.0,
    progress: Progress | None = None,
    hint: Solution | None = None,
    workers: int | None = None,
) -> Solution:
    """Find the assignment with the lowest objective and prove how good it is.

    Each stage runs on one option; `replicate.with_replicas` makes options of several replicas.

    Parameters
    ----------
    problem : Problem
        What to minimize and within which limits.
    method : str
        "auto", or a name in `SOLVERS`.
    time_limit_s : float
        Wall time to spend; 0 returns the quick incumbent. A second objective gets what the first
        leaves.
    progress : callable, optional
        Called as ``progress(objective_s, bound_s, spent_s)`` on every improvement.
    hint : Solution, optional
        A known assignment to start from; the result is never worse.
    workers : int, optional
        Threads of CP-SAT; the processors there are, up to 8, by default.

    Returns
    -------
    Solution
        `stats.status` is OPTIMAL only with a bound within 1e-6 of the objective. Interrupted by
        Ctrl-C or the limit, the best so far.

    Raises
    ------
    InfeasibleError
        If no assignment exists (saying why), or none was found within the time limit.
    ProblemError
        If `method` is unknown or cannot treat this problem.
    """
    known = {"auto": _auto, **SOLVERS}
    if method not in known:
        raise ProblemError(f"there is no solver {method!r}; known are {', '.join(known)}")
    if not time_limit_s >= 0:
        raise ProblemError(f"time_limit_s is {time_limit_s}; it must be zero or more")
    limits = Limits(time_limit_s=time_limit_s, progress=progress, hint=hint)
    if workers is not None:
        limits = replace(limits, workers=workers)
    run = known[method]
    if list_counts(problem) and method != "brute":
        require_list(problem)
        if method not in ("auto", "cpsat"):
            raise ProblemError(
                f"method {method!r} adds up stages and does not treat the latency of the model "
                "'list', whose stages overlap op by op; use method 'auto', 'cpsat' or 'brute'"
            )
    if problem.second is None:
        return run(problem, limits)
    clock = Clock(time_limit_s)
    first = run(replace(problem, second=None), limits)

    def solve_one(capped: Problem, best: Solution) -> Solution:
        if limits.interrupted.is_set():
            raise NoneFoundError("interrupted")
        # The progress that was asked for is the first objective's.
        rest = replace(limits, time_limit_s=clock.left_s, hint=best, progress=None)
        return run(capped, rest)

    return solve_second(problem, first, solve_one)
