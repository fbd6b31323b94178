"""Parts of the graph that run between two moments: after one op and before another.

Where branches meet again, all ops between the fork and the join run after the one and before the
other, and those on one stage one by one. So the time between is at least what any stage has to do
there. Joined end to end these bounds are far above the load of the whole graph or its longest path.
The fork of a join is its immediate dominator: K. D. Cooper, T. J. Harvey, K. Kennedy, "A simple,
fast dominance algorithm" (2001); without cycles one pass in order finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.problem import Problem

__all__ = ["Segment", "segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops that all run after `first` and before `last`.

    Attributes
    ----------
    first : int
        An op; -1 for the beginning.
    last : int
        An op; the number of ops for the end.
    between : tuple of int
        The ops.
    """

    first: int
    last: int
    between: tuple[int, ...]


def segments(problem: Problem) -> list[Segment]:
    """A segment for each op, and for the end, that comes after several others."""
    n = problem.n_ops
    before: list[list[int]] = [[] for _ in range(n + 1)]
    for u, v in problem.edges:
        before[v].append(u)
    feeding = {u for u, _ in problem.edges}
    before[n] = [op for op in range(n) if op not in feeding]
    ancestors: list[int] = []
    dominator: list[int] = []
    found = []
    for op in range(n + 1):
        behind = 0
        for u in before[op]:
            behind |= ancestors[u] | 1 << u
        ancestors.append(behind)
        fork = before[op][0] if before[op] else -1
        for other in before[op][1:]:
            while fork != other:
                if fork > other:
                    fork = dominator[fork]
                else:
                    other = dominator[other]
        dominator.append(fork)
        if len(before[op]) > 1:
            # What is behind the join and not behind its fork lies between the two.
            rest = behind & ~((ancestors[fork] | 1 << fork) if fork >= 0 else 0)
            found.append(Segment(fork, op, _members(rest)))
    return found


def _members(bits: int) -> tuple[int, ...]:
    return tuple(op for op in range(bits.bit_length()) if bits >> op & 1)
