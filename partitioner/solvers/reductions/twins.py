"""Identical branches: chains of units that can change places without changing anything.

Two chains are twins when their heads read the same tensors, unit by unit they cost the same and
hand the same amounts on, and their ends feed the same readers. Of the assignments that differ by
such exchanges one has the heads' stages in order; asking for that is valid for every objective.
"""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.problem import Problem
from partitioner.solvers.reduce import Flow, Units

__all__ = ["twins"]


def twins(problem: Problem, units: Units) -> Iterator[tuple[int, int]]:
    """Pairs of heads (a, b) such that a's stage may be asked not to come after b's."""
    entering, leaving = units.ends()
    shared = {unit for _, readers in units.shared for unit in readers}
    last: dict[object, int] = {}
    for head in range(len(units)):
        inputs = tuple(sorted(flow.tensor for flow in entering[head]))
        chain = tuple(_links(problem, units, head, entering, leaving))
        if shared.intersection(unit for unit, _ in chain):
            continue
        key = (inputs, tuple(signature for _, signature in chain))
        if key in last:
            yield last[key], head
        last[key] = head


def _links(
    problem: Problem,
    units: Units,
    head: int,
    entering: list[list[Flow]],
    leaving: list[list[Flow]],
) -> Iterator[tuple[int, object]]:
    """The units of the chain that begins with `head`, each with all that must be equal."""
    unit = head
    while True:
        own = (
            units.time_s[unit].tobytes(),
            float(units.live_bytes[unit]),
            float(units.constant_bytes[unit]),
        )
        out = leaving[unit]
        following = out[0].readers if len(out) == 1 and not out[0].to_caller else ()
        goes_on = len(following) == 1 and len(entering[following[0]]) == 1
        ends = tuple(
            sorted(
                (
                    float(problem.amount[flow.tensor]),
                    float(problem.tensor_bytes[flow.tensor]),
                    flow.to_caller,
                    () if goes_on else flow.readers,
                )
                for flow in out
            )
        )
        yield unit, (own, ends)
        if not goes_on:
            return
        unit = following[0]
