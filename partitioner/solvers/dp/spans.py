"""What a stage costs, for pairs of downsets that can be its beginning and its end.

Only pairs are kept that may be part of an assignment below the cut-off and within the caps. What a
stage pays may hang on options of other stages, which a pair does not know; the least it can be is
taken, so that sums of prices are lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.problem import Bools, Floats, Ints, Objective, Problem
from partitioner.solvers.bounds import transfer_bounds
from partitioner.solvers.dp.cuts import Cuts, Rows
from partitioner.solvers.dp.weights import weighed
from partitioner.solvers.limits import Clock
from partitioner.solvers.reduce import Units, tight_pools

__all__ = ["SpanCosts", "Spans"]

_ROUNDING = 1e-9
# Relative rounding of a difference of two sums: a bound must not be above the truth.
_EPSILON = 1e-14
_CHUNK = 128
# Pairs priced at once, of downsets that do not follow one another in the list.
_PAIRS = 1 << 18

_Part = tuple[Ints, Ints, Ints, Floats]
"""Some final downsets, number of stages of each, where those begin and what they cost."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Stages on one option, by the downset that they complete.

    Attributes
    ----------
    first : array of int, shape (n_ideals + 1,)
        Where each final downset's stages begin in the arrays below.
    start : array of int, shape (n_spans,)
        Downset that is done before the stage.
    cost : array, shape (n_spans,)
        The least that the stage adds to the objective (the period: its own), in its unit.
    """

    first: Ints
    start: Ints
    cost: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Option:
    """An option's share of the prices.

    Attributes
    ----------
    most_s : float
        Largest busy time of interest.
    busy, slack_s
        Busy time of each downset's units, sent outputs included, and what a difference of two
        lacks: host time, less the rounding.
    refused : array of int, shape (n_ideals,)
        Units of each downset that cannot run here.
    weight, links, own_links_s, links_off_s
        Busy seconds, and link seconds, of each group of transfers; link seconds of each downset's
        outputs; rounding of sums of link seconds.
    replicas : int
        Equal replicas that share the items.
    budget : float
        Bytes of the pool.
    """

    most_s: float
    busy: Floats
    slack_s: float
    refused: Ints
    weight: Floats
    links: Floats
    own_links_s: Floats
    links_off_s: float
    replicas: int
    budget: float


class SpanCosts:
    """Prices stages between downsets.

    Parameters
    ----------
    problem, units
        The problem and its units.
    cuts : Cuts
        The downsets, each after those within it.
    work : array of int, shape (n_ideals,)
        Priced work (see `bounds.Prices`) of each downset in some small unit, ascending.
    cutoff : float
        Objectives of interest are below.
    limit_s : float
        Periods of interest are not above.
    """

    def __init__(
        self,
        problem: Problem,
        units: Units,
        cuts: Cuts,
        work: Ints,
        *,
        cutoff: float,
        limit_s: float,
    ) -> None:
        self._problem, self._units, self._cuts, self._work = problem, units, cuts, work
        self._cutoff, self._limit_s = cutoff, limit_s
        self._options: dict[int, _Option] = {}
        self._sums_bytes = problem.objective is Objective.MEMORY or bool(tight_pools(problem))
        if self._sums_bytes:
            self._own_bytes = weighed(cuts.members, units.constant_bytes[:, None])[:, 0]
            self._shared_bytes = np.array([size for size, _ in units.shared])
            self._entering_bytes = self._entering(problem.queue_slots * problem.tensor_bytes)
            self._more_bytes = (
                self._shared_bytes.sum()
                + units.live_bytes.max()
                + cuts.transfers.before(self._entering_bytes)
            )
            self._bytes_off = _EPSILON * float(self._own_bytes[-1] + self._shared_bytes.sum())
            self._live: list[tuple[float, Ints]] | None = None

    def pairs(self, least: int, most: int) -> int:
        """How many pairs of downsets lie that much `work` apart."""
        work = self._work
        first = np.searchsorted(work, work - most)
        last = np.minimum(np.searchsorted(work, work - least, "right"), np.arange(len(work)))
        return int(np.maximum(last - first, 0).sum())

    def spans(self, windows: dict[int, tuple[int, int]], clock: Clock) -> dict[int, Spans] | None:
        """All stages of interest on the given options.

        Parameters
        ----------
        windows : dict
            For each option the least and the most `work` that a stage on it holds.
        clock : Clock
            When to give up.

        Returns
        -------
        dict or None
            None when time ran out.
        """
        options = {option: self._option(option) for option in windows}
        parts: dict[int, list[_Part]] = {option: [] for option in windows}
        n = len(self._work)
        for low in range(1, n, _CHUNK):
            if clock.left_s <= 0:
                return None
            after = slice(low, min(low + _CHUNK, n))
            starts = {option: self._starts(after, *window) for option, window in windows.items()}
            starts = {option: start for option, start in starts.items() if start.start < start.stop}
            if not starts:
                continue
            before = slice(
                min(start.start for start in starts.values()),
                max(start.stop for start in starts.values()),
            )
            nested = self._nested(before, after)
            shared: dict[bytes, Floats] = {}
            for option, start in starts.items():
                part = slice(start.start - before.start, start.stop - before.start)
                transfers = self._transfers(options[option].weight, before, after, shared)
                apart = self._work[after, None] - self._work[None, start]
                possible = nested[:, part] & (apart >= windows[option][0])
                priced = self._priced(options[option], start, after, possible, transfers[:, part])
                j, i, cost = priced
                counts = np.bincount(j, minlength=after.stop - after.start)
                parts[option].append((np.arange(n)[after], counts, i + start.start, cost))
        return {option: _stacked(n, found) for option, found in parts.items()}

    def block(
        self, option: int, before: Ints, after: Ints, window: tuple[int, int], clock: Clock
    ) -> Spans | None:
        """All stages of interest on one option, from some downsets to some others.

        Parameters
        ----------
        before, after : array of int
            Downsets, ascending.
        window : tuple of int
            The least and the most `work` that the stage holds.
        clock : Clock
            When to give up.

        Returns
        -------
        Spans or None
            None when time ran out.
        """
        if option not in self._options:
            self._options[option] = self._option(option)
        priced = self._options[option]
        parts: list[_Part] = []
        done = self._work[before]
        rows = max(1, _PAIRS // max(1, len(before)))
        for low in range(0, len(after), rows):
            if clock.left_s <= 0:
                return None
            ends = after[low : low + rows]
            work = self._work[ends]
            first = int(np.searchsorted(done, work[0] - window[1]))
            starts = before[first : int(np.searchsorted(done, work[-1] - window[0], "right"))]
            if not len(starts):
                continue
            apart = work[:, None] - self._work[None, starts]
            possible = (apart >= window[0]) & (apart <= window[1])
            possible &= starts[None, :] < ends[:, None]
            possible &= self._cuts.nested(starts, ends)
            possible &= self._own_fits(priced, starts, ends)
            # Transfers cost most time, and few pairs are left as a rule.
            kept, begun = (np.flatnonzero(possible.any(axis=axis)) for axis in (1, 0))
            starts, possible = starts[begun], possible[np.ix_(kept, begun)]
            ends = ends[kept]
            transfers = self._cuts.transfers.sums(starts, ends, priced.weight)
            j, i, cost = self._priced(priced, starts, ends, possible, transfers)
            parts.append((ends, np.bincount(j, minlength=len(ends)), starts[i], cost))
        return _stacked(len(self._work), parts)

    def within(self, before: Ints, after: Ints, window: tuple[int, int]) -> Ints:
        """Of the downsets `after` those that a window allows behind some of `before`."""
        work, done = self._work[after], self._work[before]
        low = np.searchsorted(work, done[0] + window[0])
        return after[low : np.searchsorted(work, done[-1] + window[1], "right")]

    def _own_fits(self, option: _Option, before: Rows, after: Rows) -> Bools:
        """Which pairs have ops that run here and are no longer than a stage of interest."""
        busy = option.busy[after, None] - option.busy[None, before]
        same = option.refused[after, None] == option.refused[None, before]
        return np.asarray((busy <= option.most_s - option.slack_s) & same)

    def _starts(self, after: slice, least: int, most: int) -> slice:
        """Downsets before the last of `after` that lie as far from some of them."""
        work = self._work
        first = int(np.searchsorted(work, work[after.start] - most))
        end = int(np.searchsorted(work, work[after.stop - 1] - least, "right"))
        return slice(first, min(end, after.stop - 1))

    def _nested(self, before: slice, after: slice) -> Bools:
        """Which pairs are a downset strictly within another."""
        nested = self._cuts.nested(before, after)
        # Every downset comes after those within it, so that only a corner needs a look.
        rest = max(0, after.start - before.start)
        corner = np.arange(before.start + rest, before.stop)[None, :]
        nested[:, rest:] &= corner < np.arange(after.start, after.stop)[:, None]
        return nested

    def _transfers(
        self, weight: Floats, before: slice, after: slice, known: dict[bytes, Floats]
    ) -> Floats:
        """Transfers of all pairs, once for options that pay the same."""
        key = weight.tobytes()
        if key not in known:
            known[key] = self._cuts.transfers.sums(before, after, weight)
        return known[key]

    def _priced(
        self, option: _Option, before: Rows, after: Rows, possible: Bools, transfers: Floats
    ) -> tuple[Ints, Ints, Floats]:
        """The possible ones of the stages given: last and first downset in these, and cost."""
        busy = option.busy[after, None] - option.busy[None, before]
        busy += transfers
        possible &= busy <= option.most_s - option.slack_s
        possible &= option.refused[after, None] == option.refused[None, before]
        j, i = np.nonzero(possible)
        busy_s = np.maximum(busy[j, i] + option.slack_s, 0.0)
        cost = self._cost(option, before, after, j, i, busy_s)
        if self._sums_bytes:
            budget = option.budget / option.replicas * (1 + _ROUNDING)
            sums = self._problem.objective is Objective.MEMORY
            asked = slice(None) if sums else self._may_overflow(before, after, j, i, budget)
            size = np.zeros(len(j))
            size[asked] = self._bytes(before, after, j[asked], i[asked])
            if sums:
                cost = size * option.replicas * (1 - 1e-12)
            keep = (size <= budget) & (cost < self._cutoff)
            j, i, cost = j[keep], i[keep], cost[keep]
        return j, i, cost

    def _cost(
        self, option: _Option, before: Rows, after: Rows, j: Ints, i: Ints, busy_s: Floats
    ) -> Floats:
        """What each stage adds to the objective; memory apart."""
        objective = self._problem.objective
        if objective is Objective.PERIOD:
            return busy_s / option.replicas
        if objective is Objective.DEVICES:
            return np.full(len(j), float(option.replicas))
        if objective is Objective.COPIES:
            each = self._entering(np.ones(self._problem.n_tensors), inputs=False)
            return np.round(self._cuts.transfers.sums(before, after, each)[j, i])
        links = self._cuts.transfers.sums(before, after, option.links)[j, i] - option.links_off_s
        own = option.own_links_s
        return busy_s + np.maximum(0.0, links + own[after][j] - own[before][i])

    def _may_overflow(self, before: Rows, after: Rows, j: Ints, i: Ints, budget: float) -> Bools:
        """Which stages could be larger than the budget, by an estimate from above."""
        own = self._own_bytes
        return np.asarray(own[after][j] - own[before][i] + self._more_bytes[before][i] > budget)

    def _bytes(self, before: Rows, after: Rows, j: Ints, i: Ints) -> Floats:
        """Memory of each stage on one replica."""
        cuts, own = self._cuts, self._own_bytes
        size = own[after][j] - own[before][i] - self._bytes_off
        if not len(j):
            return size
        size += cuts.constants.sums(before, after, self._shared_bytes)[j, i]
        size += cuts.transfers.sums(before, after, self._entering_bytes)[j, i]
        open_ = np.arange(len(j))
        if self._live is None:
            self._live = list(self._live_held())
        for live, held in self._live:
            found = held[after][j[open_]] > held[before][i[open_]]
            size[open_[found]] += live
            open_ = open_[~found]
        return np.asarray(size)

    def _live_held(self) -> Iterator[tuple[float, Ints]]:
        """Sizes of working sets, descending, with how many such units each downset holds."""
        live = self._units.live_bytes
        for size in np.unique(live[live > 0])[::-1]:
            yield float(size), self._cuts.members[:, live == size].sum(axis=1)

    def _option(self, option: int) -> _Option:
        problem, units, cuts = self._problem, self._units, self._cuts
        replicas = int(problem.replicas[option])
        most_s = self._limit_s * replicas
        if problem.objective is Objective.LATENCY:
            most_s = min(most_s, self._cutoff)
        busy = self._own_s(option)
        runs = units.runs[:, option] & (busy <= most_s)
        busy[~runs] = 0.0
        outputs = np.zeros(len(units))
        for flow in units.flows:
            if flow.to_caller:
                amount = float(problem.amount[flow.tensor])
                outputs[flow.producer] += problem.link.seconds(option, problem.n_options, amount)
        done, own_links, refused = weighed(
            cuts.members, np.stack([busy, outputs, ~runs], axis=1).astype(np.float64)
        ).T
        moved = self._amounts(moved=True)
        send_s, recv_s, link_s = transfer_bounds(problem, option, moved)
        if problem.send_once:
            caller = self._caller_s(option)
            paid = np.array([caller[f.tensor] if f.to_caller else 0.0 for f in cuts.moved])
            send_s = np.maximum(0.0, send_s - paid)
        n, link = problem.n_options, problem.link
        inputs = self._amounts(moved=False)
        recv = problem.recv.base_s[n, option] + inputs * problem.recv.per_unit_s[n, option]
        brought = link.base_s[n, option] + inputs * link.per_unit_s[n, option]
        # A stage that pays as much is too long; larger numbers would only spoil the sums.
        weight = np.minimum(np.concatenate([recv, recv_s, send_s]), 2 * most_s)
        rounding = _EPSILON * (len(busy) * float(done[-1]) + cuts.transfers.most(weight))
        links = np.concatenate([brought, link_s, np.zeros(len(moved))])
        links = np.minimum(links, 2 * self._cutoff)
        return _Option(
            most_s=most_s,
            busy=done,
            slack_s=float(problem.host_s[option]) - rounding,
            refused=refused.astype(np.int64),
            weight=weight,
            links=links,
            own_links_s=own_links,
            links_off_s=_EPSILON * (len(units) * float(own_links[-1]) + cuts.transfers.most(links)),
            replicas=replicas,
            budget=float(problem.pool_bytes[problem.pool_of[option]]),
        )

    def _own_s(self, option: int) -> Floats:
        """Time of each unit with what it must send to the caller."""
        units = self._units
        busy = np.where(units.runs[:, option], units.time_s[:, option], 0.0)
        caller = self._caller_s(option)
        for flow in units.flows:
            if flow.to_caller:
                busy[flow.producer] += caller[flow.tensor]
        return busy

    def _caller_s(self, option: int) -> Floats:
        send = self._problem.send
        caller = self._problem.n_options
        return np.asarray(
            send.base_s[option, caller] + self._problem.amount * send.per_unit_s[option, caller]
        )

    def _amounts(self, *, moved: bool) -> Floats:
        flows = self._cuts.moved if moved else self._cuts.inputs
        return self._problem.amount[[flow.tensor for flow in flows]]

    def _entering(self, value: Floats, *, inputs: bool = True) -> Floats:
        """Weights that add up a value of each tensor over those that enter a stage."""
        cuts = self._cuts
        brought = value[[flow.tensor for flow in cuts.inputs]]
        moved = value[[flow.tensor for flow in cuts.moved]]
        return np.concatenate([brought * inputs, moved, np.zeros(len(moved))])


def _stacked(n: int, parts: Sequence[_Part]) -> Spans:
    first = np.zeros(n + 1, dtype=np.int64)
    for ends, counts, _, _ in parts:
        first[ends + 1] = counts
    starts = [start for _, _, start, _ in parts]
    costs = [cost for _, _, _, cost in parts]
    return Spans(
        np.cumsum(first),
        np.concatenate([np.zeros(0, dtype=np.int32), *starts]).astype(np.int32),
        np.concatenate([np.zeros(0), *costs]),
    )
