"""Ops that take no time need no stage of their own choice: they go along with a neighbour.

Let v take no time wherever its neighbour can run, and add no memory that matters. Beside the maker
of its only input, a v that nobody reads costs nothing; beside its only reader, a v that reads
nothing costs nothing. In a chain, v reads x from p, alone, and makes y. If y is not larger than x,
v may as well be beside p: p's stage sends the smaller tensor instead of the larger, v's stage
neither receives nor sends, and nobody notices who sent, where a transfer costs the same wherever
its other end is. If x is not larger than y, v may as well be beside y's reader. Here y may have
several readers only where one send serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partitioner.problem import Bools, Objective, Problem
from partitioner.solvers.bounds import hangs_on_both_ends
from partitioner.solvers.reduce import Flow, Units, tight_pools

__all__ = ["idle"]


def idle(problem: Problem, units: Units) -> Iterator[tuple[int, int]]:
    """Pairs of an idle unit and the neighbour that it may share a stage with; no unit twice."""
    entering, leaving = units.ends()
    alike = not hangs_on_both_ends(problem)
    light = _light(problem, units)
    taken: set[int] = set()
    for v in np.flatnonzero(units.time_s.min(axis=1) == 0):
        for other in _hosts(problem, entering[v], leaving[v], alike):
            if _idle_beside(units, int(v), other, light) and not taken & {int(v), other}:
                taken |= {int(v), other}
                yield int(v), other
                break


def _hosts(
    problem: Problem, entering: list[Flow], leaving: list[Flow], alike: bool
) -> Iterator[int]:
    """Neighbours that an op with these tensors may go along with if it is idle there."""
    if len(entering) > 1 or len(leaving) > 1 or any(flow.to_caller for flow in leaving):
        return
    x, y = (flows[0] if flows else None for flows in (entering, leaving))
    if x is None and y is not None and len(y.readers) == 1:
        yield y.readers[0]
    if x is None or x.producer < 0:
        return
    if y is None:
        yield x.producer
    elif alike and len(x.readers) == 1 and not x.to_caller:
        if _no_larger(problem, y, x) and (problem.send_once or len(y.readers) == 1):
            yield x.producer
        if _no_larger(problem, x, y) and len(y.readers) == 1:
            yield y.readers[0]


def _no_larger(problem: Problem, a: Flow, b: Flow) -> bool:
    amount, size = problem.amount, problem.tensor_bytes
    return bool(amount[a.tensor] <= amount[b.tensor] and size[a.tensor] <= size[b.tensor])


def _idle_beside(units: Units, v: int, other: int, light: Bools | None) -> bool:
    """Whether v adds neither time nor memory that matters wherever the other can run."""
    if not (units.time_s[v, units.runs[other]] == 0).all():
        return False
    return light is None or bool(light[v] and units.live_bytes[v] <= units.live_bytes[other])


def _light(problem: Problem, units: Units) -> Bools | None:
    """Units without constants, shape (n_units,); None where memory does not matter."""
    counted = Objective.MEMORY in (problem.objective, problem.second)
    if not counted and not tight_pools(problem):
        return None
    light = units.constant_bytes == 0
    for _, readers in units.shared:
        light[list(readers)] = False
    return np.asarray(light)
