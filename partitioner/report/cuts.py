"""Every cut of a model into two stages along its module order, scored."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from partitioner.errors import ProblemError
from partitioner.evaluation import evaluate
from partitioner.graph import OpGraph
from partitioner.problem import Bools, Floats, Ints, Problem

__all__ = ["CutProfile", "cut_profile"]


@dataclass(frozen=True, slots=True, eq=False)
class CutProfile:
    """What each cut position costs; position k puts the first k ops into the first stage.

    Attributes
    ----------
    devices : tuple of (str, str)
        Options that the first and the second stage run on.
    positions : array of int, shape (n_ops - 1,)
        1 to n_ops - 1.
    cut_bytes : array, shape (n_ops - 1,)
        Bytes of the tensors that cross, each counted once.
    busy_s : array, shape (2, n_ops - 1)
        Busy time an item of the first and of the second stage, with copies.
    period_s : array, shape (n_ops - 1,)
        Steady-state time between completions.
    feasible : array of bool, shape (n_ops - 1,)
        Whether the cut breaks no rule of the problem.
    """

    devices: tuple[str, str]
    positions: Ints
    cut_bytes: Floats
    busy_s: Floats
    period_s: Floats
    feasible: Bools

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def best(self) -> int | None:
        """The feasible position with the least period, the first of equals; None without one."""
        if not self.feasible.any():
            return None
        return int(self.positions[np.where(self.feasible, self.period_s, np.inf).argmin()])


def cut_profile(graph: OpGraph, problem: Problem, devices: tuple[str, str]) -> CutProfile:
    """Score every cut position in module order.

    A cut along the module order is only one kind of cut: where a model branches, a stage may also
    hold one branch and not the other, which the solvers consider too.

    Parameters
    ----------
    graph : OpGraph
        The model.
    problem : Problem
        Built from it.
    devices : tuple of (str, str)
        Names out of ``problem.option_names`` for the first and the second stage.

    Raises
    ------
    ProblemError
        If the problem is not the graph's, has a single op, or has no such option.
    """
    if problem.op_names != tuple(op.name for op in graph.ops):
        raise ProblemError(
            f"the problem's ops are not those of graph {graph.name!r}; build it from this graph"
        )
    n = problem.n_ops
    if n < 2:
        raise ProblemError(f"graph {graph.name!r} has {n} op; a cut needs at least two")
    for name in devices:
        if name not in problem.option_names:
            raise ProblemError(
                f"the problem has no option {name!r}; it has {', '.join(problem.option_names)}"
            )
    placements = [(problem.option_names.index(name),) for name in devices]
    positions = range(1, n)
    found = [
        evaluate(problem, [int(op >= position) for op in range(n)], placements)
        for position in positions
    ]
    return CutProfile(
        devices=devices,
        positions=np.array(positions, dtype=np.int64),
        cut_bytes=np.array([graph.cut_bytes(position) for position in positions], dtype=float),
        busy_s=np.array([[one.stage_period_s[stage] for one in found] for stage in (0, 1)]),
        period_s=np.array([one.period_s for one in found]),
        feasible=np.array([one.feasible for one in found]),
    )
