"""What the stages so far occupy: the states of tables over cuts.

A state is what is used of each resource, up to exchanging equal options: of two clusters of four
cores each there are 25. The number of stages is part of it only where `max_stages` allows fewer
than the resources do, or where some options occupy nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from partitioner.problem import Ints, Problem
from partitioner.solvers.reduce import Symmetry, most_stages

__all__ = ["Key", "Occupancy"]

Key = tuple[tuple[int, ...], int]
"""Units of each resource in use, and the number of stages (0 where it is not counted)."""


class Occupancy:
    """The states of one problem.

    Parameters
    ----------
    problem : Problem
        For what options occupy and what there is.
    classes : Symmetry
        Its classes of equal options.

    Attributes
    ----------
    start : Key
        Nothing in use.
    classes : Symmetry
        As given.
    """

    def __init__(self, problem: Problem, classes: Symmetry) -> None:
        self.classes = classes
        self.start: Key = ((0,) * len(problem.capacity), 0)
        self._capacity = problem.capacity
        self._slots = most_stages(problem)
        fits = np.all(problem.uses <= problem.capacity, axis=1)
        # No stage takes fewer units than this.
        self._least = int(problem.uses[fits].sum(axis=1).min(initial=problem.capacity.sum()))
        unlimited = self._least > 0 and most_stages(problem, limited=False) <= problem.max_stages
        self._counted = not unlimited
        self._uses = problem.uses
        self._takes = problem.uses > 0
        self._own = np.asarray(self._takes.any(axis=1))
        self._after: dict[Key, tuple[tuple[int, Key], ...]] = {}

    def after(self, key: Key) -> tuple[tuple[int, Key], ...]:
        """States that one more stage leads to, each with the class (its first option) of that."""
        known = self._after.get(key)
        if known is None:
            known = self._after[key] = tuple(self._successors(key))
        return known

    def every(self) -> Iterator[Key]:
        """All states, each after those that lead to it."""
        return self._found({self.start})

    def few(self, most: int) -> list[Key] | None:
        """All states, None where there are more than `most`."""
        seen = {self.start}
        found = []
        for key in self._found(seen):
            if len(seen) > most:
                return None
            found.append(key)
        return found

    @staticmethod
    def rank(key: Key) -> tuple[int, int]:
        """Greater than that of every state that leads to it."""
        return key[1], sum(key[0])

    def done(self, key: Key) -> tuple[Ints, int]:
        """What stages occupy, shape (n_resources,), and how many they are at most."""
        used = np.array(key[0])
        return used, key[1] if self._counted else self._most(used)

    def left(self, key: Key) -> tuple[Ints, int]:
        """What further stages can occupy, shape (n_resources,), and how many they are at most."""
        left = self._capacity - np.array(key[0])
        return left, min(self._slots - key[1], self._most(left))

    def _most(self, resources: Ints) -> int:
        return min(self._slots, int(resources.sum()) // self._least) if self._least else self._slots

    def _found(self, seen: set[Key]) -> Iterator[Key]:
        """All states in order, those met so far in `seen`."""
        heap = [(*self.rank(self.start), self.start)]
        while heap:
            key = heappop(heap)[-1]
            for _, larger in self.after(key):
                if larger not in seen:
                    seen.add(larger)
                    heappush(heap, (*self.rank(larger), larger))
            yield key

    def _successors(self, key: Key) -> Iterator[tuple[int, Key]]:
        if self._counted and key[1] == self._slots:
            return
        used = np.array(key[0])
        count = key[1] + 1 if self._counted else 0
        total = used + self._uses
        fits = np.all(total <= self._capacity, axis=1)
        # Equal options that share nothing with what is used are one and the same.
        untouched = self._own & ~np.asarray(self._takes[:, used > 0].any(axis=1))
        for group in self.classes.classes:
            met: set[tuple[int, ...]] = set()
            fresh = True
            for option in group:
                if not fits[option] or (untouched[option] and not fresh):
                    continue
                fresh &= not untouched[option]
                larger = self.classes.canonical(total[option].tolist())
                if larger not in met:
                    met.add(larger)
                    yield group[0], (larger, count)
