"""Nodes of one colour share a device. On a CPU that is less than sharing a stage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partitioner.problem import Objective, Problem

__all__ = ["remarks_on_colours"]


def remarks_on_colours(problem: Problem) -> Iterator[str]:
    """Where a published latency instance allows more than its problem does.

    On the CPU every node is a stage of its own, but nodes that are colocated are one stage, which
    starts when the inputs of all are there and hands over when all are done. Nothing is lost by
    that when everything of the group goes through one node and the others take no time there, as
    where a node is split into its weights, itself and its outputs. Other groups are named.
    """
    if problem.objective is not Objective.LATENCY or not problem.contiguous:
        return
    cpus = np.flatnonzero(~problem.uses.any(axis=1))
    for group in problem.colocate:
        if len(cpus) and not _one_matters(problem, group, int(cpus[0])):
            names = ", ".join(problem.op_names[op] for op in group)
            yield (
                f"nodes {names} of one colour run as one stage if they are put on the CPU; the "
                "published model lets them run there at different times, so a better latency than "
                "the proven bound may exist with them on the CPU"
            )


def _one_matters(problem: Problem, group: tuple[int, ...], cpu: int) -> bool:
    """Whether running the group as a whole delays nothing: see `remarks_on_colours`."""
    members = set(group)
    after: dict[int, set[int]] = {op: {op} for op in group}
    entered, left = set(), set()
    for u, v in problem.edges:
        if u in members and v in members:
            after[u].add(v)
        elif v in members:
            entered.add(v)
        elif u in members:
            left.add(u)
    for op in sorted(group, reverse=True):  # ops stand in a topological order
        for reader in tuple(after[op]):
            after[op] |= after[reader]
    slow = {op for op in group if problem.time_s[op, cpu] > 0}
    return any(
        slow <= {op} and left <= after[op] and all(op in after[first] for first in entered)
        for op in group
    )
