"""Memory in the mixed-integer program: each slot's demand, added up by pool."""

from __future__ import annotations

import numpy as np

from partitioner.problem import Objective
from partitioner.solvers.milp.program import Sum
from partitioner.solvers.milp.rows import Rows

__all__ = ["add_memory"]

# `evaluation` forgives as much.
_ROUNDING = 1e-9
# Budgets are this many units: HiGHS's tolerance, 1e-6, is then a small part of each.
_UNITS = 1e4


def add_memory(rows: Rows, per_byte: float) -> Sum:
    """Keep every pool within its budget.

    Returns
    -------
    Sum
        Demand of all pools together, times `per_byte`, if that is the objective.
    """
    problem = rows.problem
    limited = np.isfinite(problem.pool_bytes)
    wanted = problem.objective is Objective.MEMORY
    total = Sum()
    demands = [Sum() for _ in limited]
    for slot, option in enumerate(rows.option):
        pool = problem.pool_of[option]
        if wanted or limited[pool]:
            demands[pool].add_all(_bytes(rows, slot, per_byte), float(problem.replicas[option]))
    for demand, budget in zip(demands, problem.pool_bytes, strict=True):
        if wanted:
            total.add_all(demand)
        scale = _UNITS / (budget * per_byte) if budget > 0 else 1.0
        if np.isfinite(budget):
            limit = _UNITS * (1 + _ROUNDING) if budget > 0 else 0.0
            rows.program.at_most({key: scale * each for key, each in demand.items()}, limit)
    return total


def _bytes(rows: Rows, slot: int, per_byte: float) -> Sum:
    """One replica's bytes: constants once, the largest working set, what enters in each queue."""
    program, problem = rows.program, rows.problem
    total = Sum()
    for size, readers in zip(problem.constant_bytes, problem.constant_ops, strict=True):
        if size and readers:
            held = program.variable(1)
            total.add(held, per_byte * float(size))
            for reader in set(readers):
                rows.covers_place(held, reader, slot)
    if problem.live_bytes.any():
        live = program.variable(np.inf)
        total.add(live, 1.0)
        for op, size in enumerate(problem.live_bytes):
            rows.covers_place(live, op, slot, per_byte * float(size))
    for tensor in range(problem.n_tensors if problem.queue_slots else 0):
        each = per_byte * problem.queue_slots * float(problem.tensor_bytes[tensor])
        for _, target, moved in rows.ends(tensor):
            total.add(moved, each if target == slot else 0.0)
    return total
