"""What the load bound leaves of a table: downsets worth cutting at, and how full a stage must be.

For any multipliers (`bounds.Prices`) what is done must fit what the stages so far occupy, and the
rest what is left, both at the price of the period. Near the best period there is little slack, so
that few downsets fit any set of occupied resources.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.problem import Bools, Floats, Ints, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.dp.weights import weighed
from partitioner.solvers.limits import RELATIVE
from partitioner.solvers.occupancy import Key, Occupancy
from partitioner.solvers.reduce import symmetry

__all__ = ["Reach"]

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
    crossing : sequence of (array, array)
        For each of the prices what transfers cost the stages before, and after, each downset.

    Attributes
    ----------
    occupancy : Occupancy
        The states.
    """

    def __init__(
        self,
        problem: Problem,
        members: Bools,
        prices: tuple[Prices, ...],
        period_s: float,
        crossing: Sequence[tuple[Floats, Floats]] = (),
    ) -> None:
        self._problem = problem
        self.occupancy = Occupancy(problem, symmetry(problem))
        self._period_s = period_s
        self._prices = prices if np.isfinite(period_s) else ()
        self._members = members
        self._n = len(members)
        none = np.zeros(self._n)
        self._crossing = list(crossing or [(none, none)] * len(prices)) if self._prices else []
        self._done: list[Floats] = []
        self._rest: list[Floats] = []
        if self._prices:
            work = np.stack([price.work for price in self._prices], axis=1)
            done = weighed(members, work).T
            for price, own, (before, after) in zip(self._prices, done, self._crossing, strict=True):
                self._done.append(own + before)
                self._rest.append(float(price.work.sum()) - own + after)

    def bands(self, time_s: Floats) -> dict[Key, Bools] | None:
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
        keys = self.occupancy.few(min(_MOST_STATES, _MOST_ENDS // self._n))
        if not self._prices or keys is None:
            return None
        found = {key: np.ones(self._n, dtype=np.bool_) for key in keys}
        members = self._members
        done = [self.occupancy.done(key) for key in keys]
        left = [self.occupancy.left(key) for key in keys]
        for price, copies in zip(self._prices, self._crossing, strict=True):
            rate = price.rates(problem)
            # What costs as much is more than there is room for.
            huge = 4 * price.total * self._period_s + float(price.work.sum())
            with np.errstate(invalid="ignore"):
                cost = np.nan_to_num(time_s * rate, nan=huge, posinf=huge).clip(max=huge)
            for side, rooms, copied in zip((members, ~members), (done, left), copies, strict=True):
                cheapest = [self._cheapest(cost, resources, huge) for resources, _ in rooms]
                work = weighed(side, np.stack(cheapest, axis=1)).T
                for key, (resources, stages), held in zip(keys, rooms, work, strict=True):
                    found[key] &= held + copied <= self._room(price, resources, stages)
        return found

    def _cheapest(self, cost: Floats, resources: Ints, huge: float) -> Floats:
        """Priced work of each unit on options that fit some resources, shape (n_units,)."""
        fits = np.all(self._problem.uses <= resources, axis=1)
        return np.asarray(cost[:, fits].min(axis=1, initial=huge))

    def fits_rest(self, key: Key) -> Bools:
        """Downsets whose rest may still fit what a state leaves, shape (n_ideals,)."""
        useful = np.ones(self._n, dtype=np.bool_)
        resources, stages = self.occupancy.left(key)
        for price, rest in zip(self._prices, self._rest, strict=True):
            useful &= rest <= self._room(price, resources, stages)
        return useful

    def ever(self) -> Bools:
        """Downsets that some state can end at, shape (n_ideals,); the trivial ones always."""
        keep = np.zeros(self._n, dtype=np.bool_)
        for index, key in enumerate(self.occupancy.every()):
            if index == _MOST_STATES:
                return np.ones(self._n, dtype=np.bool_)
            fits = self.fits_rest(key)
            resources, stages = self.occupancy.done(key)
            for price, done in zip(self._prices, self._done, strict=True):
                fits &= done <= self._room(price, resources, stages)
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
