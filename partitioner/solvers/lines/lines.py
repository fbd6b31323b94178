"""Good stages along topological orders, at any size.

Along one order the table of `lines.search` is exact for the cuts that it is given. Those are few at
first, the cheapest of every bit of work; then all around the cuts found.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partitioner.problem import Ints, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.lines.line import Flows, Line
from partitioner.solvers.lines.memory import LineMemory
from partitioner.solvers.lines.search import Found, Pairs, by_states, in_turn
from partitioner.solvers.occupancy import Occupancy
from partitioner.solvers.reduce import (
    Assignment,
    Units,
    most_stages,
    stages_of,
    symmetry,
    tight_pools,
)

__all__ = ["Lines"]


# More cuts take memory and time with their square, more states with their number.
_CUTS, _FEW_CUTS = 1600, 500
_STATES, _FEW_STATES = 1200, 128
# Multiples of the proven bound tried as a cut-off, for a low one leaves few stages to price.
_CUTOFFS = (1.03, 1.15, 1.5, 2.5, float("inf"))
_EXCHANGES = 30


class Lines:
    """Searches along orders of one problem.

    Parameters
    ----------
    problem, units
        The problem and its units.
    prices, bound
        Load prices and a proven bound on the period, seconds.
    seed : int
        Seed of what is drawn.
    """

    def __init__(
        self, problem: Problem, units: Units, prices: tuple[Prices, ...], bound: float, seed: int
    ) -> None:
        self.problem, self.units = problem, units
        self._prices, self._bound = prices, bound
        self._classes = symmetry(problem)
        self._heads = [group[0] for group in self._classes.classes]
        self._head_of = {each: group[0] for group in self._classes.classes for each in group}
        self.flows = Flows.of(problem, units, self._heads)
        self._memory = LineMemory(problem, units, self.flows) if tight_pools(problem) else None
        self._slots = most_stages(problem)
        self._occupancy = Occupancy(problem, self._classes)
        states = self._occupancy.few(_STATES)
        self._by_states = states is not None
        self._most_cuts = _CUTS if states is None or len(states) <= _FEW_STATES else _FEW_CUTS
        self._chance = random.Random(seed)
        self._turn = self._first_turn()

    def best(
        self, order: Ints, cutoff: float = float("inf"), around: Sequence[int] = ()
    ) -> Assignment | None:
        """Stages along an order whose period as the line prices it is below the cut-off.

        Parameters
        ----------
        order : array of int, shape (n_units,)
            Units in a topological order.
        around : sequence of int
            Places in the order near which to look closely.
        """
        line = Line(self.flows, order)
        found = self._search(line, self._coarse(line, around), cutoff)
        if found is None:
            return None
        if len(order) >= self._most_cuts:
            closer = self._search(line, self._close(line, found.ends[:-1]), found.value)
            found = closer or found
        stage_of_unit = np.empty(len(order), dtype=np.int64)
        sizes = np.diff(np.array([0, *found.ends]))
        stage_of_unit[order] = np.repeat(np.arange(len(sizes)), sizes)
        placements = tuple((option,) for option in found.options)
        return stages_of(self.units, stage_of_unit.tolist()), placements

    def expect_sends(self, stage_of: Sequence[int]) -> bool:
        """Expect every tensor to be sent to as many stages as in an assignment of the ops.

        Returns
        -------
        bool
            Whether that changes anything.
        """
        if self.problem.send_once:
            return False
        stage = np.array([stage_of[ops[0]] for ops in self.units.members])
        flows = self.flows
        flow = np.repeat(np.arange(len(flows.producer)), np.diff(flows.last))
        home, there = stage[flows.producer[flow]], stage[flows.reader]
        away = (flows.producer[flow] >= 0) & (home != there)
        hops = np.unique(np.stack([flow[away], there[away]]), axis=1)[0]
        sends = np.maximum(1.0, np.bincount(hops, minlength=len(flows.producer)))
        same = bool(np.array_equal(sends, flows.sends))
        self.flows = replace(flows, sends=sends)
        return not same

    def _search(self, line: Line, cuts: Ints, cutoff: float) -> Found | None:
        for factor in _CUTOFFS:
            limit = min(cutoff, factor * self._bound) if self._bound > 0 else cutoff
            pairs = Pairs(self.problem, line, cuts, self._heads, limit, self._memory)
            found = (
                by_states(self.problem, self._occupancy, pairs, self._prices, limit)
                if self._by_states
                else self._by_turns(pairs, limit)
            )
            if found is not None or limit == cutoff:
                return found
        return None

    def _by_turns(self, pairs: Pairs, limit: float) -> Found | None:
        """Options in the turn that served best so far, and with two of them exchanged."""

        def tried(turn: list[int]) -> Found | None:
            heads = [self._head_of[option] for option in turn]
            return in_turn(pairs, turn, heads, limit, self._slots)

        best = tried(self._turn)
        for _ in range(_EXCHANGES if len(self._turn) > 1 else 0):
            a, b = self._chance.sample(range(len(self._turn)), 2)
            turn = list(self._turn)
            turn[a], turn[b] = turn[b], turn[a]
            found = tried(turn)
            if found is not None and (best is None or found.value <= best.value):
                best, self._turn = found, turn
        return best

    def _first_turn(self) -> list[int]:
        """Options that fit together, those whose use buys most first, in a random order."""
        problem = self.problem
        runs = self.units.runs
        counts = runs.sum(axis=0)
        totals = np.where(runs, self.units.time_s, 0.0).sum(axis=0)
        means = np.divide(totals, counts, out=np.full(len(counts), np.inf), where=counts > 0)
        quick = np.argsort(means, kind="stable")
        used = np.zeros_like(problem.capacity)
        turn: list[int] = []
        for option in quick.tolist():
            while np.all(used + problem.uses[option] <= problem.capacity):
                if len(turn) == self._slots:
                    break
                used = used + problem.uses[option]
                turn.append(option)
        self._chance.shuffle(turn)
        return turn

    def _coarse(self, line: Line, around: Sequence[int]) -> Ints:
        """The cheapest cut of every equal share of the work, and all near the places given."""
        n = len(line)
        if n < self._most_cuts:
            return np.arange(n + 1)
        near = self._near(n, around, self._most_cuts // 2)
        shares = self._most_cuts - len(near)
        weight = self.flows.recv_s[self._heads].mean(axis=0)
        weight = weight + self.flows.send_s[self._heads].mean(axis=0)
        work = np.concatenate([[0.0], np.cumsum(self._prices[-1].work[line.order])])
        share = np.minimum(work / max(work[-1], 1e-300) * shares, shares - 1).astype(np.int64)
        ranked = np.lexsort((line.crossing(weight), share))
        first = np.concatenate([[True], np.diff(share[ranked]) > 0])
        return np.unique(np.concatenate([[0, n], ranked[first], near]))

    def _close(self, line: Line, places: Sequence[int]) -> Ints:
        """All cuts near the places given, and nothing else."""
        n = len(line)
        near = self._near(n, places, self._most_cuts)
        return np.unique(np.concatenate([[0, n], near]))

    @staticmethod
    def _near(n: int, places: Sequence[int], count: int) -> Ints:
        if not len(places):
            return np.zeros(0, dtype=np.int64)
        reach = max(1, count // (2 * len(places)))
        offsets = np.arange(-reach, reach + 1)
        near = np.unique(np.asarray(places)[:, None] + offsets[None, :])
        return near[(near > 0) & (near < n)]
