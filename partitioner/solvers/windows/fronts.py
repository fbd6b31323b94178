"""The cuts of a window that matter.

What a cut means to the stages beside it is two numbers: the work before it with what is sent, which
the stage on its left bears, and the work after it with what is received. Of the cuts of a window
only those matter that no other beats in both. They are found by putting the window's units before
or after the cut one by one, in an order with few tensors open at a time. Partial decisions are rows
of a table. Of rows that agree on all open tensors those beaten in both numbers are dropped, as are
those that the windows rule out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.problem import Bools, Floats, Ints
from partitioner.solvers.limits import Clock
from partitioner.solvers.windows.ties import Asked, sends_to
from partitioner.solvers.windows.windows import Supposed, Windows

__all__ = ["Front", "Window"]

_SAFE = 1e-9
# Minimum cuts taken for each window, to tell what rows still have to pay.
_CUTS = 12
_WORD = 60
# Rows of a table times units of its window.
_CELLS = 64_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """Cuts of a window: loads on the left and on the right of each, and its units before it."""

    left: Floats
    right: Floats
    inside: Bools
    complete: bool
    before: Bools
    free: list[int]

    def holds(self, units: Sequence[int]) -> Bools:
        """Which of the units each cut has before it, shape (n_cuts, n_units)."""
        column = {unit: column for column, unit in enumerate(self.free)}
        found = np.repeat(self.before[None, list(units)], len(self.left), axis=0)
        for number, unit in enumerate(units):
            if unit in column:
                found[:, number] = self.inside[:, column[unit]]
        return found

    def behind(self, row: int) -> Bools:
        """Units after one of the cuts, shape (n_units,)."""
        found = ~self.before
        found[self.free] = ~self.inside[row]
        return found


class Window:
    """The table of one cut.

    Rows have a `left` and a `right` load and a `cost`: what all tensors across the cut are charged
    to it (see `Supposed.weight`), by which the windows judge.
    """

    def __init__(
        self, windows: Windows, order: Ints, supposed: Supposed, cut: int, asked: Sequence[Asked]
    ) -> None:
        self._windows = windows
        n = len(windows.work)
        self._before, self._after = supposed.before[cut], supposed.after[cut]
        self._free = [int(unit) for unit in order[supposed.free[cut][order]]]
        self._column = {unit: column for column, unit in enumerate(self._free)}
        self._dearest = (float(supposed.cost[cut]) + supposed.slack) * (1 + _SAFE)
        self._paid = np.zeros(3)
        # For each unit: what it costs to go before, since a reader is after for certain; and the
        # charges that may fall due when it goes after: producer, readers earlier, how much.
        self._made = np.zeros((len(self._free), 3))
        self._read: list[list[tuple[int | None, list[int], Floats]]] = [[] for _ in self._free]
        # Until which unit a tensor is open, its producer, its readers in the window.
        self._open: list[tuple[int, int | None, list[int]]] = []
        here = supposed.after[cut - 1] if cut else np.ones(n, dtype=np.bool_)
        flows, weight = windows.flows, supposed.weight[cut]
        self._reaches = np.zeros(len(weight), dtype=np.bool_)
        for flow in np.flatnonzero(weight).tolist():
            producer = int(flows.producer[flow])
            readers = flows.reader[flows.last[flow] : flows.last[flow + 1]]
            self._reaches[flow] = self._after[readers].any()
            sent = float(windows.send[flow]) * bool(here[producer])
            received = float(windows.recv[flow])
            next_, times, again = sends_to(windows, supposed, cut, flow)
            if len(next_) == len(readers):
                self._add(producer, readers, np.array([sent, received, weight[flow]]))
            else:
                self._add(producer, readers, np.array([sent * times, 0.0, weight[flow]]))
                self._add(producer, next_, np.array([sent * again, received, 0.0]))
        for each in asked:
            for units in (each.all_of, each.not_all):
                columns = sorted(self._column[unit] for unit in units if unit in self._column)
                if columns and not self._after[list(units)].any():
                    self._open.append((len(self._free), None, columns))
        self._coming = self._least_coming(weight)

    def _add(self, producer: int, readers: Ints, charges: Floats) -> None:
        """Charges that fall due when the producer is before and one of the readers after."""
        maker = self._column.get(producer)
        columns = sorted(self._column[r] for r in readers.tolist() if r in self._column)
        if self._after[readers].any():
            if maker is None:
                self._paid += charges
            else:
                self._made[maker] += charges
            if maker is not None and columns:
                self._open.append((columns[-1], maker, []))
            return
        for number, column in enumerate(columns):
            self._read[column].append((maker, columns[:number], charges))
        if columns:
            self._open.append((columns[-1], maker, columns))

    def _least_coming(self, weight: Floats) -> Floats:
        """Cost still to come from each unit on, whatever was decided, shape (n_free + 1,).

        Tensors that units decided make or read, and those paid for already, are left out; a
        minimum cut through the rest says it.
        """
        flows = self._windows.flows
        weight = weight.copy()
        weight[self._before[flows.producer] & self._reaches] = 0.0
        read: dict[int, list[int]] = {}
        for flow in np.flatnonzero(weight).tolist():
            for reader in flows.reader[flows.last[flow] : flows.last[flow + 1]].tolist():
                read.setdefault(reader, []).append(flow)
        width = len(self._free)
        stride = max(1, -(-width // _CUTS))
        decided = np.zeros(len(self._before), dtype=np.bool_)
        found = np.zeros(width + 1)
        for column, unit in enumerate(self._free):
            if column % stride == 0 and column:
                found[column] = self._windows.cheapest(weight, self._before, self._after, decided)
            decided[unit] = True
            weight[read.get(unit, [])] = 0.0
        # What is left gets less with every decision, so that a later value holds earlier too.
        return np.asarray(np.maximum.accumulate(found[::-1])[::-1])

    def front(self, most: float, rest: float, limit: int, clock: Clock) -> Front:
        """The cuts that matter, of loads up to `most` before them and `rest` after."""
        work = self._windows.work
        missing = float(work[self._free].sum())
        limit = min(limit, _CELLS // max(1, len(self._free)))
        inside = np.zeros((1, len(self._free)), dtype=np.bool_)
        left = np.array([float(work[self._before].sum()) + self._paid[0]])
        right = np.array([float(work[self._after].sum()) + self._paid[1]])
        cost = np.array([self._paid[2]])
        complete = True
        for column, unit in enumerate(self._free):
            own = float(work[unit])
            can = self._all_before(inside, unit)
            out_left, out_right, out_cost = left.copy(), right + own, cost.copy()
            for maker, earlier, (send, recv, all_) in self._read[column]:
                pays = inside[:, earlier].all(axis=1)
                if maker is not None:
                    pays &= inside[:, maker]
                out_left += send * pays
                out_right += recv * pays
                out_cost += all_ * pays
            taken = inside[can]
            taken[:, column] = True
            send, recv, all_ = self._made[column]
            inside = np.concatenate([inside, taken])
            left = np.concatenate([out_left, left[can] + own + send])
            right = np.concatenate([out_right, right[can] + recv])
            cost = np.concatenate([out_cost, cost[can] + all_])
            missing -= own
            keep = (left <= most) & (right <= rest) & (left + right + missing <= most + rest)
            keep &= cost + self._coming[column + 1] <= self._dearest
            inside, left, right, cost = inside[keep], left[keep], right[keep], cost[keep]
            rows, cost = self._unbeaten(inside, left, right, cost, column)
            if clock.left_s <= 0:
                rows, cost, complete = rows[:0], cost[:0], False
            if len(rows) > limit:
                complete = False
                cheap = np.argsort(cost, kind="stable")[:limit]
                rows, cost = rows[cheap], cost[cheap]
            inside, left, right = inside[rows], left[rows], right[rows]
        # The stage on the right holds what is after the cut less what is after its own end.
        right = right - float(work.sum())
        return Front(left, right, inside, complete, self._before, self._free)

    def _all_before(self, inside: Bools, unit: int) -> Bools:
        """Rows in which all that feeds a unit is before the cut."""
        feeds = [self._column[b] for b in self._windows.units.before[unit] if b in self._column]
        return np.asarray(inside[:, feeds].all(axis=1))

    def _unbeaten(
        self, inside: Bools, left: Floats, right: Floats, cost: Floats, column: int
    ) -> tuple[Ints, Floats]:
        """Rows that none with the same open tensors beats on both sides, and what they cost.

        A row stands for those that it beats: its cost is the least of theirs and its own.
        """
        keys: list[Bools] = []
        seen: set[tuple[int, ...]] = set()
        for end, maker, readers in self._open:
            if end <= column or (maker is not None and maker > column):
                continue
            told = [] if maker is None else [(maker,)]
            earlier = tuple(reader for reader in readers if reader <= column)
            for columns in (*told, *([earlier] if earlier else [])):
                if columns not in seen:
                    seen.add(columns)
                    keys.append(np.asarray(inside[:, list(columns)].all(axis=1)))
        words = []
        for low in range(0, len(keys), _WORD):
            bits = np.stack(keys[low : low + _WORD], axis=1)
            words.append(bits @ (1 << np.arange(bits.shape[1])))
        ranked = np.lexsort((right, left, *words))
        fresh = np.zeros(len(ranked), dtype=np.bool_)
        fresh[:1] = True
        for word in words:
            fresh[1:] |= np.diff(word[ranked]) != 0
        # A running minimum that starts anew with every group: each lies below all before it.
        span = (float(np.ptp(right)) if len(right) else 0.0) or 1.0
        level = right[ranked] - np.cumsum(fresh) * (2 * span)
        least = np.minimum.accumulate(level)
        unbeaten = fresh.copy()
        unbeaten[1:] |= level[1:] < least[:-1]
        if not len(ranked):
            return ranked, cost
        return ranked[unbeaten], np.minimum.reduceat(cost[ranked], np.flatnonzero(unbeaten))
