"""Groups of ops that share an option rather than a stage, where an option has a stage an op.

The published latency puts all nodes of a colour on one device. On the CPU each node still runs as
soon as its own inputs are there, which is less than a stage of all of them. A group is therefore
either one unit on some option that is taken up, or its ops are each on the option that is not; a
problem for each choice, and the least of their optima is the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from partitioner.errors import InfeasibleError, NoneFoundError, ProblemError
from partitioner.evaluation import evaluate
from partitioner.problem import (
    LatencyModel,
    Objective,
    Problem,
    Solution,
    SolveStats,
    Status,
)
from partitioner.solvers.bounds import lower_bound
from partitioner.solvers.latency.solve import run_latency
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.reduce import reduce_ops
from partitioner.solvers.session import Session

__all__ = ["run_apart"]

# Groups told apart at most: each doubles the work.
_MOST_GROUPS = 4


def _groups_apart(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Colocated groups that it may serve to run apart on an option without end.

    Nothing is lost by running a group as one stage when one op takes all its time, everything that
    enters goes through that op, and so does all that leaves.
    """
    spare = _spare(problem)
    if spare is None:
        return ()
    merged = {tuple(ops) for ops in reduce_ops(problem).members}
    return tuple(
        group
        for group in problem.colocate
        if len(set(group)) > 1
        and not (tuple(sorted(group)) in merged and _one_matters(problem, group, spare))
    )


def run_apart(problem: Problem, limits: Limits) -> Solution:
    """Least latency with groups of `same_option`.

    Returns
    -------
    Solution
        The best assignment with the proof for all choices.

    Raises
    ------
    InfeasibleError
        If no choice is feasible.
    ProblemError
        If it is not the latency of the model 'atomic' that is minimized, or an option may hold
        several stages but not any number.
    """
    _require(problem)
    clock = Clock(limits.time_limit_s)
    whole = problem
    same = tuple(dict.fromkeys(whole.same_option))
    problem = replace(whole, colocate=(*whole.colocate, *same), same_option=())
    groups = tuple(dict.fromkeys(g for g in _groups_apart(problem) if g in same))
    best: Solution | None = None
    bound, stopped = float("inf"), False
    if len(groups) > _MOST_GROUPS:
        # Only some choices are searched, so that no more is proven than holds without any group.
        loose = replace(problem, colocate=whole.colocate)
        bound = lower_bound(loose, reduce_ops(loose), ())
    causes: list[InfeasibleError] = []
    for choice in _choices(problem, groups[:_MOST_GROUPS]):
        known = float("inf") if best is None else best.evaluation.latency_s
        capped = replace(choice, latency_cap_s=min(choice.latency_cap_s, known))
        left = replace(limits, time_limit_s=0.0 if stopped else clock.left_s)
        try:
            session = Session(capped, left, "latency")
            found, ended = _run(session, best)
        except NoneFoundError as error:
            bound = min(bound, session.bound)
            causes.append(error)
            continue
        except InfeasibleError as error:
            causes.append(error)
            continue
        # Only Ctrl-C ends a search without a proof before its time.
        stopped |= not ended or limits.interrupted.is_set()
        stopped |= found is not None and not session.proven
        if not session.infeasible:
            bound = min(bound, session.bound)
        if found is not None and found.evaluation.latency_s < known:
            best = found
    if best is None:
        raise causes[-1]
    objective = best.evaluation.latency_s
    bound = min(bound, objective)
    status = Status.OPTIMAL if objective - bound <= RELATIVE * objective else Status.FEASIBLE
    stats = SolveStats(status, objective, bound, clock.spent_s, "latency")
    evaluation = evaluate(whole, best.stage_of, best.placements)
    return replace(best, evaluation=evaluation, stats=stats)


def _require(problem: Problem) -> None:
    atomic = problem.latency_model is LatencyModel.ATOMIC and problem.contiguous
    if problem.objective is not Objective.LATENCY or not atomic:
        raise ProblemError(
            "groups that share an option but no stage are solved for the latency of the model "
            "'atomic' only; colocate them"
        )
    idle = ~problem.uses.any(axis=1)
    several = (2 * problem.uses <= problem.capacity).all(axis=1)
    if idle.sum() > 1 or (several & ~idle).any():
        raise ProblemError(
            "groups that share an option but no stage are solved where each option hosts one "
            "stage and at most one any number; colocate them"
        )


def _run(session: Session, best: Solution | None) -> tuple[Solution | None, bool]:
    """The best assignment of a choice, and whether the search was left to end by itself.

    Where there is an assignment of another choice, None will do.
    """
    try:
        run_latency(session)
    except KeyboardInterrupt:
        if best is None:
            raise
        return session.best, False
    return session.result() if best is None else session.best, True


def _spare(problem: Problem) -> int | None:
    free = np.flatnonzero(~problem.uses.any(axis=1))
    return int(free[0]) if len(free) else None


def _choices(problem: Problem, groups: Sequence[tuple[int, ...]]) -> Iterator[Problem]:
    """The problem for each choice of groups to run apart; the one with none apart first."""
    spare = _spare(problem)
    elsewhere = np.flatnonzero(np.arange(problem.n_options) != spare)
    for apart in itertools.product((False, True), repeat=len(groups)):
        allowed = problem.allowed.copy()
        kept = list(problem.colocate)
        for group, alone in zip(groups, apart, strict=True):
            rows = np.array(group, dtype=np.int64)
            if alone:
                kept.remove(group)
                allowed[np.ix_(rows, elsewhere)] = False
            else:
                allowed[rows, spare] = False
        yield replace(problem, allowed=allowed, colocate=tuple(kept))


def _one_matters(problem: Problem, group: tuple[int, ...], spare: int) -> bool:
    members = set(group)
    after = {op: {op} for op in group}
    entered, left = set(), set()
    for u, v in reversed(problem.edges):  # from the last producer on, so that `after` is whole
        if u in members and v in members:
            after[u] |= after[v]
        elif v in members:
            entered.add(v)
        elif u in members:
            left.add(u)
    slow = {op for op in group if problem.time_s[op, spare] > 0}
    return any(
        slow <= {op} and left <= after[op] and all(op in after[first] for first in entered)
        for op in group
    )
