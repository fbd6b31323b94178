"""Integers for CP-SAT: how many steps a quantity takes, always rounded down.

Costs are added up as whole steps rounded down, and limits are widened by what `evaluation`
tolerates, so that a model holds every assignment that is feasible by `evaluation`; its bound is a
bound of the problem. What it finds beyond that is refused when it is scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partitioner.problem import Floats, Ints, Objective, Problem
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import Units, largest_stage_bytes, most_stages

__all__ = [
    "Scale",
    "ceiling",
    "counted",
    "latency_limit",
    "memory_scale",
    "period_limit",
    "time_scale",
]

# What `evaluation` tolerates, and the rounding of sums of floats in another order.
_TOLERANCE = 1.0 + 1e-9 + 1e-12
_SAFE = 1.0 - 1e-12
# Sizes that are whole multiples of one another's divisor stay exact up to here.
_LARGEST = 1 << 44
_LEAST = 1e-200


@dataclass(frozen=True, slots=True)
class Scale:
    """Steps of one quantity.

    Attributes
    ----------
    unit : float
        What one step stands for.
    most : int
        Steps above which nothing is of interest; keeps integers small.
    exact : bool
        Whether every value is a whole number of steps.
    """

    unit: float
    most: int
    exact: bool = False

    def steps(self, value: float, share: int = 1) -> int:
        """The value over `share`, rounded down and cut just above `most`."""
        return int(min(value / share / self.unit, self.most + 1))

    def table(self, values: Floats) -> Ints:
        """`steps` of an array."""
        return np.minimum(values / self.unit, self.most + 1).astype(np.int64)

    def value(self, steps: float) -> float:
        """What so many steps stand for, at most."""
        return steps * self.unit * (1.0 if self.exact else _SAFE)


def time_scale(limit_s: float, bits: int) -> Scale:
    """Steps of times of which none above the limit, in seconds, is of interest."""
    limit_s = max(limit_s * _TOLERANCE, _LEAST)
    return Scale(limit_s / (1 << bits), 1 << bits)


def memory_scale(problem: Problem, limit_bytes: float, bits: int) -> Scale:
    """Steps of sizes: a common divisor where there is one, so that none is rounded."""
    limit = limit_bytes * _TOLERANCE
    sizes = np.concatenate([problem.constant_bytes, problem.live_bytes, problem.tensor_bytes])
    if limit < _LARGEST and sizes.max(initial=0.0) < _LARGEST and (sizes == np.floor(sizes)).all():
        divisor = int(np.gcd.reduce(sizes.astype(np.int64))) or 1
        return Scale(float(divisor), int(limit // divisor), exact=True)
    return Scale(max(limit, _LEAST) / (1 << bits), 1 << bits)


def counted(limit: float) -> Scale:
    """Steps of whole numbers."""
    return Scale(1.0, int(limit * (1 + RELATIVE)), exact=True)


def ceiling(problem: Problem, units: Units) -> float:
    """An objective that every assignment meets, for want of a better one."""
    stages = min(most_stages(problem), len(units))
    if problem.objective is Objective.COPIES:
        return float(sum(min(stages - 1, len(flow.readers)) for flow in units.flows))
    if problem.objective is Objective.DEVICES:
        return float(stages * problem.replicas.max())
    if problem.objective is Objective.MEMORY:
        return float(stages * problem.replicas.max() * largest_stage_bytes(problem))
    dearest = [float(row[np.isfinite(row)].max()) for row in units.time_s]
    moves = 0.0
    for cost in (problem.send, problem.recv, problem.link):
        each = cost.base_s.max() + problem.amount * cost.per_unit_s.max()
        moves += float(each.sum()) * (stages + 1)
    return sum(dearest) + stages * float(problem.host_s.max()) + moves


def period_limit(problem: Problem, ceiling_s: float) -> float:
    """Period above which nothing is of interest, seconds; inf for none."""
    best = ceiling_s if problem.objective is Objective.PERIOD else np.inf
    return float(min(problem.period_cap_s, best * (1 + RELATIVE)))


def latency_limit(problem: Problem, ceiling_s: float) -> float:
    """Latency above which nothing is of interest, seconds; inf for none."""
    best = ceiling_s if problem.objective is Objective.LATENCY else np.inf
    return float(min(problem.latency_cap_s, best * (1 + RELATIVE)))
