"""Dynamic programming over ideals: the best pipeline for every downset and set of used options.

A pipeline is a chain of downsets; the state after some stages is the downset done and what the
stages occupy, up to exchanging equal options. All pairs of downsets are priced at once by matrix
products. Method: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators" (NeurIPS 2020), section 5.1; the chain case is PipeDream's (Narayanan et al., SOSP 2019,
section 3.1).

What a stage pays for a transfer may hang on options of other stages, which a state does not hold.
There the table takes the least it can be, so that its value is a lower bound over the downsets
given; the caller re-scores the assignment, and when both agree it is optimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from partitioner.errors import ProblemError
from partitioner.problem import Floats, Ints, LatencyModel, Objective, Problem
from partitioner.solvers.bounds import Prices, load_prices
from partitioner.solvers.ideals import all_ideals, membership
from partitioner.solvers.limits import RELATIVE, Clock, Limits
from partitioner.solvers.reduce import (
    Symmetry,
    Units,
    most_stages,
    stages_of,
    symmetry,
)
from partitioner.solvers.spans import SpanCosts

__all__ = ["Table", "TooLargeError", "applies", "exact_table", "run_table"]

Key = tuple[tuple[int, ...], int]
_ROWS = 64


class TooLargeError(ProblemError):
    """The problem has too many downsets or states for dynamic programming."""


@dataclass(frozen=True, slots=True)
class Table:
    """What dynamic programming found.

    Attributes
    ----------
    bound : float
        No pipeline over the downsets given has a lower objective; inf when there is none at all
        (below the cut-off).
    assignment : tuple or None
        Stage of each op and placements, of the pipeline that attains `bound` where costs separate.
    """

    bound: float
    assignment: tuple[tuple[int, ...], tuple[tuple[int], ...]] | None


@dataclass(slots=True)
class _State:
    value: Floats
    parent: Ints
    via: list[tuple[Key, int]] = field(default_factory=list)
    choice: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def applies(problem: Problem) -> bool:
    """Whether the objective adds up stage by stage: the atomic latency, with its overlap, not."""
    period = problem.objective is Objective.PERIOD
    return period or problem.latency_model is LatencyModel.SERIAL


def exact_table(
    problem: Problem, units: Units, limits: Limits, clock: Clock, cutoff: float
) -> Table:
    """Solve over all downsets that a pipeline better than `cutoff` can cut at.

    Raises
    ------
    TooLargeError
        If there are too many; CP-SAT has no such limit.
    """
    prices = load_prices(problem, units)
    period = problem.objective is Objective.PERIOD
    slots = most_stages(problem)
    most, reach, work = np.inf, -np.inf, np.zeros(len(units))
    if period and np.isfinite(cutoff):
        equal = prices[0]
        work = equal.work
        most = cutoff * (slots - 1) * (1 + RELATIVE)
        reach = 0.0 if slots > 1 else np.inf
    ideals = all_ideals(units, work, most, reach, limits.max_ideals)
    if ideals is not None and period and np.isfinite(cutoff):
        ideals = _within_reach(ideals, prices[0], cutoff, slots)
    if ideals is None or len(ideals) ** 2 * len(symmetry(problem).classes) > limits.max_table:
        count = f"more than {limits.max_ideals}" if ideals is None else str(len(ideals))
        raise TooLargeError(
            f"dynamic programming: the graph has {count} downsets to cut at, which is too many for "
            "its table; use method 'cpsat' or 'auto'"
        )
    return run_table(problem, units, ideals, clock, cutoff, prices)


def run_table(
    problem: Problem,
    units: Units,
    ideals: list[int],
    clock: Clock,
    cutoff: float,
    prices: tuple[Prices, ...],
) -> Table:
    """Best pipeline that cuts at the given downsets only (sorted by size, with both trivial ones).

    Parameters
    ----------
    cutoff : float
        Only values below are of interest.

    Raises
    ------
    TooLargeError
        If time runs out.
    """
    members = membership(ideals, len(units))
    classes = symmetry(problem)
    spans = SpanCosts(problem, units, members)
    costs = {group[0]: spans.cost(group[0], cutoff) for group in classes.classes}
    search = _Search(problem, classes, costs, members, cutoff, prices, most_stages(problem))
    best, trail = search.run(clock)
    if trail is None:
        return Table(best, None)
    stage_of_unit = np.zeros(len(units), dtype=np.int64)
    for stage in reversed(range(len(trail))):
        stage_of_unit[members[trail[stage][1]]] = stage
    placements = tuple((option,) for option in search.options(trail))
    return Table(best, (stages_of(units, stage_of_unit.tolist()), placements))


class _Search:
    """The table, state by state in the order of the number of stages."""

    def __init__(
        self,
        problem: Problem,
        classes: Symmetry,
        costs: dict[int, Floats],
        members: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
        cutoff: float,
        prices: tuple[Prices, ...],
        slots: int,
    ) -> None:
        self._problem = problem
        self._classes = classes
        self._costs = costs
        self._cutoff = cutoff
        self._slots = slots
        self._sum = problem.objective is Objective.LATENCY
        self._n = len(members)
        self._rest = [(~members) @ price.work for price in prices]
        self._prices = prices

    def run(self, clock: Clock) -> tuple[float, list[tuple[Key, int]] | None]:
        """Best value and the trail of (state, downset) after each stage."""
        start = np.full(self._n, np.inf)
        start[0] = 0.0
        zero: Key = ((0,) * len(self._problem.capacity), 0)
        self._states = {zero: _State(start, np.full(self._n, -1, dtype=np.int64))}
        level = [zero]
        best, best_key = np.inf, None
        while level:
            grown: dict[Key, None] = {}
            for key in level:
                if clock.left_s <= 0:
                    raise TooLargeError("dynamic programming: time ran out before its table ended")
                for option, larger in self._moves(key):
                    if self._extend(key, option, larger):
                        grown[larger] = None
            level = list(grown)
            for key in level:
                value = float(self._states[key].value[-1])
                if value < best:
                    best, best_key = value, key
        if best_key is None:
            return np.inf, None
        return best, self._trail(best_key)

    def _moves(self, key: Key) -> Iterator[tuple[int, Key]]:
        used = np.array(key[0])
        if key[1] == self._slots:
            return
        for group in self._classes.classes:
            seen = set()
            for option in group:
                total = used + self._problem.uses[option]
                if np.all(total <= self._problem.capacity):
                    larger = (self._classes.canonical(total.tolist()), key[1] + 1)
                    if larger not in seen:
                        seen.add(larger)
                        yield group[0], larger

    def _extend(self, key: Key, option: int, larger: Key) -> bool:
        """Add a stage on `option` to every pipeline of state `key`."""
        value = self._states[key].value
        rows = np.flatnonzero(np.isfinite(value[:-1]))
        open_columns = self._open(larger)
        if not len(rows) or not open_columns.any():
            return False
        cost = self._costs[option]
        first, last = int(rows[0]), int(rows[-1]) + 1
        column = int(np.flatnonzero(open_columns)[0])
        best = np.full(self._n - column, np.inf)
        parent = np.full(self._n - column, -1, dtype=np.int64)
        for low in range(first, last, _ROWS):
            high = min(low + _ROWS, last)
            part = value[low:high, None]
            block = cost[low:high, column:]
            total = part + block if self._sum else np.maximum(part, block)
            row = total.argmin(axis=0)
            least = total[row, np.arange(total.shape[1])]
            better = least < best
            best[better] = least[better]
            parent[better] = row[better] + low
        best[~open_columns[column:]] = np.inf
        if not (best < self._cutoff).any():
            return False
        state = self._states.get(larger)
        if state is None:
            state = _State(
                np.full(self._n, np.inf),
                np.full(self._n, -1, dtype=np.int64),
                choice=np.full(self._n, -1, dtype=np.int64),
            )
            self._states[larger] = state
        better = (best < state.value[column:]) & (best < self._cutoff)
        state.value[column:][better] = best[better]
        state.parent[column:][better] = parent[better]
        state.choice[column:][better] = len(state.via)
        state.via.append((key, option))
        return True

    def _open(self, key: Key) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Downsets whose rest may still fit what is left, by the load bound."""
        useful = np.ones(self._n, dtype=np.bool_)
        if self._sum or not np.isfinite(self._cutoff):
            return useful
        left = self._problem.capacity - np.array(key[0])
        for price, rest in zip(self._prices, self._rest, strict=True):
            budget = left @ price.resource + price.slot * (self._slots - key[1])
            useful &= rest <= budget * self._cutoff * (1 + RELATIVE) + 1e-12 * price.total
        useful[-1] = True
        return useful

    def _trail(self, key: Key) -> list[tuple[Key, int]]:
        trail: list[tuple[Key, int]] = []
        ideal = self._n - 1
        while key[1]:
            trail.append((key, ideal))
            state = self._states[key]
            key, ideal = state.via[state.choice[ideal]][0], int(state.parent[ideal])
        return trail[::-1]

    def options(self, trail: list[tuple[Key, int]]) -> list[int]:
        """A real option for each stage: states hold use only up to exchanging equal options."""
        used = np.zeros_like(self._problem.capacity)
        chosen = []
        for key, ideal in trail:
            state = self._states[key]
            first = state.via[state.choice[ideal]][1]
            group = next(group for group in self._classes.classes if group[0] == first)
            option = next(
                option
                for option in group
                if np.all(used + self._problem.uses[option] <= self._problem.capacity)
                and self._classes.canonical((used + self._problem.uses[option]).tolist()) == key[0]
            )
            used = used + self._problem.uses[option]
            chosen.append(option)
        return chosen


def _within_reach(ideals: list[int], price: Prices, cutoff: float, slots: int) -> list[int]:
    """Drop downsets that no number of stages makes balanced enough to beat `cutoff`."""
    done = membership(ideals, len(price.work)) @ price.work
    total = float(price.work.sum())
    keep = np.zeros(len(ideals), dtype=np.bool_)
    span = cutoff * (1 + RELATIVE) + 1e-12 * total
    for stages in range(1, slots):
        keep |= (done <= stages * span) & (total - done <= (slots - stages) * span)
    keep[[0, -1]] = True
    return [ideal for ideal, kept in zip(ideals, keep, strict=True) if kept]
