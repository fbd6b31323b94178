"""A solver's answer as data for a file."""

from __future__ import annotations

import math
from typing import Any

from partitioner.problem import Problem, Solution, Status

__all__ = ["no_solution_file", "solution_file"]


def solution_file(problem: Problem, solution: Solution) -> dict[str, Any]:
    """What was found and what is proven.

    Returns
    -------
    dict
        ``status``, ``objective``, ``bound``, ``gap``, ``wall_s``, ``method``; ``assignment``: the
        option of each op by name; ``stage_order``: the option of each stage, in an order along
        the edges (contiguous); ``stages``: the ops of each, in the same order. A problem with a
        second objective adds ``second`` and ``second_bound``.
    """
    stats = solution.stats
    placed = [
        " + ".join(problem.option_names[option] for option in options)
        for options in solution.placements
    ]
    stages: list[list[str]] = [[] for _ in placed]
    for name, stage in zip(problem.op_names, solution.stage_of, strict=True):
        stages[stage].append(name)
    second = {} if stats.second is None else {"second": _finite(stats.second)}
    if stats.second_bound is not None:
        second["second_bound"] = _finite(stats.second_bound)
    return {
        "status": stats.status.value,
        "objective": _finite(stats.objective),
        "bound": _finite(stats.bound),
        "gap": _finite(stats.gap),
        **second,
        "wall_s": stats.wall_s,
        "method": stats.method,
        "assignment": {
            name: placed[stage]
            for name, stage in zip(problem.op_names, solution.stage_of, strict=True)
        },
        "stage_order": placed,
        "stages": stages,
    }


def no_solution_file(status: Status, wall_s: float, method: str) -> dict[str, Any]:
    """The same without an assignment: infeasible, or none found in time."""
    return {
        "status": status.value,
        "objective": None,
        "bound": None,
        "gap": None,
        "wall_s": wall_s,
        "method": method,
        "assignment": {},
        "stage_order": [],
        "stages": [],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
