"""Reasons against any solution, seen without search: demand, limit, shortfall, a way out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partitioner.problem import Problem
from partitioner.solvers.reduce import Units, most_stages

__all__ = ["certain_causes", "explain_infeasible"]


def certain_causes(problem: Problem, units: Units) -> list[str]:
    """Reasons that alone make the problem infeasible; empty when none is found at a glance."""
    return [
        *_nowhere_to_run(problem, units),
        *_no_resources(problem),
        *_single_too_large(problem, units),
        *_constants_too_large(problem),
    ]


def explain_infeasible(problem: Problem, units: Units) -> str:
    """A message for a problem proven infeasible by search."""
    causes = certain_causes(problem, units)
    if causes:
        return "no assignment is possible: " + "; ".join(causes)
    budgets = ", ".join(
        f"pool {pool}: {budget:.0f} bytes" for pool, budget in enumerate(problem.pool_bytes)
    )
    total = problem.constant_bytes.sum() + problem.live_bytes.max()
    return (
        "no assignment is possible: every op could run by itself, but pins, shared stages, memory "
        f"({total:.0f} bytes for the uncut model; {budgets}), resources "
        f"(capacity {problem.capacity.tolist()}) and at most {most_stages(problem)} stages cannot "
        "be met together; allow more stages or devices, raise a memory budget, or drop a pin or "
        "colocation"
    )


def _nowhere_to_run(problem: Problem, units: Units) -> Iterator[str]:
    runs = problem.runs()
    for unit in np.flatnonzero(~units.runs.any(axis=1)):
        ops = units.members[unit]
        alone = [op for op in ops if not runs[op].any()]
        for op in alone:
            able = np.isfinite(problem.time_s[op])
            names = [problem.option_names[d] for d in np.flatnonzero(able)]
            pinned = (
                f"it could run on {', '.join(names)}, which its pin excludes; change the pin"
                if names
                else "no option supports it; add a device that does or replace the op"
            )
            yield f"op {problem.op_names[op]!r} needs 1 option to run on and has 0: {pinned}"
        if not alone:
            listed = ", ".join(repr(problem.op_names[op]) for op in ops[:8])
            yield (
                f"ops {listed} must share a stage (colocated, or on a cycle through colocated "
                f"ops), and of {problem.n_options} options none runs all {len(ops)}; split the "
                "colocation group or change a pin"
            )


def _no_resources(problem: Problem) -> Iterator[str]:
    short = problem.uses - problem.capacity
    if (short > 0).any(axis=1).all():
        option = int(np.argmin(np.maximum(short, 0).sum(axis=1)))
        resource = int(np.argmax(short[option]))
        yield (
            f"option {problem.option_names[option]!r} uses {problem.uses[option, resource]} of "
            f"resource {resource}, of which there are {problem.capacity[resource]} "
            f"(short by {short[option, resource]}), and no other option fits; add cores or give "
            "an option with fewer"
        )


def _single_too_large(problem: Problem, units: Units) -> Iterator[str]:
    shared = np.zeros(len(units))
    for size, readers in units.shared:
        shared[list(readers)] += size
    demand = units.constant_bytes + shared + units.live_bytes
    budget = problem.pool_bytes[problem.pool_of] / problem.replicas
    limits = np.where(units.runs, budget, -np.inf).max(axis=1)
    short = units.runs.any(axis=1) & (demand > limits * (1 + 1e-9))
    for unit in np.flatnonzero(short).tolist():
        limit = float(limits[unit])
        names = ", ".join(repr(problem.op_names[op]) for op in units.members[unit][:8])
        yield (
            f"{names} alone needs {demand[unit]:.0f} bytes (constants and activations) and "
            f"the largest budget where it can run is {limit:.0f}, short by "
            f"{demand[unit] - limit:.0f}; raise that budget"
        )


def _constants_too_large(problem: Problem) -> Iterator[str]:
    demand = float(problem.constant_bytes.sum())
    pools = sorted({int(pool) for pool in problem.pool_of})
    limit = float(problem.pool_bytes[pools].sum())
    if demand > limit * (1 + 1e-9):
        yield (
            f"the constants need {demand:.0f} bytes and all memory budgets together are "
            f"{limit:.0f}, short by {demand - limit:.0f}; raise a budget or add a device with "
            "memory of its own"
        )
