"""Coarser free problems: ends of dear tensors kept together, for searches to take larger steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partitioner.problem import Floats, Problem
from partitioner.solvers.reduce import Units

__all__ = ["coarsened"]


def coarsened(problem: Problem, units: Units, scale_s: float, dear: float, most: float) -> Problem:
    """The problem with units joined along tensors that are dear to move.

    What is feasible in it is feasible in the problem, at the same cost; the best may be lost.

    Parameters
    ----------
    scale_s : float
        Period that costs are compared with, seconds.
    dear : float
        A tensor is dear when a move costs, on average, this part of the period.
    most : float
        Units grow to this part of the period.

    Returns
    -------
    Problem
        With more colocated ops.
    """
    leader = list(range(len(units)))
    time_s: Floats = np.array(units.time_s)

    def find(unit: int) -> int:
        while leader[unit] != unit:
            leader[unit] = leader[leader[unit]]
            unit = leader[unit]
        return unit

    base, rate = _average(problem)
    cost = base + rate * problem.amount
    flows = [f for f in units.flows if f.producer >= 0 and cost[f.tensor] >= dear * scale_s]
    for flow in sorted(flows, key=lambda f: -cost[f.tensor]):
        for reader in flow.readers:
            a, b = find(flow.producer), find(reader)
            joined = time_s[a] + time_s[b]
            if a != b and joined.min() <= most * scale_s:
                leader[b] = a
                time_s[a] = joined
    groups: dict[int, list[int]] = {}
    for unit, ops in enumerate(units.members):
        groups.setdefault(find(unit), []).extend(ops)
    return replace(problem, colocate=tuple(tuple(ops) for ops in groups.values() if len(ops) > 1))


def _average(problem: Problem) -> tuple[float, float]:
    """Seconds of a move between two options, averaged: fixed, and by the amount."""
    m = problem.n_options
    apart = ~np.eye(m, dtype=bool) if m > 1 else np.ones((m, m), dtype=bool)
    costs = (problem.send, problem.recv, problem.link)
    base = sum(float(cost.base_s[:m, :m][apart].mean()) for cost in costs)
    rate = sum(float(cost.per_unit_s[:m, :m][apart].mean()) for cost in costs)
    return base, rate
