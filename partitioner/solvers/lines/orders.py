"""Topological orders of the units whose prefixes make cheap cuts."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

import numpy as np

from partitioner.problem import Floats, Ints
from partitioner.solvers.reduce import Units

__all__ = ["depth_first", "narrow", "orders", "readers_of"]


def readers_of(units: Units) -> list[list[int]]:
    """Units that each unit feeds directly."""
    after: list[list[int]] = [[] for _ in range(len(units))]
    for unit, before in enumerate(units.before):
        for other in before:
            after[other].append(unit)
    return after


def orders(units: Units, amount: Floats, seed: int) -> Iterator[Ints]:
    """Orders without end, each shape (n_units,): the given one, a narrow one, then random ones.

    Parameters
    ----------
    amount : array, shape (n_tensors,)
        Size of each tensor.
    seed : int
        Seed of what is drawn.
    """
    after = readers_of(units)
    chance = random.Random(seed)
    yield np.arange(len(units))
    yield narrow(units, after, amount, None)
    while True:
        yield depth_first(units, after, chance)
        yield narrow(units, after, amount, chance)


def depth_first(units: Units, after: list[list[int]], chance: random.Random) -> Ints:
    """Follow a branch until something is missing, then the last one left."""
    missing = [len(before) for before in units.before]
    stack = [unit for unit, count in enumerate(missing) if count == 0]
    chance.shuffle(stack)
    order = []
    while stack:
        unit = stack.pop()
        order.append(unit)
        fresh = []
        for reader in after[unit]:
            missing[reader] -= 1
            if missing[reader] == 0:
                fresh.append(reader)
        chance.shuffle(fresh)
        stack += fresh
    return np.array(order)


def narrow(
    units: Units, after: list[list[int]], amount: Floats, chance: random.Random | None
) -> Ints:
    """Take what shrinks the tensors still waiting for a reader most, the latest on a tie.

    With `chance`, sizes are up to twice off, for another order each time.
    """
    made = np.zeros(len(units))
    entering: list[list[int]] = [[] for _ in range(len(units))]
    waiting, size = [], []
    for number, flow in enumerate(units.flows):
        factor = 1.0 if chance is None else chance.uniform(1.0, 2.0)
        waiting.append(len(flow.readers))
        size.append(float(amount[flow.tensor]) * factor)
        if flow.readers and flow.producer >= 0:
            made[flow.producer] += size[-1]
        for reader in flow.readers:
            entering[reader].append(number)
    missing = [len(before) for before in units.before]
    clock = 0

    def growth(unit: int) -> float:
        ended = sum(size[flow] for flow in entering[unit] if waiting[flow] == 1)
        return float(made[unit]) - ended

    ready = [(growth(unit), 0, unit) for unit, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    done = [False] * len(units)
    order = []
    while ready:
        _, _, unit = heapq.heappop(ready)
        if done[unit]:
            continue
        done[unit] = True
        order.append(unit)
        clock -= 1
        last = []
        for number in entering[unit]:
            waiting[number] -= 1
            if waiting[number] == 1:
                last.append(number)
        for reader in after[unit]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (growth(reader), clock, reader))
        # A flow with one reader left makes that reader cheaper; it is queued once more.
        for number in last:
            for reader in units.flows[number].readers:
                if missing[reader] == 0 and not done[reader]:
                    heapq.heappush(ready, (growth(reader), clock, reader))
    return np.array(order)
