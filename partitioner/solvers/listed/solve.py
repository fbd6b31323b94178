"""Least latency ``list``: bounds, list scheduling, a walk, CP-SAT, in turn on one session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import LatencyModel, Objective, Problem
from partitioner.solvers.free.model import FreeModel, free_model
from partitioner.solvers.free.solve import run_rows
from partitioner.solvers.limits import Clock
from partitioner.solvers.listed.bounds import load_bound, path_bound
from partitioner.solvers.listed.heft import starts
from partitioner.solvers.listed.rows import ListRows
from partitioner.solvers.listed.walk import scorer, walked
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["list_counts", "require_list", "run_listed", "run_listed_cpsat"]

# Units that CP-SAT is as quick with as any search for a better start.
_FEW = 12
# Shares of the time limit that walks take before CP-SAT, and of what is left when it has ended.
_WALK, _AGAIN = 0.15, 0.9
_BOUND = 0.1
_STEPS = 60_000
_ROUNDING = 1e-9


def list_counts(problem: Problem) -> bool:
    """Whether the latency ``list`` matters for a problem."""
    latency = Objective.LATENCY in (problem.objective, problem.second)
    latency = latency or bool(np.isfinite(problem.latency_cap_s))
    return problem.latency_model is LatencyModel.LIST and latency


def require_list(problem: Problem) -> None:
    """Refuse what the methods here do not treat.

    Raises
    ------
    ProblemError
        If something else than the latency is minimized too, or ops must share an option only.
    """
    alone = problem.objective is Objective.LATENCY and problem.second is None
    if not alone or problem.same_option:
        raise ProblemError(
            "latency of the model 'list' is minimized alone: not under a cap while something else "
            f"is minimized (here {problem.objective.value}, then "
            f"{problem.second.value if problem.second else 'nothing'}), nor with groups of "
            "same_option; set objective=Objective.LATENCY and second=None and colocate the "
            "groups, count the latency as 'serial', or use method 'brute' for a small problem"
        )


def run_listed(session: Session) -> None:
    """Minimize the latency as far as time allows."""
    model = _modelled(session)
    if model is None:
        return
    with session.interruptible():
        problem, limits = session.problem, session.limits
        few = len(model.slots_of) <= _FEW
        _start(session, model)
        session.prove(path_bound(problem))
        if session.open and not few:
            session.prove(load_bound(problem, _BOUND * session.clock.left_s))
        if session.open and not few:
            _walk(session, model, _WALK * limits.time_limit_s, limits.seed)
        if session.open:
            share = 1.0 if few else 1.0 - _WALK - 0.1
            run_rows(session, model, share * limits.time_limit_s, ListRows, _ceiling(problem))
        if session.open and not few:
            _walk(session, model, _AGAIN * session.clock.left_s, limits.seed + 1)


def run_listed_cpsat(session: Session) -> None:
    """Quick starts and CP-SAT alone."""
    model = _modelled(session)
    if model is None:
        return
    with session.interruptible():
        _start(session, model)
        left_s = session.clock.left_s
        run_rows(session, model, left_s, ListRows, _ceiling(session.problem))


def _modelled(session: Session) -> FreeModel | None:
    """Loads of the period, of which those of stages and links bound the latency."""
    problem = session.problem
    require_list(problem)
    loads = replace(problem, objective=Objective.PERIOD, latency_cap_s=float("inf"))
    model = free_model(loads, session.units)
    model.aim = model.loads_of("slot", "link")
    if model.n_slots and all(model.slots_of):
        return model
    session.prove_infeasible()
    return None


def _start(session: Session, model: FreeModel) -> None:
    """The hint, list scheduling, and each slot alone."""
    problem, hint = session.problem, session.limits.hint
    if hint is not None:
        session.offer(scored(problem, hint.stage_of, hint.placements, "hint"))
    for slots in starts(problem, model):
        session.offer(scored(problem, *model.assignment(slots), "heft"))
    for group in model.classes:
        if all(group[0] in slots for slots in model.slots_of):
            alone = [group[0]] * len(model.slots_of)
            session.offer(scored(problem, *model.assignment(alone), "single"))


def _walk(session: Session, model: FreeModel, time_s: float, seed: int) -> None:
    """A walk from the best, or from where list scheduling leads when that breaks a limit."""
    problem = session.problem
    begun = [] if session.best is None else [session.best]
    known = [model.slots((each.stage_of, each.placements)) for each in begun]
    where = [slots for slots in known if slots is not None] or list(starts(problem, model))[:1]
    left_s = _part(session, time_s)
    score = scorer(problem, model)
    for slots in where:
        for better in walked(model, score, slots, seed, left_s, _STEPS):
            session.offer(scored(problem, *model.assignment(better), "annealing"))


def _ceiling(problem: Problem) -> float:
    """A latency that every assignment within the cap keeps: everything in a row, at its dearest."""
    times = np.where(problem.runs(), problem.time_s, 0.0)
    total = float(times.max(axis=1).sum() + problem.host_s.max() * problem.n_ops)
    ends = problem.n_ops + 1
    for cost in (problem.send, problem.recv, problem.link):
        each = cost.base_s.max() + problem.amount * cost.per_unit_s.max()
        copies = [min(len(readers) + 1, ends) for readers in problem.consumers]
        total += float((each * np.array(copies)).sum())
    return min(total * (1 + _ROUNDING), problem.latency_cap_s * (1 + _ROUNDING))


def _part(session: Session, time_s: float) -> Callable[[], float]:
    """Seconds left of so many from now, none once nothing is left to do."""
    clock = Clock(time_s)
    return lambda: clock.left_s if session.open else 0.0
