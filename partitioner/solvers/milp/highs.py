"""Mixed-integer linear programming through HiGHS: another exact method, for small problems.

It takes every problem, contiguous or free, as long as there are not too many slots and its times
do not span more than floating-point tolerances allow. HiGHS works with those: its bound is lowered
by more than they can amount to, and what it finds is scored by `evaluation`.
"""

from __future__ import annotations

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Objective, Problem, Solution
from partitioner.solvers.limits import Limits
from partitioner.solvers.milp.memory import add_memory
from partitioner.solvers.milp.program import Sum
from partitioner.solvers.milp.rows import Rows, slots
from partitioner.solvers.milp.times import Times
from partitioner.solvers.scoring import scored
from partitioner.solvers.session import Session

__all__ = ["applies", "highs", "run_milp"]

# HiGHS's tolerances are absolute, 1e-7 to 1e-6; a goal near a thousand makes them small.
_GOAL = 1e3
# Dual infeasibilities within the tolerance, one a variable, and the gap left within 1e-6.
_LOOSE_PER_VARIABLE, _LOOSE = 1e-7, 1e-6
# Longest over shortest scaled time that still leaves the goal a few digits.
_MOST_SPREAD = 1e4
_MOST_HOPS = 200_000


def applies(problem: Problem) -> bool:
    """Whether the program is of a size, and its times of a spread, that HiGHS can handle."""
    hops = problem.n_tensors * len(slots(problem)) ** 2
    return hops <= _MOST_HOPS and _ceiling_s(problem) <= _MOST_SPREAD * _floor_s(problem)


def highs(problem: Problem, limits: Limits) -> Solution:
    """HiGHS alone.

    Raises
    ------
    ProblemError
        If the problem is not of the kind that `applies` names.
    InfeasibleError
        If there is no assignment, or none was found in time.
    """
    if not applies(problem):
        raise ProblemError(
            f"HiGHS takes at most {_MOST_HOPS} products of tensor, source and target, and times "
            f"within a factor of {_MOST_SPREAD:.0e}; use method 'auto'"
        )
    session = Session(problem, limits, "highs")
    if limits.hint is not None:
        session.offer(limits.hint)
    for option in range(problem.n_options):
        session.offer(scored(problem, (0,) * problem.n_ops, ((option,),), "highs"))
    if session.open:
        with session.interruptible():
            run_milp(session)
    return session.result()


def run_milp(session: Session) -> None:
    """Solve the program; the session gets what comes of it."""
    problem = session.problem
    objective = problem.objective
    seconds, size = _GOAL / _floor_s(problem), _GOAL / _floor_bytes(problem)
    unit = {Objective.PERIOD: seconds, Objective.LATENCY: seconds, Objective.MEMORY: size}
    rows = Rows(problem)
    highest = min(_ceiling_s(problem), 1.01 * problem.latency_cap_s)
    if objective is Objective.LATENCY:
        highest = min(highest, 1.01 * session.objective)
    times = Times(rows, seconds, seconds * highest)
    memory = add_memory(rows, size)
    goals: dict[Objective, int] = {}
    if objective is Objective.PERIOD or np.isfinite(problem.period_cap_s):
        goals[Objective.PERIOD] = times.period()
    if objective is Objective.LATENCY or np.isfinite(problem.latency_cap_s):
        goals[Objective.LATENCY] = times.latency()
    if objective not in goals:
        goals[objective] = _counted(rows, memory)
    found = rows.program.minimize(goals[objective], session.clock.left_s)
    if found.bound == np.inf:
        session.prove_infeasible()
        return
    if found.values is not None:
        session.offer(scored(problem, *rows.read(found.values), "highs"))
    bound = found.bound * (1 - 1e-8) - _LOOSE - _LOOSE_PER_VARIABLE * rows.program.size
    if objective in unit:
        session.prove(bound / unit[objective])
    else:
        session.prove(float(np.ceil(bound - 1e-3)))


def _counted(rows: Rows, memory: Sum) -> int:
    """A variable that is at least the copies, the devices or the memory."""
    objective, total = rows.problem.objective, Sum(memory)
    if objective is Objective.DEVICES:
        for slot, option in enumerate(rows.option):
            total.add(rows.used[slot], float(rows.problem.replicas[option]))
    elif objective is Objective.COPIES:
        for tensor in range(rows.problem.n_tensors):
            for a, b, moved in rows.ends(tensor):
                total.add(moved, float(a >= 0 and b >= 0))
    goal = rows.program.variable(np.inf)
    rows.program.covers(goal, total)
    return goal


def _floor_s(problem: Problem) -> float:
    """A time that the period or the latency is not much below, or 1."""
    quickest = np.where(problem.runs(), problem.time_s, np.inf).min(axis=1)
    quickest = quickest[np.isfinite(quickest)]
    if problem.objective is Objective.LATENCY:
        floor = float(quickest.sum())
    else:
        floor = float(max(quickest.max(initial=0.0), quickest.sum() / problem.max_stages))
    return floor or _ceiling_s(problem) or 1.0


def _floor_bytes(problem: Problem) -> float:
    """Bytes that all pools together need at least, or 1."""
    return float(problem.constant_bytes.sum() + problem.live_bytes.max()) or 1.0


def _ceiling_s(problem: Problem) -> float:
    """A time that no latency exceeds: every op at its slowest, every transfer at its dearest."""
    slowest = np.where(problem.runs(), problem.time_s, 0.0).max(axis=1).sum()
    stages = min(problem.max_stages, problem.n_ops)
    moves = 0.0
    for cost in (problem.send, problem.recv, problem.link):
        dearest = cost.base_s.max() + problem.amount * cost.per_unit_s.max()
        readers = [min(len(each), stages) + 1 for each in problem.consumers]
        moves += float((dearest * readers).sum())
    return float(slowest + stages * problem.host_s.max() + moves)
