"""The best cuts of one order: a table over cuts and what the stages before them occupy.

The state after some stages is the cut reached and the resources used, up to exchanging equal
options; cuts that the load bound rules out for a state are dropped. Where unequal options make too
many states, options are taken in a given order instead, each used or left out. The chain case of
dynamic programming for pipelines is that of PipeDream (Narayanan et al., SOSP 2019, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from partitioner.problem import Floats, Ints, Problem
from partitioner.solvers.bounds import Prices
from partitioner.solvers.lines.line import Line
from partitioner.solvers.lines.memory import LineMemory
from partitioner.solvers.occupancy import Key, Occupancy
from partitioner.solvers.reduce import Symmetry

__all__ = ["Found", "Pairs", "by_states", "in_turn"]

_BLOCK = 128
_MORE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Found:
    """Stages of an order.

    Attributes
    ----------
    value : float
        Longest period of a stage as the line prices it, seconds.
    ends : tuple of int
        Place after the last unit of each stage.
    options : tuple of int
        Option of each stage.
    """

    value: float
    ends: tuple[int, ...]
    options: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Stages on one option below the cut-off, by last cut; see `Pairs`."""

    first: Ints
    start: Ints
    period_s: Floats

    def after(self, value: Floats) -> Floats:
        """Least period with one more stage, for each last cut, given that for each first cut."""
        best = np.full(len(value), np.inf)
        filled = np.flatnonzero(np.diff(self.first))
        if len(filled):
            total = np.maximum(value[self.start], self.period_s)
            best[filled] = np.minimum.reduceat(total, self.first[filled])
        return best

    def before(self, cut: int, value: Floats, goal: float) -> int | None:
        """First cut of a stage that ends at `cut` and reaches `goal`."""
        part = slice(int(self.first[cut]), int(self.first[cut + 1]))
        total = np.maximum(value[self.start[part]], self.period_s[part])
        match = np.flatnonzero(total == goal)
        return int(self.start[part][match[0]]) if len(match) else None


class Pairs:
    """Stages between the given cuts of an order, priced for each option.

    Parameters
    ----------
    problem : Problem
        For limits and replicas.
    line : Line
        The order.
    cuts : array of int
        Places that may be cut at, ascending, both ends included.
    options : sequence of int
        Options to price.
    cutoff : float
        Periods of interest are below.
    memory : LineMemory or None
        None where memory cannot bind.
    """

    def __init__(
        self,
        problem: Problem,
        line: Line,
        cuts: Ints,
        options: Sequence[int],
        cutoff: float,
        memory: LineMemory | None,
    ) -> None:
        self.cuts, self.line = cuts, line
        self.stages: dict[int, _Stages] = {}
        size = None if memory is None else memory.between(line.order, cuts)
        known: dict[bytes, Floats] = {}
        for option in options:
            flows = line.flows
            key = flows.recv_s[option].tobytes() + flows.send_s[option].tobytes()
            if key not in known:
                known = {key: line.transfers(option, cuts)}
            replicas = int(problem.replicas[option])
            fits = None
            if size is not None:
                budget = float(problem.pool_bytes[problem.pool_of[option]])
                fits = size * replicas <= budget * _MORE
            self.stages[option] = self._below(problem, option, known[key], fits, cutoff * replicas)

    def _below(
        self,
        problem: Problem,
        option: int,
        transfers: Floats,
        fits: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None,
        most_s: float,
    ) -> _Stages:
        """Stages on an option whose busy time is below `most_s`."""
        own = self.line.own(option)[self.cuts]
        refused = self.line.refused(option)[self.cuts]
        host_s = float(problem.host_s[option])
        replicas = float(problem.replicas[option])
        n = len(self.cuts)
        counts, starts, periods = [np.zeros(1, dtype=np.int64)], [], []
        for low in range(1, n, _BLOCK):
            high = min(low + _BLOCK, n)
            begin = int(np.searchsorted(own, own[low] - most_s))
            last, first = slice(low, high), slice(begin, high - 1)
            busy = own[last, None] - own[None, first] + host_s
            busy += transfers[first, last].T
            possible = (busy < most_s) & (refused[last, None] == refused[None, first])
            possible &= np.arange(begin, high - 1)[None, :] < np.arange(low, high)[:, None]
            if fits is not None:
                possible &= fits[first, last].T
            j, i = np.nonzero(possible)
            counts.append(np.bincount(j, minlength=high - low))
            starts.append(i + begin)
            periods.append(busy[j, i] / replicas)
        first_of = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        return _Stages(first_of, np.concatenate(starts), np.concatenate(periods))


def by_states(
    problem: Problem,
    occupancy: Occupancy,
    pairs: Pairs,
    prices: tuple[Prices, ...],
    cutoff: float,
) -> Found | None:
    """Best stages below the cut-off over all ways to use the options."""
    rests = [
        price.work.sum() - np.concatenate([[0.0], np.cumsum(price.work[pairs.line.order])])
        for price in prices
    ]
    rests = [rest[pairs.cuts] for rest in rests]

    def open_(key: Key) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        resources, stages = occupancy.left(key)
        useful = np.ones(len(pairs.cuts), dtype=np.bool_)
        if not np.isfinite(cutoff):
            return useful
        for price, rest in zip(prices, rests, strict=True):
            budget = resources @ price.resource + price.slot * stages
            useful &= rest <= budget * cutoff * _MORE + 1e-9 * price.total
        return useful

    start = np.full(len(pairs.cuts), np.inf)
    start[0] = 0.0
    values: dict[Key, Floats] = {occupancy.start: start}
    via: dict[Key, list[tuple[Key, int]]] = {}
    heap = [(*occupancy.rank(occupancy.start), occupancy.start)]
    best, best_key = cutoff, None
    while heap:
        key = heappop(heap)[-1]
        for option, larger in occupancy.after(key):
            reached = pairs.stages[option].after(values[key])
            reached[~open_(larger) | (reached >= best)] = np.inf
            if not np.isfinite(reached).any():
                continue
            if larger not in values:
                heappush(heap, (*occupancy.rank(larger), larger))
            values[larger] = np.minimum(values.get(larger, reached), reached)
            via.setdefault(larger, []).append((key, option))
            if values[larger][-1] < best:
                best, best_key = float(values[larger][-1]), larger
    if best_key is None:
        return None
    ends, steps = [], []
    key, cut = best_key, len(pairs.cuts) - 1
    while key != occupancy.start:
        for before, option in via[key]:
            first = pairs.stages[option].before(cut, values[before], float(values[key][cut]))
            if first is not None:
                ends.append(int(pairs.cuts[cut]))
                steps.append((key[0], option))
                key, cut = before, first
                break
    return Found(best, tuple(ends[::-1]), _named(problem, occupancy.classes, steps[::-1]))


def _named(
    problem: Problem, classes: Symmetry, steps: Sequence[tuple[tuple[int, ...], int]]
) -> tuple[int, ...]:
    """Options themselves, for states hold use only up to exchanging equal ones."""
    used = np.zeros_like(problem.capacity)
    chosen = []
    for goal, head in steps:
        group = next(group for group in classes.classes if group[0] == head)
        option = next(
            each
            for each in group
            if np.all(used + problem.uses[each] <= problem.capacity)
            and classes.canonical((used + problem.uses[each]).tolist()) == goal
        )
        used = used + problem.uses[option]
        chosen.append(option)
    return tuple(chosen)


def in_turn(
    pairs: Pairs, turn: Sequence[int], heads: Sequence[int], cutoff: float, slots: int
) -> Found | None:
    """Best stages below the cut-off with options in the given order, each used or left out.

    Parameters
    ----------
    turn : sequence of int
        Options, at most `slots` of which are used.
    heads : sequence of int
        For each of them, the equal option that `pairs` holds.
    """
    if len(turn) > slots:
        turn, heads = turn[:slots], heads[:slots]
    values = [np.full(len(pairs.cuts), np.inf)]
    values[0][0] = 0.0
    for head in heads:
        reached = pairs.stages[head].after(values[-1])
        reached[reached >= cutoff] = np.inf
        values.append(np.minimum(values[-1], reached))
    if not values[-1][-1] < cutoff:
        return None
    ends, options = [], []
    cut = len(pairs.cuts) - 1
    for step in reversed(range(len(heads))):
        if cut and values[step + 1][cut] != values[step][cut]:
            first = pairs.stages[heads[step]].before(
                cut, values[step], float(values[step + 1][cut])
            )
            assert first is not None
            ends.append(int(pairs.cuts[cut]))
            options.append(turn[step])
            cut = first
    return Found(float(values[-1][-1]), tuple(ends[::-1]), tuple(options[::-1]))
