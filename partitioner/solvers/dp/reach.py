"""What the load bound leaves of a table: downsets worth cutting at, and how full a stage must be.

For any multipliers (`bounds.Prices`) what is done must fit what the stages so far occupy, and the
rest what is left, both at the price of the period. Near the best period there is little slack, so
that few downsets fit any set of occupied resources.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from partitioner.problem import Bools, Floats, Ints, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.weights import weighed
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.reduce import Symmetry, most_stages

__all__ = ["Key", "Reach", "successors"]

Key = tuple[tuple[int, ...], int]
"""What stages occupy, up to exchanging equal options, and their number."""

# More sets of occupied resources than these are not tried one by one.
_MOST_STATES = 1000
# Downsets times states that are looked at one by one.
_MOST_ENDS = 10_000_000


class Reach:
    """Downsets against the load bound of a period.

    Parameters
    ----------
    problem : Problem
        The problem.
    members : array of bool, shape (n_ideals, n_units)
        The downsets.
    prices : tuple of Prices
        Multipliers.
    period_s : float
        Periods of interest are not above; inf if all are of interest.
    """

    def __init__(
        self, problem: Problem, members: Bools, prices: tuple[Prices, ...], period_s: float
    ) -> None:
        self._problem = problem
        self._slots = most_stages(problem)
        self._period_s = period_s
        self._prices = prices if np.isfinite(period_s) else ()
        self._members = members
        self._n = len(members)
        self._done: list[Floats] = []
        if self._prices:
            work = np.stack([price.work for price in self._prices], axis=1)
            self._done = list(weighed(members, work).T)
        self._rest = [
            float(price.work.sum()) - done
            for price, done in zip(self._prices, self._done, strict=True)
        ]

    def bands(self, classes: Symmetry, time_s: Floats) -> dict[Key, Bools] | None:
        """For each state the downsets that it can end at, each shape (n_ideals,).

        A state tells which options its stages can be on, and which those after it: a unit costs
        the cheapest of these, not of all.

        Parameters
        ----------
        time_s : array, shape (n_units, n_options)
            Time of each unit; inf where it cannot run.

        Returns
        -------
        dict or None
            None where there are too many, or nothing is known of the period.
        """
        problem = self._problem
        keys = list(islice(_states(problem, classes, self._slots), _MOST_STATES + 1))
        many = len(keys) > _MOST_STATES or len(keys) * self._n > _MOST_ENDS
        if not self._prices or many:
            return None
        found = {key: np.ones(self._n, dtype=np.bool_) for key in keys}
        members = self._members
        used = [np.array(key[0]) for key in keys]
        for price in self._prices:
            rate = (problem.uses @ price.resource + price.slot) / problem.replicas
            # What costs as much is more than there is room for.
            huge = 4 * price.total * self._period_s + float(price.work.sum())
            with np.errstate(invalid="ignore"):
                cost = np.nan_to_num(time_s * rate, nan=huge, posinf=huge).clip(max=huge)
            left = [problem.capacity - each for each in used]
            first, last = (
                np.stack([self._cheapest(cost, room, huge) for room in rooms], axis=1)
                for rooms in (used, left)
            )
            for key, each, before, after in zip(
                keys, used, weighed(members, first).T, weighed(~members, last).T, strict=True
            ):
                room = problem.capacity - each
                found[key] &= before <= self._room(price, each, key[1])
                found[key] &= after <= self._room(price, room, self._slots - key[1])
        return found

    def _cheapest(self, cost: Floats, resources: Ints, huge: float) -> Floats:
        """Priced work of each unit on options that fit some resources, shape (n_units,)."""
        fits = np.all(self._problem.uses <= resources, axis=1)
        return np.asarray(cost[:, fits].min(axis=1, initial=huge))

    def fits_rest(self, key: Key) -> Bools:
        """Downsets whose rest may still fit what a state leaves, shape (n_ideals,)."""
        useful = np.ones(self._n, dtype=np.bool_)
        left = self._problem.capacity - np.array(key[0])
        for price, rest in zip(self._prices, self._rest, strict=True):
            useful &= rest <= self._room(price, left, self._slots - key[1])
        return useful

    def ever(self, classes: Symmetry) -> Bools:
        """Downsets that some state can end at, shape (n_ideals,); the trivial ones always."""
        keep = np.zeros(self._n, dtype=np.bool_)
        for index, key in enumerate(_states(self._problem, classes, self._slots)):
            if index == _MOST_STATES:
                return np.ones(self._n, dtype=np.bool_)
            fits = self.fits_rest(key)
            for price, done in zip(self._prices, self._done, strict=True):
                fits &= done <= self._room(price, np.array(key[0]), key[1])
            keep |= fits
        keep[[0, -1]] = True
        return keep

    def least_work(self, option: int) -> float:
        """Work by the last multipliers that a stage on an option must hold at least."""
        if not self._prices:
            return 0.0
        price = self._prices[-1]
        rate = float(self._problem.uses[option] @ price.resource) + price.slot
        work = float(price.work.sum())
        return work * (1 - RELATIVE) - (price.total - rate) * self._period_s * (1 + RELATIVE)

    def _room(self, price: Prices, resources: Ints, stages: int) -> float:
        room = (float(resources @ price.resource) + price.slot * stages) * self._period_s
        return room * (1 + RELATIVE) + 1e-12 * float(price.work.sum())


def successors(
    problem: Problem, classes: Symmetry, key: Key, slots: int
) -> Iterator[tuple[int, Key]]:
    """The states that one more stage leads to, each with the class (its first option) of that."""
    used = np.array(key[0])
    if key[1] == slots:
        return
    for group in classes.classes:
        seen = set()
        for option in group:
            total = used + problem.uses[option]
            if np.all(total <= problem.capacity):
                larger = (classes.canonical(total.tolist()), key[1] + 1)
                if larger not in seen:
                    seen.add(larger)
                    yield group[0], larger


def _states(problem: Problem, classes: Symmetry, slots: int) -> Iterator[Key]:
    level: dict[Key, None] = {((0,) * len(problem.capacity), 0): None}
    while level:
        yield from level
        level = {
            larger: None for key in level for _, larger in successors(problem, classes, key, slots)
        }
