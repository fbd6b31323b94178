"""Pipelines in order of value, out of dynamic programming's filled table.

The table knows the best beginning for every end, which is an exact estimate for a best-first
search from the last stage to the first: pipelines come out in order, each at the cost of its own
stages (Eppstein, Finding the k Shortest Paths, SIAM J. Comput. 1998, section 2, for the setting;
the search is A*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np

from partitioner.problem import Floats, Ints, Problem
from partitioner.solvers.dp.table import Search, Step, TooLargeError
from partitioner.solvers.limits import Clock
from partitioner.solvers.occupancy import Key

__all__ = ["choices", "pipelines"]

# Stages held ready, 20 bytes each.
_MOST_HELD = 20_000_000

Steps: TypeAlias = "tuple[Step, Steps] | None"


@dataclass(frozen=True, slots=True, eq=False)
class _Fan:
    """Stages that may come before a pipeline's known end, by the value they lead to.

    Attributes
    ----------
    total : array, shape (n,)
        Value of the best pipeline with each, ascending.
    start : array of int, shape (n,)
        Downset done before each.
    end : array, shape (n,)
        Value of the end with each.
    key : Key
        State before them.
    steps : linked Steps
        The end, them included.
    """

    total: Floats
    start: Ints
    end: Floats
    key: Key
    steps: Steps


def pipelines(
    search: Search, clock: Clock, limit: Callable[[], float]
) -> Iterator[tuple[float, list[Step]]]:
    """Every pipeline with its value, ascending, until `limit` says that none above is wanted.

    Pipelines that differ in the numbering of independent stages come more than once.

    Raises
    ------
    TooLargeError
        If time or memory run out.
    """
    heap: list[tuple[float, int, int, int, _Fan, int]] = []
    pushed = held = 0
    whole = len(search.members) - 1

    def push(fan: _Fan, at: int) -> None:
        nonlocal pushed
        if at < len(fan.total):
            pushed += 1
            # Among equals, the one with least to come, the latest first.
            rank = search.occupancy.rank(fan.key)
            heappush(heap, (float(fan.total[at]), *rank, -pushed, fan, at))

    for key, state in search.states.items():
        if key != search.occupancy.start and np.isfinite(state.value[-1]):
            for fan in _fans(search, key, whole, 0.0, None, limit()):
                push(fan, 0)
    while heap:
        total, _, _, _, fan, at = heappop(heap)
        if total > limit():
            return
        if clock.left_s <= 0 or held > _MOST_HELD:
            raise TooLargeError("ranking plans: time or memory ran out")
        push(fan, at + 1)
        if fan.key == search.occupancy.start:
            yield total, _listed(fan.steps)
            continue
        for before in _fans(
            search, fan.key, int(fan.start[at]), float(fan.end[at]), fan.steps, limit()
        ):
            held += len(before.total)
            push(before, 0)


def _fans(
    search: Search, key: Key, ideal: int, end: float, steps: Steps, limit: float
) -> Iterator[_Fan]:
    """What may complete the downset `ideal` in state `key`."""
    for before, option in search.states[key].via:
        spans = search.spans[before, option, key]
        part = slice(spans.first[ideal], spans.first[ideal + 1])
        start = spans.start[part]
        reached = search.states[before].value[start]
        joined = search.joined(np.full(len(start), end), spans.cost[part])
        total = search.joined(reached, joined)
        kept = np.flatnonzero(np.isfinite(total) & (total <= limit))
        kept = kept[np.argsort(total[kept], kind="stable")]
        if len(kept):
            step = Step(key, ideal, option)
            yield _Fan(total[kept], start[kept], joined[kept], before, (step, steps))


def _listed(steps: Steps) -> list[Step]:
    found = []
    while steps is not None:
        found.append(steps[0])
        steps = steps[1]
    return found


def choices(problem: Problem, search: Search, trail: list[Step]) -> Iterator[tuple[int, ...]]:
    """Every way to place a pipeline's stages on options of their classes.

    Options of a class that are not used yet are the same, so that only the first is tried.
    """
    groups = {group[0]: group for group in search.occupancy.classes.classes}

    def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == len(trail):
            yield chosen
            return
        for option in groups[trail[len(chosen)].option]:
            used = problem.uses[[*chosen, option]].sum(axis=0)
            if np.all(used <= problem.capacity):
                yield from extend((*chosen, option))
            if option not in chosen:
                return

    return extend(())
